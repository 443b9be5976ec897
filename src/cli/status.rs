//! `kube-ipvs status`.

use std::{fmt::Write, path::Path, process::ExitCode};

use anyhow::bail;
use reconciler::{LastSync, Trigger};

use super::{
    Format,
    output::{print, print_json},
    resync::summary,
};
use crate::{
    advice::Severity,
    control::{Request, Response, Status, ask},
};

/// So many of the last sync's repairs are printed: a flushed ruleset is thousands of them.
const FIRST_REPAIRS: usize = 5;

/// Prints how the daemon stands.
pub(super) fn status(socket: &Path, format: Format) -> anyhow::Result<ExitCode> {
    let Response::Status(status) = ask(socket, &Request::Status)? else {
        bail!("the daemon answered another question");
    };
    match format {
        Format::Text => print(&text(&status))?,
        Format::Json => print_json(&status)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn text(Status { programmed: status, advice }: &Status) -> String {
    let last_sync = match &status.last_sync {
        Some(LastSync { report, age }) => {
            format!("{:.1} s ago, {}: {}", age.as_secs_f64(), cause(report.trigger), summary(report))
        }
        None => "none yet".to_owned(),
    };
    let last_full = status.last_full_sync.as_ref().map_or("none yet".to_owned(), |last| {
        format!("{:.1} s ago; `kube-ipvs resync` reads the kernel now", last.age.as_secs_f64())
    });
    let draining = match status.draining {
        0 => "0".to_owned(),
        some => format!("{some}, the first for {:.0} s", status.longest_drain.as_secs_f64()),
    };
    let mut text = format!(
        "synced:          {}\nvirtual servers: {}\nreal servers:    {}\nVIPs:            {}\n\
         draining:        {draining}\nlast sync:       {last_sync}\nlast full look:  {last_full}\n",
        if status.synced { "yes" } else { "no" },
        status.virtual_servers,
        status.real_servers,
        status.vips,
    );
    if status.scheduler_changes > 0 {
        let _ = writeln!(text, "schedulers:      {} still to be changed", status.scheduler_changes);
    }
    for repair in status.last_sync.iter().flat_map(|last| &last.report.repairs).take(FIRST_REPAIRS) {
        let _ = writeln!(text, "repaired:        {repair}");
    }
    for failure in status.last_sync.iter().flat_map(|last| &last.report.failures) {
        let _ = writeln!(text, "failed:          {failure}");
    }
    for problem in &status.problems {
        let _ = writeln!(text, "problem:         {problem}");
    }
    for advice in advice {
        let _ = match advice.severity {
            Severity::Warning => writeln!(text, "warning:         {advice}"),
            Severity::Note => writeln!(text, "note:            {advice}"),
        };
    }
    text
}

/// Why a sync ran.
fn cause(trigger: Trigger) -> &'static str {
    match trigger {
        Trigger::Start => "at the start",
        Trigger::Change => "after a change",
        Trigger::Period => "for the period",
        Trigger::KernelEvent => "after a change of kube-ipvs0",
        Trigger::TablesChanged => "after a change of our nf_tables tables",
        Trigger::NodeAddresses => "after a change of the node's addresses",
        Trigger::Retry => "after a failure",
        Trigger::Forced => "on request",
        Trigger::Drain => "for draining real servers",
        Trigger::Continue => "for more schedulers",
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use reconciler::Report;

    use super::*;
    use crate::advice::{Advice, Cause};

    #[test]
    fn the_status_reads_at_a_glance() {
        let mut status = reconciler::Status {
            virtual_servers: 12,
            real_servers: 40,
            vips: 6,
            draining: 1,
            longest_drain: Duration::from_millis(61_700),
            problems: vec!["default/web: spec.ports[1] is wrong".to_owned()],
            ..Default::default()
        };
        let text = |status: &reconciler::Status| {
            super::text(&Status { programmed: status.clone(), advice: Vec::new() })
        };
        assert_eq!(
            text(&status),
            "synced:          no\nvirtual servers: 12\nreal servers:    40\nVIPs:            6\n\
             draining:        1, the first for 62 s\nlast sync:       none yet\nlast full look:  none yet\n\
             problem:         default/web: spec.ports[1] is wrong\n"
        );
        status.problems.clear();
        (status.draining, status.longest_drain, status.scheduler_changes) = (0, Duration::ZERO, 240);
        let report = Report {
            done: 2,
            repairs: (1..=6).map(|vip| format!("bind 10.96.0.{vip}")).collect(),
            failures: vec!["no scheduler xx".to_owned()],
            failed: 1,
            took: Duration::from_millis(2),
            ..Report::of_nothing(Trigger::Change)
        };
        status.last_sync = Some(LastSync { report, age: Duration::from_millis(3210) });
        assert!(
            text(&status).ends_with(
                "draining:        0\n\
                 last sync:       3.2 s ago, after a change: 2 operations in 0.002 s, 1 failed\n\
                 last full look:  none yet\n\
                 schedulers:      240 still to be changed\n\
                 repaired:        bind 10.96.0.1\nrepaired:        bind 10.96.0.2\n\
                 repaired:        bind 10.96.0.3\nrepaired:        bind 10.96.0.4\n\
                 repaired:        bind 10.96.0.5\n\
                 failed:          no scheduler xx\n"
            ),
            "{}",
            text(&status)
        );
    }

    #[test]
    fn advice_about_the_node_comes_last_with_its_remedy() {
        let advice = |severity, what: &str| Advice {
            severity,
            cause: Cause::HostFirewall,
            subject: "ip filter INPUT".to_owned(),
            what: what.to_owned(),
            remedy: "open it".to_owned(),
        };
        let advice = vec![advice(Severity::Warning, "it drops"), advice(Severity::Note, "it forgets")];
        let programmed = reconciler::Status { problems: vec!["a".to_owned()], ..Default::default() };
        let text = text(&Status { programmed, advice });
        let expected = "problem:         a
warning:         it drops; remedy: open it
\
             note:            it forgets; remedy: open it\n";
        assert!(text.ends_with(expected), "{text}");
    }
}
