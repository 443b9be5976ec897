//! A whole Kubernetes cluster on one machine, and what is tried in it.
//!
//! Each node is a User Mode Linux guest with a disk of its own: the distribution's newest suite with systemd,
//! containerd and runc, and Kubernetes' own programs, built from source. kubeadm makes a cluster of them, as on any
//! machines. Their router and the clients outside are network namespaces; nothing in them reaches any other network.
//!
//! - [`disk`]: what is on a node before kubeadm comes, with the [`images`](disk::images) of all containers;
//! - [`network`] and [`node`]: the guests, how they are connected, and commands on them;
//! - [`network::pods`]: what connects the pods;
//! - [`proxy`]: which Service proxy it has;
//! - [`up`]: all of this in order.

mod disk;
mod documents;
mod e2e;
mod kubectl;
mod load;
mod load_balancer;
mod network;
mod node;
mod proxy;
mod scenario;
mod soak;
mod state;
mod up;
mod web;

use std::{ffi::OsString, os::unix::process::CommandExt as _, process::ExitCode};

use anyhow::{Context as _, Result};
use clap::{Parser, Subcommand};

use crate::state::Cluster;

/// A whole Kubernetes cluster on this machine.
#[derive(Parser)]
#[command(bin_name = "cargo xtask cluster")]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Start a cluster.
    Up(up::Args),
    /// Stop the cluster and remove everything that it made.
    Down,
    /// Show the cluster's nodes and pods.
    Status,
    /// Run scenarios that need a whole cluster.
    Try(scenario::Args),
    /// Run Kubernetes' own tests in the cluster.
    E2e(e2e::Args),
    /// Repeat Kubernetes' own tests for hours, with faults on one worker.
    Soak(soak::Args),
    /// Send requests to a Service until stdin ends.
    #[command(hide = true)]
    Load(load::Args),
    /// Open a shell on a node, or run a command there.
    Shell {
        /// The node, such as worker-1
        node: String,
        /// The command [default: a shell]
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "CMD")]
        command: Vec<OsString>,
    },
    /// Run kubectl as the cluster's administrator.
    #[command(disable_help_flag = true)]
    Kubectl {
        /// kubectl's arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
        arguments: Vec<OsString>,
    },
}

/// Does what this process's command line says.
pub fn run() -> ExitCode {
    let done = match CommandLine::parse().command {
        Command::Up(args) => up::run(&args),
        Command::Down => up::down(),
        Command::Status => up::status(),
        Command::Try(args) => scenario::run(&args),
        Command::E2e(args) => e2e::run(&args),
        Command::Soak(args) => soak::run(&args),
        Command::Load(args) => load::run(&args),
        Command::Shell { node, command } => shell(&node, &command),
        Command::Kubectl { arguments } => kubectl(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cluster: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn shell(node: &str, command: &[OsString]) -> Result<()> {
    let cluster = Cluster::open()?;
    Err(cluster.node(node)?.ssh().args(command).exec()).context("starting ssh")
}

fn kubectl(arguments: &[OsString]) -> Result<()> {
    // Without a cluster this says so.
    drop(Cluster::open()?);
    Err(kubectl::command()?.args(arguments).exec()).context("starting kubectl")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on must stop")]

    use guest::workspace::{self, Shown};

    use super::*;

    #[test]
    fn every_cluster_command_that_a_document_shows_parses() {
        let mut seen = 0;
        for Shown { page, mut words } in workspace::shown_commands().unwrap() {
            match words.first().map(String::as_str) {
                Some("cluster") => drop(words.remove(0)),
                Some("e2e") => {}
                _ => continue,
            }
            seen += 1;
            words.insert(0, "cluster".to_owned());
            if let Err(error) = CommandLine::try_parse_from(&words) {
                // `cargo xtask cluster` alone stands for its commands.
                let is_help = !error.use_stderr() || words.len() == 1;
                assert!(is_help, "{}: {words:?}: {error}", page.display());
            }
        }
        assert!(seen > 8, "{seen}");
    }
}
