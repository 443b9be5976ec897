//! kubectl, as the cluster's administrator.

use std::{
    env,
    ffi::OsStr,
    io::BufWriter,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use guest::go::CLIENTS;
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

/// What kubectl prints; its error says what it was called with and what it complained of.
pub(crate) fn output<S: AsRef<OsStr>>(arguments: &[S]) -> Result<String> {
    printed_by(command_within_limit()?, arguments)
}

/// What it prints with the plugins of a directory, which find it on their path too.
pub(crate) fn output_with_plugins(plugins: &Path, arguments: &[&str]) -> Result<String> {
    let mut kubectl = command_within_limit()?;
    let own = program()?.parent().context("kubectl without a directory")?;
    let others = env::var_os("PATH").unwrap_or_default();
    let path = [plugins.to_owned(), own.to_owned()].into_iter().chain(env::split_paths(&others));
    kubectl.env("PATH", env::join_paths(path)?);
    printed_by(kubectl, arguments)
}

fn printed_by<S: AsRef<OsStr>>(mut kubectl: Command, arguments: &[S]) -> Result<String> {
    let output = kubectl.args(arguments).stdin(Stdio::null()).output().context("starting kubectl")?;
    let words: Vec<_> = arguments.iter().map(|word| word.as_ref().to_string_lossy()).collect();
    ensure!(
        output.status.success(),
        "kubectl {}: {}",
        words.join(" "),
        String::from_utf8_lossy(&output.stderr).trim_end()
    );
    String::from_utf8(output.stdout).context("what kubectl prints")
}

/// What kubectl prints as JSON.
pub(crate) fn json<S: AsRef<OsStr>>(arguments: &[S]) -> Result<Value> {
    let words = arguments.iter().map(AsRef::as_ref).chain([OsStr::new("--output=json")]);
    let printed = output(&words.collect::<Vec<_>>())?;
    serde_json::from_str(&printed).context("what kubectl prints as JSON")
}

/// Makes objects what they are given as.
pub(crate) fn apply(objects: &[Value]) -> Result<()> {
    give("apply", objects)
}

/// Makes objects that are not there yet, which takes half as many requests.
pub(crate) fn create(objects: &[Value]) -> Result<()> {
    give("create", objects)
}

fn give(verb: &str, objects: &[Value]) -> Result<()> {
    let mut kubectl = command_within_limit()?;
    kubectl.args([verb, "--filename=-"]).stdin(Stdio::piped()).stdout(Stdio::null());
    let mut child = kubectl.spawn().context("starting kubectl")?;
    let stdin = child.stdin.take().context("a child without stdin")?;
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    serde_json::to_writer(BufWriter::new(stdin), &list).context("writing to kubectl")?;
    let status = child.wait().context("waiting for kubectl")?;
    // timeout(1) says nothing but 124.
    ensure!(status.success(), "kubectl {verb} failed ({status})");
    Ok(())
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
