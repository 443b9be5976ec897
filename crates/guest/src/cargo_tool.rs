//! Cargo's plugins and other programs from crates.io.

use std::path::PathBuf;

use anyhow::{Context as _, ensure};

use crate::{cache, workspace::cargo};

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
            let status = install.arg("--root").arg(&directory).status().context("starting cargo install")?;
            ensure!(status.success(), "cargo install {name} failed");
        }
        Ok(program)
    }
}
