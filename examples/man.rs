//! Writes the manual pages, one for the program under each of its names and one for each command: `cargo xtask man`.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use anyhow::Context;

fn main() -> anyhow::Result<()> {
    write(&PathBuf::from(env::args_os().nth(1).context("where to, as the only argument")?))
}

/// Writes them to a directory, which is made if there is none.
pub(crate) fn write(directory: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(directory)?;
    clap_mangen::generate_to(kube_ipvs::cli::command(), directory)?;
    clap_mangen::generate_to(kubectl_ipvs::command(), directory)?;
    Ok(())
}
