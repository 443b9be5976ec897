//! Writes the manual pages, one for the program and one for each command: `cargo xtask man`.

use std::{env, fs, path::PathBuf};

use anyhow::Context;

fn main() -> anyhow::Result<()> {
    let directory = PathBuf::from(env::args_os().nth(1).context("where to, as the only argument")?);
    fs::create_dir_all(&directory)?;
    clap_mangen::generate_to(kube_ipvs::cli::command(), &directory)?;
    Ok(())
}
