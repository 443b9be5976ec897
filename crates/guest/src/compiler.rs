//! The compiler that builds the workspace.

use std::process::Command;

use anyhow::{Context as _, Result};

use crate::workspace;

/// What `rustc --version` prints: "rustc 1.95.0 (f2d3ce0bd 2026-03-21)".
pub fn version() -> Result<String> {
    let mut rustc = Command::new("rustc");
    let output = rustc.arg("--version").current_dir(workspace::root()).output().context("starting rustc")?;
    Ok(String::from_utf8(output.stdout).context("what rustc prints")?.trim().to_owned())
}
