//! The commands that are programs of their own, which are built first and then run: `lab` is `cargo xtask demo`, `bench`,
//! `scale`, `chaos`, `soak` and `pictures`, `cluster` is `cargo xtask cluster` and `e2e`. They read their command lines.
//!
//! They need most of the workspace or a Kubernetes client. What starts the tests does not wait for them.

use std::{
    ffi::OsString,
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Command, ExitCode},
};

use anyhow::{Context as _, Result};
use guest::workspace;

/// What the program is given as it is, `--help` among it.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    arguments: Vec<OsString>,
}

impl Args {
    /// Becomes `lab`, under the name that its help shows.
    pub(crate) fn lab(&self, command: &str) -> Result<ExitCode> {
        // The simulation computes for minutes.
        let computes = command == "scale" && self.arguments.iter().any(|argument| argument == "simulation");
        let program = if computes { workspace::release_lab()? } else { workspace::lab()? };
        self.become_program(&program, &[command])
    }

    /// Becomes `cluster`.
    pub(crate) fn cluster(&self, command: &[&str]) -> Result<ExitCode> {
        self.become_program(&workspace::cluster()?, command)
    }

    fn become_program(&self, program: &Path, command: &[&str]) -> Result<ExitCode> {
        let mut process = Command::new(program);
        process.arg0("cargo xtask").args(command).args(&self.arguments);
        Err(process.exec()).with_context(|| format!("starting {}", program.display()))
    }
}
