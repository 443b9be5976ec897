//! What programs of their own do: `cargo xtask demo`, `bench`, `scale`, `chaos`, `soak`, `pictures` and `dashboard` the
//! program `lab`, `cargo xtask cluster` and `e2e` the program `cluster`. They are built, and do it.
//!
//! They need most of the workspace or a Kubernetes client. What starts the tests does not wait for them.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result};
use guest::workspace;

/// What the program is given as it is, `--help` among it.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    arguments: Vec<OsString>,
}

/// Becomes `lab`, under the name that its help shows.
pub(crate) fn lab(command: &str, args: &Args) -> Result<ExitCode> {
    become_program(&workspace::lab()?, &[command], args)
}

/// Becomes `cluster`.
pub(crate) fn cluster(command: &[&str], args: &Args) -> Result<ExitCode> {
    become_program(&workspace::cluster()?, command, args)
}

fn become_program(program: &Path, command: &[&str], args: &Args) -> Result<ExitCode> {
    let mut process = Command::new(program);
    process.arg0("cargo xtask").args(command).args(&args.arguments);
    Err(process.exec()).with_context(|| format!("starting {}", program.display()))
}
