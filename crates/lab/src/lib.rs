//! What is done with kube-ipvs beside testing it: shown, measured, disturbed, and run for long.
//!
//! Each command has a half that runs on the host. It builds the programs and runs this program again as root on a
//! kernel that has IPVS, which [`guest`] starts; there the other half does the work. It is a program of its own, so
//! that a change of kube-ipvs does not rebuild what starts the tests.

pub mod bench;
pub mod chaos;
pub mod soak;

mod control_plane;
mod demo;
mod inside;
mod pictures;
mod scale;
mod stage;
pub mod statistics;
mod table;
mod used;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Shows, measures and disturbs kube-ipvs.
#[derive(Parser)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show the main job on a real kernel, step by step.
    Demo(demo::Args),
    /// Measure kube-ipvs beside the kernel's own limit and the real kube-proxy.
    Bench(bench::Args),
    /// Simulate what many nodes do to one Service.
    Scale(scale::Args),
    /// Inject faults under load, and check that everything heals.
    Chaos(chaos::Args),
    /// Run an hour of churn under load, in which nothing may be lost or grow.
    Soak(soak::Args),
    /// Draw the pictures of the documents.
    Pictures(pictures::Args),
    /// Start an API server for a command.
    ControlPlane(control_plane::Args),
}

/// Does what this process's command line says.
pub fn run() -> ExitCode {
    let done = match CommandLine::parse().command {
        Command::Demo(args) => demo::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Scale(args) => scale::run(&args),
        Command::Chaos(args) => chaos::run(&args),
        Command::Soak(args) => soak::run(&args),
        Command::Pictures(args) => pictures::run(&args),
        Command::ControlPlane(args) => control_plane::run(&args),
    };
    done.unwrap_or_else(|error| {
        eprintln!("lab: {error:#}");
        ExitCode::FAILURE
    })
}

#[cfg(test)]
mod tests {
    use guest::workspace::{self, Shown};

    use super::*;

    #[test]
    fn every_lab_command_that_a_document_shows_parses() {
        let ours = ["demo", "bench", "scale", "chaos", "soak", "pictures"];
        let mut seen = 0;
        for Shown { page, mut words } in workspace::shown_commands().unwrap() {
            if !ours.contains(&words[0].as_str()) {
                continue;
            }
            seen += 1;
            words.insert(0, "lab".to_owned());
            if let Err(error) = CommandLine::try_parse_from(&words) {
                assert!(!error.use_stderr(), "{}: {words:?}: {error}", page.display());
            }
        }
        assert!(seen > 10, "{seen}");
    }
}
