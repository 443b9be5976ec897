//! The kernel parameters that the start would set.

use ipvs::Timeouts;

use super::Finding;
use crate::node::sysctl::Change;

const SUBJECT: &str = "kernel parameters";

/// One finding for each parameter with another value, and one for the timeouts of IPVS, of which 0 is no change.
pub(super) fn check(changes: &[Change], timeouts: Option<Timeouts>) -> Vec<Finding> {
    let said = |Change { key, found, wanted }: &Change| {
        Finding::note(*key, format!("{found}, set to {wanted} at the start"))
    };
    let mut findings: Vec<_> = changes.iter().map(said).collect();
    findings.extend(timeouts.map(|Timeouts { tcp, tcp_fin, udp, .. }| {
        let said = [("TCP", tcp), ("TCP after FIN", tcp_fin), ("UDP", udp)];
        let said = said.iter().filter(|(_, seconds)| *seconds > 0);
        let said: Vec<_> = said.map(|(of, seconds)| format!("{of} {seconds} s")).collect();
        Finding::note("timeouts of IPVS", format!("set at the start: {}", said.join(", ")))
    }));
    if findings.is_empty() {
        findings.push(Finding::ok(SUBJECT, "each has its value"));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::{super::Verdict, *};

    fn change(key: &'static str, found: &str, wanted: &str) -> Change {
        Change { key, found: found.to_owned(), wanted: wanted.to_owned() }
    }

    #[test]
    fn what_is_set_is_said_with_both_values() {
        let forward = change("net.ipv4.ip_forward", "0", "1");
        let findings = check(&[forward], Some(Timeouts::UNCHANGED.tcp(7_200).udp(60)));
        let said: Vec<_> =
            findings.iter().map(|it| (it.verdict, format!("{}: {}", it.subject, it.what))).collect();
        let expected = [
            (Verdict::Note, "net.ipv4.ip_forward: 0, set to 1 at the start"),
            (Verdict::Note, "timeouts of IPVS: set at the start: TCP 7200 s, UDP 60 s"),
        ];
        assert_eq!(said, expected.map(|(verdict, text)| (verdict, text.to_owned())));
    }

    #[test]
    fn right_values_are_one_line() {
        assert_eq!(check(&[], None), [Finding::ok("kernel parameters", "each has its value")]);
    }
}
