//! `cargo xtask dashboard`: the picture of the Grafana dashboard in `docs/monitoring.md`.
//!
//! In the test kernel two nodes serve Services with traffic while one thing after the other goes wrong, and their
//! metrics are recorded. On the host a real Prometheus answers the panels of `manifests/monitoring/dashboard.json` from
//! these pages, and Grafana's own components draw the answers.

mod cluster;
mod drawing;
mod pages;
mod prometheus;
mod recording;
mod story;
mod traffic;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::stage::Programs;
use guest::KernelArgs;
use guest::workspace;

/// How much longer a recording may take than its set time.
const AROUND: Duration = Duration::from_secs(300);

/// The command line of `cargo xtask dashboard`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    kernel: KernelArgs,
    /// How many minutes to record
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=60))]
    minutes: u32,
    /// Draw what was recorded the last time
    #[arg(long)]
    again: bool,
    /// Record here: what the test kernel runs
    #[arg(long, hide = true, value_name = "JSON")]
    inside: Option<String>,
}

/// The plan for the guest.
#[derive(Debug, Serialize, Deserialize)]
struct Plan {
    seconds: u32,
}

/// Records, asks and draws.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let pages = directory().join("pages");
    if let Some(plan) = &args.inside {
        recording::record(&serde_json::from_str(plan)?, &pages)?;
        return Ok(ExitCode::SUCCESS);
    }
    // What is missing is reported before ten minutes have passed.
    let programs = drawing::Programs::ensure(&directory())?;
    if !args.again {
        let plan = Plan { seconds: args.minutes * 60 };
        let kernel = args.kernel.choose_for_tests();
        kernel.prepare()?;
        if pages.exists() {
            fs::remove_dir_all(&pages).with_context(|| pages.display().to_string())?;
        }
        let timeout = Duration::from_secs(plan.seconds.into()) + AROUND;
        Programs::unoptimised()?.boot(&kernel, "dashboard", &plan, &pages, timeout)?;
    }
    let drawn = prometheus::answers(&pages, &directory())?;
    programs.draw(&drawn, &workspace::root().join("docs/pictures/dashboard.png"))?;
    Ok(ExitCode::SUCCESS)
}

fn directory() -> PathBuf {
    workspace::root().join("target/dashboard")
}
