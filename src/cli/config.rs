//! `kube-ipvs config`.

mod convert;

use std::process::ExitCode;

use clap::Subcommand;

/// What to do with a configuration.
#[derive(Debug, Subcommand)]
pub(super) enum Config {
    /// Print the configuration file of our DaemonSet that does what kube-proxy's configuration does
    Convert(convert::Convert),
}

/// Does it.
pub(super) fn config(asked: &Config) -> anyhow::Result<ExitCode> {
    match asked {
        Config::Convert(asked) => convert::convert(asked),
    }
}
