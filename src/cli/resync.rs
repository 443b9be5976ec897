//! `kube-ipvs resync`.

use std::{fmt::Write, process::ExitCode};

use reconciler::SyncReport;
use service::printable_line;

use super::{
    Ask,
    output::{doubt, print_as},
};
use crate::serve::control::Control as _;

/// Has the daemon compare and repair everything. A failed operation makes the exit code 1.
pub(super) fn resync(Ask { output, daemon }: &Ask) -> anyhow::Result<ExitCode> {
    let resynced = daemon.client().resync()?;
    doubt(&resynced.troubles);
    print_as(output.format, &resynced, || text(&resynced.report))?;
    Ok(if resynced.report.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn text(report: &SyncReport) -> String {
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

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, time::Duration};

    use reconciler::Trigger;
    use watcher::OperationKind;

    use super::{super::documented::assert_documented, *};
    use crate::serve::control::Resynced;

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
    fn its_json_is_documented() {
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
        assert_eq!(text(&report(12, &[], 0)), "resynced: 12 operations in 0.034 s\n");
        assert_eq!(text(&report(1, &[], 0)), "resynced: 1 operation in 0.034 s\n");
    }

    #[test]
    fn what_failed_is_listed_and_what_is_not_listed_is_counted() {
        assert_eq!(
            text(&report(3, &["no scheduler xx"], 4)),
            "resynced: 3 operations in 0.034 s, 4 failed\nfailed: no scheduler xx\nfailed: 3 more\n"
        );
    }
}
