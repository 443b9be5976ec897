//! `cargo xtask man`: the manual pages, made from the definition of the command line.

use std::{path::Path, process::ExitCode};

use anyhow::{Result, ensure};
use guest::workspace;

/// Writes the manual pages to `target/man`.
pub(crate) fn run() -> Result<ExitCode> {
    let directory = workspace::root().join("target/man");
    write(&directory)?;
    println!("man {}", directory.join("kube-ipvs.1").display());
    Ok(ExitCode::SUCCESS)
}

/// Writes the manual pages to a directory, which is made if there is none.
pub(crate) fn write(directory: &Path) -> Result<()> {
    let mut make = workspace::cargo();
    make.args(["run", "--quiet", "--package", "kube-ipvs", "--example", "man", "--"]).arg(directory);
    ensure!(make.status()?.success(), "the manual pages cannot be made");
    Ok(())
}
