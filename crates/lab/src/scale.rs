//! `cargo xtask scale`: what many nodes do to one Service, for docs/evidence/scale.md.

mod simulation;

use std::process::ExitCode;

use anyhow::Result;

/// The command line of `cargo xtask scale`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How many nodes there are
    #[arg(long, default_value_t = 5_000)]
    nodes: u32,
    /// What is done
    #[arg(value_enum, value_name = "SUBJECT", default_value_t = Subject::Simulation)]
    subject: Subject,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Subject {
    /// Ejection, spill-over and slow starts of many nodes, in a simulation
    Simulation,
}

/// Simulates, and prints tables.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    match args.subject {
        Subject::Simulation => simulation::measure(args.nodes)?,
    }
    Ok(ExitCode::SUCCESS)
}
