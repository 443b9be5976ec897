//! kubectl, as the cluster's administrator.

use std::ffi::OsStr;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use guest::go::clients;
use serde_json::{Value, json};

use crate::network;
use crate::state::{self, Cluster};

/// kubectl, without arguments yet.
pub fn command(_: &Cluster) -> Result<Command> {
    let mut kubectl = network::inside(clients::MODULE.built()?.join("kubectl"));
    kubectl.env("KUBECONFIG", state::kubeconfig());
    Ok(kubectl)
}

/// What kubectl prints; its error says what it was called with and what it complained of.
pub fn output<S: AsRef<OsStr>>(cluster: &Cluster, arguments: &[S]) -> Result<String> {
    let output =
        command(cluster)?.args(arguments).stdin(Stdio::null()).output().context("starting kubectl")?;
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
pub fn json<S: AsRef<OsStr>>(cluster: &Cluster, arguments: &[S]) -> Result<Value> {
    let words = arguments.iter().map(AsRef::as_ref).chain([OsStr::new("--output=json")]);
    let printed = output(cluster, &words.collect::<Vec<_>>())?;
    serde_json::from_str(&printed).context("what kubectl prints as JSON")
}

/// Makes objects what they are given as.
pub(crate) fn apply(cluster: &Cluster, objects: &[Value]) -> Result<()> {
    give(cluster, "apply", objects)
}

/// Makes objects that are not there yet, which takes half as many requests.
pub(crate) fn create(cluster: &Cluster, objects: &[Value]) -> Result<()> {
    give(cluster, "create", objects)
}

fn give(cluster: &Cluster, verb: &str, objects: &[Value]) -> Result<()> {
    let mut kubectl = command(cluster)?;
    kubectl.args([verb, "--filename=-"]).stdin(Stdio::piped()).stdout(Stdio::null());
    let mut child = kubectl.spawn().context("starting kubectl")?;
    let stdin = child.stdin.take().context("a child without stdin")?;
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    serde_json::to_writer(stdin, &list).context("writing to kubectl")?;
    ensure!(child.wait().context("waiting for kubectl")?.success(), "kubectl {verb} failed");
    Ok(())
}

/// Tries until it works, or for this long.
pub fn patiently<T>(patience: Duration, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    let started = Instant::now();
    loop {
        match attempt() {
            Err(_) if started.elapsed() < patience => thread::sleep(Duration::from_millis(500)),
            done => return done,
        }
    }
}
