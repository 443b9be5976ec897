//! `kube-ipvs status`.

#[cfg(test)]
pub(super) mod sample;
mod text;

use std::{path::Path, process::ExitCode};

use anyhow::bail;

use super::{
    Format,
    output::{print, print_json},
    question::ask,
};
use crate::serve::control::{Request, Response};

/// Prints the status of the daemon.
pub(super) fn status(socket: &Path, format: Format) -> anyhow::Result<ExitCode> {
    let Response::Status(status) = ask(socket, &Request::Status)? else {
        bail!("the daemon answered another question");
    };
    match format {
        Format::Text => print(&text::text(&status))?,
        Format::Json => print_json(&status)?,
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::{
        super::documented::{assert_documented, pretty},
        sample,
    };

    #[test]
    fn its_json_is_documented() {
        assert_documented("status", &pretty(&sample::status()));
    }
}
