//! `kube-ipvs version`.

use std::{fmt, process::ExitCode};

use serde::Serialize;
use service::one_line;

use super::{Ask, output::print_as};
use crate::{serve::control::Control as _, version::Build};

/// This program, and the daemon.
#[derive(Serialize)]
struct Versions {
    #[serde(flatten)]
    this: Build,
    /// `None` if none answers.
    daemon: Option<Build>,
}

/// Prints the version of this program, and of the daemon if one answers.
pub(super) fn version(asked: &Ask) -> anyhow::Result<ExitCode> {
    let daemon = asked.daemon.silent_client().version();
    let unknown = daemon.as_ref().err().map(|error| one_line(error));
    let versions = Versions { this: Build::this(), daemon: daemon.ok() };
    print_as(asked.output.format, &versions, || text(&versions, unknown))?;
    Ok(ExitCode::SUCCESS)
}

/// The two lines; the second one says why the daemon's version is unknown, if it is.
fn text(Versions { this, daemon }: &Versions, unknown: Option<String>) -> String {
    let daemon = daemon.as_ref().map(|daemon| Line(daemon).to_string()).or(unknown).unwrap_or_default();
    format!("kube-ipvs: {}\ndaemon:    {daemon}\n", Line(this))
}

struct Line<'a>(&'a Build);

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Build { version, revision, platform } = self.0;
        write!(f, "{version}, {platform}")?;
        revision.as_ref().map_or(Ok(()), |revision| write!(f, ", revision {revision}"))
    }
}

#[cfg(test)]
mod tests {
    use super::{super::documented::assert_documented, *};

    fn build(version: &str, revision: Option<&str>) -> Build {
        let revision = revision.map(ToOwned::to_owned);
        Build { version: version.to_owned(), revision, platform: "linux/amd64".to_owned() }
    }

    #[test]
    fn its_json_is_documented() {
        let daemon = Some(build("0.1.0", None));
        assert_documented("version", &Versions { this: build("0.2.0", Some("842c14a2f1b7")), daemon });
    }

    #[test]
    fn both_versions_are_told_or_why_one_is_not() {
        let this = || build("0.2.0", Some("842c14a2f1b7"));
        let both = Versions { this: this(), daemon: Some(build("0.1.0", None)) };
        assert_eq!(
            text(&both, None),
            "kube-ipvs: 0.2.0, linux/amd64, revision 842c14a2f1b7\ndaemon:    0.1.0, linux/amd64\n"
        );
        let alone = Versions { this: this(), daemon: None };
        assert_eq!(
            text(&alone, Some("no daemon answers".to_owned())),
            "kube-ipvs: 0.2.0, linux/amd64, revision 842c14a2f1b7\ndaemon:    no daemon answers\n"
        );
    }
}
