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
}

/// Simulates ejection, spill-over and slow starts, and prints tables.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    simulation::measure(args.nodes)?;
    Ok(ExitCode::SUCCESS)
}
