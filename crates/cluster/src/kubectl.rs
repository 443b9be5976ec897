//! kubectl, as the cluster's administrator.

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use guest::{
    go::CLIENTS,
    programs::{feed, printed},
};
use serde_json::{Value, json};

use crate::{network, state};

/// kubectl, without arguments yet. It may take as long as it likes.
pub(crate) fn command() -> Result<Command> {
    Ok(with_kubeconfig(network::on_router(program()?)))
}

fn command_within_limit() -> Result<Command> {
    Ok(with_kubeconfig(network::on_router_within_limit(program()?)))
}

fn with_kubeconfig(mut kubectl: Command) -> Command {
    kubectl.env("KUBECONFIG", state::kubeconfig());
    kubectl
}

/// Whether it is built is looked at once.
fn program() -> Result<&'static Path> {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    if let Some(program) = PROGRAM.get() {
        return Ok(program);
    }
    let built = CLIENTS.program("kubectl")?;
    Ok(PROGRAM.get_or_init(|| built))
}

/// What kubectl prints; its error says what it was called with and what it complained of. There is a space between two
/// words.
pub(crate) fn output(words: &str) -> Result<String> {
    output_of(&words.split(' ').collect::<Vec<_>>())
}

/// The same for words of which one may have spaces in it.
pub(crate) fn output_of(words: &[&str]) -> Result<String> {
    printed_by(command_within_limit()?, words)
}

/// What it prints with the plugins of a directory, which find it on their path too.
pub(crate) fn output_with_plugins(plugins: &Path, words: &str) -> Result<String> {
    let mut kubectl = command_within_limit()?;
    let own = program()?.parent().context("kubectl without a directory")?;
    let others = env::var_os("PATH").unwrap_or_default();
    let path = [plugins.to_owned(), own.to_owned()].into_iter().chain(env::split_paths(&others));
    kubectl.env("PATH", env::join_paths(path)?);
    printed_by(kubectl, &words.split(' ').collect::<Vec<_>>())
}

fn printed_by(mut kubectl: Command, words: &[&str]) -> Result<String> {
    let printed = printed(kubectl.args(words).stderr(Stdio::piped()));
    printed.with_context(|| format!("kubectl {}", words.join(" ")))
}

/// What kubectl prints as JSON.
pub(crate) fn json(words: &str) -> Result<Value> {
    let printed = output(&format!("{words} --output=json"))?;
    serde_json::from_str(&printed).context("what kubectl prints as JSON")
}

/// Runs kubectl for what it does.
pub(crate) fn run(words: &str) -> Result<()> {
    output(words).map(drop)
}

/// Waits for the end of a roll-out, such as that of `kube-system daemonset/kube-proxy`.
pub(crate) fn wait_for_rollout(namespace: &str, workload: &str) -> Result<()> {
    run(&format!("--namespace={namespace} rollout status {workload} --timeout=300s"))
}

/// Makes objects what a manifest says.
pub(crate) fn apply(manifest: &str) -> Result<()> {
    give("apply", manifest)
}

/// Makes objects that are not there yet, which takes half as many requests.
pub(crate) fn create(objects: &[Value]) -> Result<()> {
    give("create", &json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string())
}

fn give(verb: &str, manifest: &str) -> Result<()> {
    let mut kubectl = command_within_limit()?;
    kubectl.args([verb, "--filename=-"]).stderr(Stdio::piped());
    feed(&mut kubectl, manifest.as_bytes()).map(drop).with_context(|| format!("kubectl {verb}"))
}

/// Tries until it works, or for this long.
pub(crate) fn patiently<T>(patience: Duration, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    let started = Instant::now();
    loop {
        match attempt() {
            Err(_) if started.elapsed() < patience => thread::sleep(Duration::from_millis(500)),
            done => return done,
        }
    }
}
