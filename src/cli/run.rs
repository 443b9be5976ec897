//! `kube-ipvs run`.

use std::process::ExitCode;

use tracing::warn;

use super::{Flags, cleanup};
use crate::{
    config::Settings,
    daemon,
    logging::Log,
    node::{init, limits},
};

/// Runs the daemon until a signal ends it, or carries out the flag that asks for something else.
pub(super) fn run(flags: &Flags) -> anyhow::Result<ExitCode> {
    if flags.cleanup && flags.write_config_to.is_empty() {
        return cleanup::by_flag(flags);
    }
    let settings = Settings::resolve(flags)?;
    let log = Log::start(settings.log, &settings.node_name);
    for warning in &settings.warnings {
        warn!("{warning}");
    }
    if !flags.write_config_to.is_empty() {
        settings.effective.write_to(flags.write_config_to.as_ref())?;
    } else if flags.init_only {
        init::kernel_parameters(&settings)?;
    } else {
        limits::raise_open_files();
        daemon::run(&settings, log.level_handle(), || Settings::resolve(flags))?;
    }
    Ok(ExitCode::SUCCESS)
}
