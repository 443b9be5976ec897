//! Prints a report as text: a line for each finding, its verdict first, and a last line that counts.

use std::fmt::Write;

use service::printable_line;

use crate::preflight::{Finding, Report, Verdict};

pub(super) fn text(report: &Report) -> String {
    let mut text = String::new();
    for finding in &report.findings {
        let _ = writeln!(text, "{}", printable_line(&line(finding)));
    }
    let count = |verdict| report.findings.iter().filter(|finding| finding.verdict == verdict).count();
    let (problems, warnings) = (count(Verdict::Problem), count(Verdict::Warning));
    let _ = writeln!(text, "problems: {problems}, warnings: {warnings}; nothing was changed");
    text
}

fn line(Finding { verdict, subject, what, remedy }: &Finding) -> String {
    let remedy = remedy.as_ref().map_or(String::new(), |remedy| format!("; remedy: {remedy}"));
    format!("{:<8} {subject}: {what}{remedy}", verdict.word())
}

#[cfg(test)]
mod tests {
    use super::{super::tests::report, *};

    #[test]
    fn each_finding_is_a_line_that_begins_with_its_verdict_and_the_last_line_counts() {
        let expected = "\
ok       kernel: Linux 6.12.0
note     net.ipv4.ip_forward: 0, set to 1 at the start
warning  TCP 192.0.2.7:6443: no Service made this virtual server (foreign): the first sync removes it; remedy: --foreign-virtual-servers=keep
problem  scheduler mh: the kernel has no module ip_vs_mh; remedy: install the package with the modules of this kernel
problems: 1, warnings: 1; nothing was changed
";
        assert_eq!(text(&report()), expected);
    }
}
