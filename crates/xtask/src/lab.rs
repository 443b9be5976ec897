//! `cargo xtask demo`, `bench`, `scale`, `chaos` and `soak`: the program `lab` is built, and does them.
//!
//! It needs most of the workspace and a Kubernetes client. What starts the tests does not wait for them.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result};
use guest::workspace;

/// What `lab` is given as it is, `--help` among it.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    arguments: Vec<OsString>,
}

/// Becomes `lab`, under the name that its help shows.
pub(crate) fn run(command: &str, args: &Args) -> Result<ExitCode> {
    let mut lab = Command::new(workspace::lab()?);
    Err(lab.arg0("cargo xtask").arg(command).args(&args.arguments).exec()).context("starting lab")
}
