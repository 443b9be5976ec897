//! `cargo xtask api-servers`: the tier api with kube-apiservers of other versions, one after the other, or the tier peer
//! with another kube-proxy too. Each is built from source once, which takes minutes: it is for before a release.

use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, ensure};
use guest::{
    KernelArgs,
    go::control_plane::{ALL, ApiServer},
    needs::{self, Task},
};

/// The command line of `cargo xtask api-servers`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// These minor versions, such as 1.24 [default: all that tests/api-servers has]
    #[arg(value_name = "VERSION", value_parser = minor_versions())]
    versions: Vec<String>,
    /// The tests of the tier peer instead, beside the kube-proxy of that version: of 1.36 there is one
    #[arg(long)]
    peer: bool,
}

fn minor_versions() -> Vec<&'static str> {
    ALL.iter().map(ApiServer::minor).collect()
}

/// Runs the tests with each, and then prints which versions passed. Fails if one did not.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let is_chosen = |server: &&ApiServer| match &*args.versions {
        [] => !args.peer || server.has_kube_proxy(),
        versions => versions.iter().any(|it| it == server.minor()),
    };
    needs::ensure(&[Task::ApiServers], || KernelArgs::default().prefer_for_tests())?;
    let mut outcomes = Vec::new();
    for server in ALL.iter().filter(is_chosen) {
        let version = server.version()?;
        ensure!(!args.peer || server.has_kube_proxy(), "tests/api-servers has no kube-proxy {version}");
        println!("\n=== kube-apiserver {version}");
        outcomes.push((version, tested(server, args)?));
    }
    println!();
    for (version, passed) in &outcomes {
        println!("kube-apiserver {version}: {}", if *passed { "passed" } else { "failed" });
    }
    let all_passed = outcomes.iter().all(|(_, passed)| *passed);
    Ok(if all_passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whether the tests pass with it.
fn tested(server: &ApiServer, args: &Args) -> Result<bool> {
    let assets = server.assets()?;
    let status = Command::new(std::env::current_exe().context("the path of this program")?)
        .args(["test", "--tier", if args.peer { "peer" } else { "api" }])
        .env("KUBEBUILDER_ASSETS", assets.path())
        .status()
        .context("starting cargo xtask test")?;
    Ok(status.success())
}
