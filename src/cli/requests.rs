//! The commands that are one request to the daemon: `kube-ipvs log-level`, `resync` and `version`.

use std::{fmt::Write, process::ExitCode};

use reconciler::SyncReport;
use serde::Serialize;
use service::{one_line, printable_line};

use super::{
    Ask,
    output::{doubt, print_as},
};
use crate::{
    logging::{Level, verbosity},
    process::Build,
    serve::control::Control as _,
};

/// The directives in use, as `-o json` has them.
#[derive(Debug, Serialize)]
struct Logged {
    /// In `RUST_LOG`'s notation.
    level: String,
    /// The verbosity of `-v` with these directives, if there is one.
    verbosity: Option<i32>,
}

/// Sets the daemon's level if one is given, and prints the level in use.
pub(super) fn log_level(set: Option<Level>, Ask { output, daemon }: &Ask) -> anyhow::Result<ExitCode> {
    let level = daemon.client().log_level(set)?;
    let logged = Logged { verbosity: verbosity(&level), level };
    print_as(output.format, &logged, || level_text(&logged))?;
    Ok(ExitCode::SUCCESS)
}

fn level_text(Logged { level, verbosity }: &Logged) -> String {
    match verbosity {
        Some(0) => "0 (default)\n".to_owned(),
        Some(verbosity) => format!("{verbosity}\n"),
        None => format!("{level}\n"),
    }
}

/// Has the daemon compare and repair everything. A failed operation makes the exit code 1.
pub(super) fn resync(Ask { output, daemon }: &Ask) -> anyhow::Result<ExitCode> {
    let resynced = daemon.client().resync()?;
    doubt(&resynced.troubles);
    print_as(output.format, &resynced, || resync_text(&resynced.report))?;
    Ok(if resynced.report.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn resync_text(report: &SyncReport) -> String {
    let mut text = format!("resynced: {}\n", summary(report));
    for repair in &report.repairs {
        let _ = writeln!(text, "repaired: {}", printable_line(repair));
    }
    for failure in &report.failures {
        let _ = writeln!(text, "failed: {}", printable_line(failure));
    }
    match report.failed.saturating_sub(report.failures.len()) {
        0 => {}
        more => {
            let _ = writeln!(text, "failed: {more} more");
        }
    }
    text
}

/// `12 operations in 0.034 s`, and the number of failures if any.
pub(super) fn summary(report: &SyncReport) -> String {
    let noun = if report.done == 1 { "operation" } else { "operations" };
    let failed = if report.failed == 0 { String::new() } else { format!(", {} failed", report.failed) };
    format!("{} {noun} in {:.3} s{failed}", report.done, report.took.as_secs_f64())
}

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
    print_as(asked.output.format, &versions, || version_text(&versions, unknown))?;
    Ok(ExitCode::SUCCESS)
}

/// The two lines; the second one says why the daemon's version is unknown, if it is.
fn version_text(Versions { this, daemon }: &Versions, unknown: Option<String>) -> String {
    let daemon = daemon.as_ref().map(ToString::to_string).or(unknown).unwrap_or_default();
    format!("kube-ipvs: {this}\ndaemon:    {daemon}\n")
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, time::Duration};

    use reconciler::Trigger;
    use watcher::OperationKind;

    use super::{super::documented_tests::assert_documented, *};
    use crate::serve::control::Resynced;

    #[test]
    fn the_json_of_log_level_is_documented() {
        let logged = |verbosity| Logged { level: "info,reconciler=trace".to_owned(), verbosity };
        assert_documented("log-level", &logged(Some(3)));
        let texts = [Some(0), Some(3), None].map(|verbosity| level_text(&logged(verbosity)));
        assert_eq!(texts, ["0 (default)\n", "3\n", "info,reconciler=trace\n"]);
    }

    fn report(done: usize, failures: &[&str], failed: usize) -> SyncReport {
        SyncReport {
            full: true,
            done,
            failures: failures.iter().map(|&failure| failure.to_owned()).collect(),
            failed,
            took: Duration::from_millis(34),
            ..SyncReport::empty(Trigger::Forced)
        }
    }

    #[test]
    fn the_json_of_resync_is_documented() {
        let report = SyncReport {
            done_by_kind: BTreeMap::from([(OperationKind::AddVirtualServer, 1), (OperationKind::Bind, 2)]),
            first_done: vec!["bind 10.96.0.10".to_owned()],
            repairs: vec!["bind 10.96.0.10".to_owned()],
            ..report(3, &["add virtual server TCP 10.96.0.10:80 mh: no such scheduler (ENOENT)"], 1)
        };
        let troubles =
            vec!["API server: services not watched for 42 s: the server is out of reach".to_owned()];
        assert_documented("resync", &Resynced { report, troubles });
    }

    #[test]
    fn a_resync_says_how_much_was_done_and_how_long_it_took() {
        assert_eq!(resync_text(&report(12, &[], 0)), "resynced: 12 operations in 0.034 s\n");
        assert_eq!(resync_text(&report(1, &[], 0)), "resynced: 1 operation in 0.034 s\n");
    }

    #[test]
    fn what_failed_is_listed_and_what_is_not_listed_is_counted() {
        assert_eq!(
            resync_text(&report(3, &["no scheduler xx"], 4)),
            "resynced: 3 operations in 0.034 s, 4 failed\nfailed: no scheduler xx\nfailed: 3 more\n"
        );
    }

    fn build(version: &str, revision: Option<&str>) -> Build {
        let revision = revision.map(ToOwned::to_owned);
        Build { version: version.to_owned(), revision, platform: "linux/amd64".to_owned() }
    }

    #[test]
    fn the_json_of_version_is_documented() {
        let daemon = Some(build("0.1.0", None));
        assert_documented("version", &Versions { this: build("0.2.0", Some("842c14a2f1b7")), daemon });
    }

    #[test]
    fn both_versions_are_printed_or_why_one_is_not() {
        let this = || build("0.2.0", Some("842c14a2f1b7"));
        let both = Versions { this: this(), daemon: Some(build("0.1.0", None)) };
        assert_eq!(
            version_text(&both, None),
            "kube-ipvs: 0.2.0, linux/amd64, revision 842c14a2f1b7\ndaemon:    0.1.0, linux/amd64\n"
        );
        let alone = Versions { this: this(), daemon: None };
        assert_eq!(
            version_text(&alone, Some("no daemon answers".to_owned())),
            "kube-ipvs: 0.2.0, linux/amd64, revision 842c14a2f1b7\ndaemon:    no daemon answers\n"
        );
    }
}
