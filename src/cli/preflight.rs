//! `kube-ipvs preflight`.

mod text;

use std::{ffi::OsString, process::ExitCode};

use super::{
    Flags,
    output::{self, print_as},
    question::daemon_flags,
};
use crate::{
    config::Settings,
    preflight::{Report, Verdict, look},
};

/// The exit codes, for scripts.
const WARNING: u8 = 1;
const PROBLEM: u8 = 2;

/// What is looked at.
#[derive(clap::Args, Debug)]
pub(super) struct Preflight {
    #[command(flatten)]
    output: output::Args,
    /// The flags that the daemon will have, all of them, as in `-- --config=FILE --hostname-override=NAME`. Without them
    /// only the kernel, the firewall and other proxies are looked at
    #[arg(last = true, value_name = "FLAGS")]
    daemon_flags: Vec<OsString>,
}

/// Looks at the node, and changes nothing.
pub(super) fn preflight(asked: &Preflight) -> anyhow::Result<ExitCode> {
    let report = match asked.daemon_flags.as_slice() {
        [] => look(None),
        flags => of_daemon(&daemon_flags(flags)?),
    };
    print_as(asked.output.format, &report, || text::text(&report))?;
    Ok(exit_code(&report))
}

/// The report for a daemon with these flags. One whose configuration cannot be used does not start, which is the first of
/// what there is to say.
fn of_daemon(flags: &Flags) -> Report {
    match Settings::resolve(flags) {
        Ok(settings) => look(Some(&settings)),
        Err(error) => look(None).after(&error),
    }
}

fn exit_code(report: &Report) -> ExitCode {
    match report.verdict {
        Verdict::Ok | Verdict::Note => ExitCode::SUCCESS,
        Verdict::Warning => ExitCode::from(WARNING),
        Verdict::Problem => ExitCode::from(PROBLEM),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::documented::assert_documented, *};
    use crate::preflight::Finding;

    /// A report with a finding of each verdict.
    pub(super) fn report() -> Report {
        let finding = |verdict, subject: &str, what: &str, remedy: Option<&str>| Finding {
            verdict,
            subject: subject.to_owned(),
            what: what.to_owned(),
            remedy: remedy.map(str::to_owned),
        };
        let findings = vec![
            finding(Verdict::Ok, "kernel", "Linux 6.12.0", None),
            finding(Verdict::Note, "net.ipv4.ip_forward", "0, set to 1 at the start", None),
            finding(
                Verdict::Warning,
                "TCP 192.0.2.7:6443",
                "no Service made this virtual server (foreign): the first sync removes it",
                Some("--foreign-virtual-servers=keep"),
            ),
            finding(
                Verdict::Problem,
                "scheduler mh",
                "the kernel has no module ip_vs_mh",
                Some("install the package with the modules of this kernel"),
            ),
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
}
