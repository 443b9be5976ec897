//! This workspace and what cargo builds from it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use serde_json::Value;

/// The repository's root directory.
pub fn root() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.ancestors().nth(2).unwrap_or(own).to_owned()
}

/// The cargo that runs this, at the workspace's root.
pub fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root());
    // What `cargo run` tells this program about itself is not for the next cargo: build scripts that
    // look at it (ring's) would run again, here and outside, in turns.
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            cargo.env_remove(name.as_ref());
        }
    }
    cargo
}

/// An integration test that cargo has built.
#[derive(Clone, Debug)]
pub struct TestBinary {
    /// The package's directory and the target: `ipvs/kernel_round_trip`.
    pub name: String,
    /// The package's directory, where cargo would run it.
    pub directory: PathBuf,
    /// The file to run.
    pub executable: PathBuf,
}

/// Builds the daemon and returns where it is.
pub fn daemon() -> anyhow::Result<PathBuf> {
    program(&["build", "--workspace", "--bin", "kube-ipvs"])
}

/// Builds the program that measures and disturbs the daemon, and returns where it is.
pub fn lab() -> anyhow::Result<PathBuf> {
    program(&["build", "--workspace", "--bin", "lab"])
}

/// Builds it as one that may be measured, and returns where it is.
pub fn release_lab() -> anyhow::Result<PathBuf> {
    program(&["build", "--release", "--package", "kube-ipvs-lab", "--bin", "lab"])
}

/// Builds what counts instructions, as one that may be measured, and returns where it is.
pub fn pure_path() -> anyhow::Result<PathBuf> {
    program(&["bench", "--no-run", "--package", "kube-ipvs-watcher", "--bench", "pure_path"])
}

/// Builds one program.
fn program(args: &[&str]) -> anyhow::Result<PathBuf> {
    let artifacts = build(args)?;
    let mut executables = artifacts.iter().filter_map(|artifact| string(artifact, "/executable"));
    executables
        .next_back()
        .map(PathBuf::from)
        .with_context(|| format!("cargo {} built no program", args.join(" ")))
}

/// Builds the integration tests, of whatever package, whose target's name starts with `prefix`.
pub fn test_binaries(prefix: &str) -> anyhow::Result<Vec<TestBinary>> {
    let names = test_targets(prefix)?;
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let mut args = vec!["test", "--workspace", "--no-run"];
    args.extend(names.iter().flat_map(|name| ["--test", name]));
    let artifacts = build(&args)?;
    let mut binaries: Vec<TestBinary> = artifacts.iter().filter_map(test_binary).collect();
    binaries.retain(|binary| names.iter().any(|name| binary.name.ends_with(&format!("/{name}"))));
    binaries.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(binaries)
}

fn test_targets(prefix: &str) -> anyhow::Result<Vec<String>> {
    let output = cargo()
        .args(["metadata", "--no-deps", "--format-version=1"])
        .stderr(Stdio::inherit())
        .output()
        .context("starting cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata failed");
    }
    let metadata: Value = serde_json::from_slice(&output.stdout).context("what cargo metadata says")?;
    let packages = metadata.get("packages").and_then(Value::as_array).into_iter().flatten();
    let targets = packages.filter_map(|package| package.get("targets")?.as_array()).flatten();
    let mut names: Vec<String> = targets
        .filter(|target| string(target, "/kind/0") == Some("test"))
        .filter_map(|target| string(target, "/name"))
        .filter(|name| name.starts_with(prefix))
        .map(str::to_owned)
        .collect();
    names.sort();
    names.dedup();
    Ok(names)
}

/// Runs cargo with its diagnostics on stderr; what it says about each artifact.
fn build(args: &[&str]) -> anyhow::Result<Vec<Value>> {
    let output = cargo()
        .args(args)
        .arg("--message-format=json-render-diagnostics")
        .stderr(Stdio::inherit())
        .output()
        .context("starting cargo")?;
    if !output.status.success() {
        bail!("cargo {} failed", args.join(" "));
    }
    let lines = output.stdout.split(|&byte| byte == b'\n');
    let messages = lines.filter_map(|line| serde_json::from_slice::<Value>(line).ok());
    Ok(messages.filter(|message| string(message, "/reason") == Some("compiler-artifact")).collect())
}

fn test_binary(artifact: &Value) -> Option<TestBinary> {
    if string(artifact, "/target/kind/0") != Some("test") {
        return None;
    }
    let manifest = Path::new(string(artifact, "/manifest_path")?);
    let directory = manifest.parent()?.to_owned();
    let package = if directory == root() { "kube-ipvs" } else { directory.file_name()?.to_str()? };
    Some(TestBinary {
        name: format!("{package}/{}", string(artifact, "/target/name")?),
        executable: string(artifact, "/executable")?.into(),
        directory,
    })
}

fn string<'a>(value: &'a Value, pointer: &str) -> Option<&'a str> {
    value.pointer(pointer).and_then(Value::as_str)
}

/// The file of this program. Where cargo has built it anew since it was started, the kernel appends a word to its name;
/// the new one does the same.
pub fn myself() -> anyhow::Result<PathBuf> {
    let path = std::env::current_exe().context("this program has no file")?;
    let new = path.to_str().and_then(|path| path.strip_suffix(" (deleted)")).map(PathBuf::from);
    Ok(new.unwrap_or(path))
}
