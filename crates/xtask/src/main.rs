//! The project's own commands: `cargo xtask test`, `api-servers`, `fuzz`, `vm -- CMD`, `image`, `package`, `man`,
//! `book`, `release`; `demo`, `bench`, `scale`, `chaos`, `soak` and `pictures`, which the program `lab` does; `cluster` and `e2e`, which the program `cluster` does.
//!
//! They start things. [`guest`] has the kernels to test on and the programs that are needed.

mod api_servers;
mod book;
mod elsewhere;
mod fuzz;
mod gate;
mod image;
mod notices;
mod package;
mod plugin;
mod provenance;
mod release;
mod test;
mod usr_share;
mod vm;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use guest::{
    Kernel,
    needs::{self, Task},
};

/// The project's own commands.
#[derive(Parser)]
#[command(bin_name = "cargo xtask")]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show the main job on a real kernel, step by step.
    Demo(elsewhere::Args),
    /// Measure kube-ipvs beside the kernel's own limit and the real kube-proxy.
    Bench(elsewhere::Args),
    /// Simulate what many nodes do to one Service.
    Scale(elsewhere::Args),
    /// Inject faults under load, and check that everything heals.
    Chaos(elsewhere::Args),
    /// Run an hour of churn under load; fail if a connection is lost or the daemon grows.
    Soak(elsewhere::Args),
    /// Start a whole Kubernetes cluster on this machine, use it, stop it.
    Cluster(elsewhere::Args),
    /// Run Kubernetes' own tests in that cluster.
    E2e(elsewhere::Args),
    /// Fuzz every decoder.
    Fuzz(fuzz::Args),
    /// Run the tests, tier by tier, and print the counts.
    Test(test::Args),
    /// Run the tests that need an API server with other versions of Kubernetes.
    ApiServers(api_servers::Args),
    /// Run a command as root in the test kernel.
    Vm(vm::Args),
    /// Build the container image and its SBOM.
    Image(image::Platforms),
    /// Build packages for Debian, Fedora and related distributions.
    Package(image::Platforms),
    /// Write the manual pages.
    Man,
    /// Draw the pictures of the documents.
    Pictures(elsewhere::Args),
    /// Build a site of the documents.
    Book,
    /// Build everything that a release publishes.
    Release(release::Args),
}

fn main() -> ExitCode {
    let done = match CommandLine::parse().command {
        Command::Demo(args) => args.lab("demo"),
        Command::Bench(args) => args.lab("bench"),
        Command::Scale(args) => args.lab("scale"),
        Command::Chaos(args) => args.lab("chaos"),
        Command::Soak(args) => args.lab("soak"),
        Command::Pictures(args) => args.lab("pictures"),
        Command::Cluster(args) => args.cluster(&[]),
        Command::E2e(args) => args.cluster(&["e2e"]),
        Command::Fuzz(args) => with(Task::Fuzz, || fuzz::run(&args)),
        Command::Test(args) => Ok(test::run(&args)),
        Command::ApiServers(args) => api_servers::run(&args),
        Command::Vm(args) => vm::run(&args),
        Command::Image(platforms) => with(Task::Image, || image::run(&platforms)),
        Command::Package(platforms) => with(Task::Package, || package::run(&platforms)),
        Command::Man => usr_share::man(),
        Command::Book => book::run(),
        Command::Release(args) => with(Task::Release, || release::run(&args)),
    };
    done.unwrap_or_else(|error| {
        eprintln!("xtask: {error:#}");
        ExitCode::FAILURE
    })
}

/// Runs a command that needs no test kernel, once everything is there that it takes.
fn with(task: Task, run: impl FnOnce() -> Result<ExitCode>) -> Result<ExitCode> {
    needs::ensure(&[task], || Kernel::Host)?;
    run()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on must stop")]

    use guest::workspace::{self, Shown};

    use super::*;

    /// What `bench` and the other commands of `lab` are given is tried there.
    #[test]
    fn every_command_that_a_document_shows_is_one_of_ours() {
        let shown = workspace::shown_commands().unwrap();
        assert!(shown.len() > 30, "{}", shown.len());
        for Shown { page, mut words } in shown {
            words.insert(0, "cargo xtask".to_owned());
            if let Err(error) = CommandLine::try_parse_from(&words) {
                assert!(!error.use_stderr(), "{}: {words:?}: {error}", page.display());
            }
        }
    }
}
