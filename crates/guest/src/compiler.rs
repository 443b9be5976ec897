//! The compiler that builds the workspace.

use std::{fs, process::Command};

use anyhow::{Context as _, Result};

use crate::workspace;

/// The output of `rustc --version`: "rustc 1.90.0 (1159e78c4 2025-09-14)".
pub fn version() -> Result<String> {
    let mut rustc = Command::new("rustc");
    let output = rustc.arg("--version").current_dir(workspace::root()).output().context("starting rustc")?;
    Ok(String::from_utf8(output.stdout).context("what rustc prints")?.trim().to_owned())
}

/// Whether it is the version in `rust-toolchain.toml`. Without rustup, which reads that file, it may be another.
pub fn is_the_pinned_one() -> Result<bool> {
    let file = "rust-toolchain.toml";
    let text = fs::read_to_string(workspace::root().join(file)).context(file)?;
    let pinned = text.lines().find_map(|line| line.strip_prefix("channel = \"")?.strip_suffix('"'));
    Ok(version()?.split(' ').nth(1) == Some(pinned.context("rust-toolchain.toml has no channel")?))
}
