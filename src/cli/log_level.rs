//! `kube-ipvs log-level`.

use std::process::ExitCode;

use serde::Serialize;

use super::{Ask, output::print_as};
use crate::{logging::Level, serve::control::Control as _};

/// The directives in use, as `-o json` has them.
#[derive(Debug, Serialize)]
struct Logged {
    /// In `RUST_LOG`'s notation.
    level: String,
}

/// Sets the daemon's level if one is given, and prints the level in use.
pub(super) fn log_level(set: Option<Level>, Ask { output, daemon }: &Ask) -> anyhow::Result<ExitCode> {
    let logged = Logged { level: daemon.client().log_level(set)? };
    print_as(output.format, &logged, || format!("{}\n", logged.level))?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::{super::documented::assert_documented, *};

    #[test]
    fn its_json_is_documented() {
        assert_documented("log-level", &Logged { level: "info,reconciler=trace".to_owned() });
    }
}
