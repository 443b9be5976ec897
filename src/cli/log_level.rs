//! `kube-ipvs log-level`.

use std::{path::Path, process::ExitCode};

use anyhow::bail;
use serde::Serialize;

use super::{Format, output::print_as, question::ask};
use crate::{
    logging::Level,
    serve::control::{Request, Response},
};

/// The directives in use, as `-o json` has them.
#[derive(Debug, Serialize)]
struct Logged {
    /// In `RUST_LOG`'s notation.
    level: String,
}

/// Sets the daemon's level if one is given, and prints the level in use.
pub(super) fn log_level(socket: &Path, set: Option<Level>, format: Format) -> anyhow::Result<ExitCode> {
    let Response::LogLevel(level) = ask(socket, &Request::LogLevel { set })? else {
        bail!("the daemon answered another question");
    };
    let logged = Logged { level };
    print_as(format, &logged, || format!("{}\n", logged.level))?;
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
