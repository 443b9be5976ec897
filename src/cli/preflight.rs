//! `kube-ipvs preflight`.

use std::{ffi::OsString, fmt::Write as _, process::ExitCode};

use service::{one_line, printable_line};

use super::{
    Flags,
    output::{self, print_as},
    question::daemon_flags,
};
use crate::{
    config::Settings,
    finding::{Finding, Severity},
    preflight::{Report, preflight as check},
};

/// The exit codes, for scripts.
const WARNING: u8 = 1;
const PROBLEM: u8 = 2;

/// The subject of findings about the configuration.
const SUBJECT: &str = "configuration";

/// What is checked.
#[derive(clap::Args, Debug)]
pub(super) struct Preflight {
    #[command(flatten)]
    output: output::Args,
    /// The flags that the daemon will have, all of them, as in `-- --config=FILE --hostname-override=NAME`.
    /// Without them only the kernel, the firewall and other proxies are checked
    #[arg(last = true, value_name = "FLAGS")]
    daemon_flags: Vec<OsString>,
}

/// Checks the node, and changes nothing.
pub(super) fn preflight(asked: &Preflight) -> anyhow::Result<ExitCode> {
    let report = match asked.daemon_flags.as_slice() {
        [] => check(None),
        flags => of_daemon(&daemon_flags(flags)?),
    };
    print_as(asked.output.format, &report, || text(&report))?;
    Ok(exit_code(&report))
}

/// The report for a daemon with these flags. One whose configuration cannot be used does not start, which is
/// the first finding. Another mode of kube-proxy is only a warning: the operator changes it together with the proxy.
fn of_daemon(flags: &Flags) -> Report {
    let error = match Settings::resolve(flags) {
        Ok(settings) => return check(Some(&settings)),
        Err(error) => error,
    };
    let why = one_line(&error);
    match Settings::resolve_as_ipvs(flags) {
        Ok(settings) if error.is_mode_of_kube_proxy() => check(Some(&settings)).after(
            Finding::warning(SUBJECT, format!("{why}; this report is for mode ipvs"))
                .remedy("set mode: ipvs when docs/migration.md#from-iptables-or-nftables-mode says so"),
        ),
        _ => check(None).after(Finding::problem(SUBJECT, why)),
    }
}

fn exit_code(report: &Report) -> ExitCode {
    match report.verdict {
        Severity::Ok | Severity::Note => ExitCode::SUCCESS,
        Severity::Warning => ExitCode::from(WARNING),
        Severity::Problem => ExitCode::from(PROBLEM),
    }
}

/// A line for each finding, its severity first, and a last line that counts.
fn text(report: &Report) -> String {
    let mut text = String::new();
    for finding in &report.findings {
        let _ = writeln!(
            text,
            "{}",
            printable_line(&format!("{:<8} {}: {finding}", finding.severity.name(), finding.subject))
        );
    }
    let count = |severity| report.findings.iter().filter(|finding| finding.severity == severity).count();
    let (problems, warnings) = (count(Severity::Problem), count(Severity::Warning));
    let _ = writeln!(text, "problems: {problems}, warnings: {warnings}; nothing was changed");
    text
}

#[cfg(test)]
mod tests {
    use super::{super::documented_tests::assert_documented, *};

    /// A report with a finding of each verdict.
    fn report() -> Report {
        let findings = vec![
            Finding::ok("kernel", "Linux 6.12.0"),
            Finding::note("net.ipv4.ip_forward", "0, set to 1 at the start"),
            Finding::warning(
                "TCP 192.0.2.7:6443",
                "this virtual server belongs to no Service (foreign): the first sync removes it",
            )
            .remedy("--foreign-virtual-servers=keep"),
            Finding::problem("scheduler mh", "the kernel has no module ip_vs_mh")
                .remedy("install the package with the modules of this kernel"),
        ];
        Report::new(Some("worker-1".to_owned()), findings)
    }

    #[test]
    fn its_json_is_documented() {
        assert_documented("preflight", &report());
    }

    #[test]
    fn exit_code_is_that_of_the_worst_finding() {
        let mut report = report();
        let mut codes = Vec::new();
        while !report.findings.is_empty() {
            report = Report::new(None, report.findings);
            codes.push(exit_code(&report));
            report.findings.pop();
        }
        assert_eq!(codes, [2, 1, 0, 0].map(ExitCode::from));
    }

    #[test]
    fn each_finding_is_a_line_that_begins_with_its_verdict_and_the_last_line_counts() {
        let expected = "\
ok       kernel: Linux 6.12.0
note     net.ipv4.ip_forward: 0, set to 1 at the start
warning  TCP 192.0.2.7:6443: this virtual server belongs to no Service (foreign): the first sync removes it; remedy: --foreign-virtual-servers=keep
problem  scheduler mh: the kernel has no module ip_vs_mh; remedy: install the package with the modules of this kernel
problems: 1, warnings: 1; nothing was changed
";
        assert_eq!(text(&report()), expected);
    }
}
