//! `kube-ipvs run`.

use std::process::ExitCode;

use tracing::warn;

use super::Flags;
use crate::{config::Settings, daemon, logging};

/// Runs the daemon until it is told to stop.
pub(super) fn run(flags: &Flags) -> anyhow::Result<ExitCode> {
    let settings = Settings::resolve(flags)?;
    logging::start(settings.log);
    for warning in &settings.warnings {
        warn!("{warning}");
    }
    daemon::run(settings)?;
    Ok(ExitCode::SUCCESS)
}
