//! This workspace and its compiler, what cargo builds from it or from crates.io, and the commands that its documents
//! show.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::{
    cache, files,
    programs::{printed, run},
};

/// The repository's root directory.
pub fn root() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.ancestors().nth(2).unwrap_or(own).to_owned()
}

/// The cargo that runs this, at the workspace's root.
pub fn cargo() -> Command {
    at_root(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// A program that itself runs cargo, at the workspace's root.
pub fn at_root(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.current_dir(root());
    // What `cargo run` has set for this process is not for the next cargo: build scripts that look at it (ring's)
    // would run again, here and outside, in turns.
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            command.env_remove(name.as_ref());
        }
    }
    command
}

/// With the features that the tests are built with, so that nothing compiles twice.
const AS_FOR_TESTS: [&str; 3] = ["build", "--workspace", "--all-features"];

/// Builds the daemon and returns where it is.
pub fn daemon() -> anyhow::Result<PathBuf> {
    program(&[&AS_FOR_TESTS[..], &["--bin", "kube-ipvs"]].concat())
}

/// Builds the program that measures and disturbs the daemon, and returns where it is.
pub fn lab() -> anyhow::Result<PathBuf> {
    program(&[&AS_FOR_TESTS[..], &["--bin", "lab"]].concat())
}

/// Builds the program that starts a whole cluster, and returns where it is.
pub fn cluster() -> anyhow::Result<PathBuf> {
    program(&[&AS_FOR_TESTS[..], &["--bin", "cluster"]].concat())
}

/// Builds `lab` as one that may be measured, and returns where it is.
pub fn release_lab() -> anyhow::Result<PathBuf> {
    program(&["build", "--release", "--package", "kube-ipvs-lab", "--bin", "lab"])
}

/// Builds what counts instructions, as one that may be measured, and returns where it is.
pub fn pure_path() -> anyhow::Result<PathBuf> {
    program(&["bench", "--no-run", "--package", "kube-ipvs-watcher", "--bench", "pure_path"])
}

/// Builds one program.
fn program(args: &[&str]) -> anyhow::Result<PathBuf> {
    let mut executables = executables(cargo().args(args))?;
    let (_, last) =
        executables.pop().with_context(|| format!("cargo {} built no program", args.join(" ")))?;
    Ok(last)
}

/// Runs a cargo that builds, with its diagnostics on stderr: the programs, and the names that they have in Cargo.toml.
pub(crate) fn executables(cargo: &mut Command) -> anyhow::Result<Vec<(String, PathBuf)>> {
    let built = printed(cargo.arg("--message-format=json-render-diagnostics"))?;
    let messages = built.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let artifacts = messages.filter(|message| string(message, "/reason") == Some("compiler-artifact"));
    let executables = artifacts.filter_map(|artifact| {
        Some((string(&artifact, "/target/name")?.to_owned(), string(&artifact, "/executable")?.into()))
    });
    Ok(executables.collect())
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

/// The output of `rustc --version`: "rustc 1.90.0 (1159e78c4 2025-09-14)".
pub fn compiler_version() -> Result<String> {
    Ok(printed(Command::new("rustc").arg("--version").current_dir(root()))?.trim().to_owned())
}

/// Whether it is the version in `rust-toolchain.toml`. Without rustup, which reads that file, it may be another.
pub fn compiler_is_pinned() -> Result<bool> {
    let text = files::read(&root().join("rust-toolchain.toml"))?;
    let pinned = text.lines().find_map(|line| line.strip_prefix("channel = \"")?.strip_suffix('"'));
    Ok(compiler_version()?.split(' ').nth(1) == Some(pinned.context("rust-toolchain.toml has no channel")?))
}

/// A program on crates.io, at the version that we use.
pub struct CargoTool {
    /// The crate, and the program.
    pub name: &'static str,
    /// The version, in full.
    pub version: &'static str,
    /// What `cargo install` is called with beside.
    pub arguments: &'static [&'static str],
}

impl CargoTool {
    /// Where it is. Cargo installs it once, to the user's cache, for all clones.
    pub fn installed(&self) -> anyhow::Result<PathBuf> {
        let Self { name, version, arguments } = self;
        let directory = cache::directory(&format!("{name}-{version}"))?;
        let program = directory.join("bin").join(name);
        if !program.is_file() {
            eprintln!("xtask: compiling {name} {version} to {}: some minutes, once", directory.display());
            let mut install = cargo();
            install.args(["install", "--debug", "--locked", name, "--version", version]).args(*arguments);
            run(install.arg("--root").arg(&directory)).with_context(|| format!("cargo install {name}"))?;
        }
        Ok(program)
    }
}

/// A command in a document.
#[derive(Debug)]
pub struct Shown {
    /// The document.
    pub page: PathBuf,
    /// The words after `cargo xtask`, without quotes and comments.
    pub words: Vec<String>,
}

/// Every `cargo xtask` command in README.md, CONTRIBUTING.md, tests/README.md and docs.
pub fn shown_commands() -> Result<Vec<Shown>> {
    let root = root();
    let mut pages = Vec::new();
    for directory in ["docs", "docs/install", "docs/evidence"] {
        pages.extend(files::list(&root.join(directory))?);
    }
    pages.extend(["README.md", "CONTRIBUTING.md", "tests/README.md"].map(|page| root.join(page)));
    pages.retain(|page| page.extension().is_some_and(|extension| extension == "md"));
    let mut shown = Vec::new();
    for page in pages {
        shown.extend(words(&files::read(&page)?).map(|words| Shown { page: page.clone(), words }));
    }
    Ok(shown)
}

/// A word with a colon names a fault of `chaos`, as in docs/evidence/faults.md.
fn words(text: &str) -> impl Iterator<Item = Vec<String>> {
    let commands = text.split("cargo xtask ").skip(1);
    let commands = commands.map(|rest| rest.split(['`', '#', '\n', '"']).next().unwrap_or_default());
    let commands = commands.filter(|command| !command.contains(": "));
    commands
        .map(|command| command.split_whitespace().map(|word| word.trim_matches('\'').to_owned()).collect())
}
