//! `lab control-plane`: one API server for a command, or for the process that started this one.

use std::{
    ffi::OsString,
    io,
    process::{Command, ExitCode},
};

use anyhow::{Context as _, Result};
use guest::go::control_plane;
use testkit::control_plane::ControlPlane;

/// The command line of `lab control-plane`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// One more name or address in the API server's certificate; may be given several times
    #[arg(long = "san", value_name = "NAME")]
    sans: Vec<String>,
    /// The command and its arguments: KUBE_IPVS_TEST_API names the directory of its kubeconfigs, and its exit code is
    /// ours. Without one, that directory is printed, and the API server runs until stdin is closed
    #[arg(trailing_var_arg = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Starts etcd and kube-apiserver, which are stopped when the command has ended, or stdin.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let server =
        ControlPlane::start(&control_plane::ensure()?, &args.sans).context("starting an API server")?;
    let Some((program, arguments)) = args.command.split_first() else {
        println!("{}", server.directory().display());
        io::copy(&mut io::stdin(), &mut io::sink()).context("waiting for the end of stdin")?;
        return Ok(ExitCode::SUCCESS);
    };
    let mut command = Command::new(program);
    command.args(arguments).env("KUBE_IPVS_TEST_API", server.directory());
    let status = command.status().with_context(|| format!("starting {}", program.display()))?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

/// In a guest: the API server that [`guest::api_server::equip`] has provided, or a new one.
pub(crate) fn inside() -> Result<ControlPlane> {
    ControlPlane::from_env_or_start()?.context("neither KUBE_IPVS_TEST_API nor KUBEBUILDER_ASSETS is set")
}
