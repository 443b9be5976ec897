//! The kernel parameters that the start would set.

use ipvs::Timeouts;

use super::Finding;
use crate::node::sysctl::Change;

const SUBJECT: &str = "kernel parameters";

/// What would be set, and by which fields or flags a parameter that is made smaller would stay.
pub(super) struct Parameter {
    pub(super) change: Change,
    pub(super) lowered_but_for: Option<[String; 2]>,
}

/// One finding for each parameter with another value, and one for the timeouts of IPVS, of which 0 is no change.
pub(super) fn check(parameters: Vec<Parameter>, timeouts: Option<Timeouts>) -> Vec<Finding> {
    let mut findings: Vec<_> = parameters.into_iter().map(set).collect();
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

fn set(Parameter { change: Change { key, found, wanted }, lowered_but_for }: Parameter) -> Finding {
    match lowered_but_for {
        None => Finding::note(key, format!("{found}, set to {wanted} at the start")),
        Some([fields, flags]) => Finding::warning(key, format!("{found}, lowered to {wanted} at the start"))
            .remedy(format!("{fields}, or {flags} where there is no file")),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Verdict, *};

    fn change(key: &'static str, found: &str, wanted: &str) -> Change {
        Change { key, found: found.to_owned(), wanted: wanted.to_owned() }
    }

    #[test]
    fn what_is_set_is_said_with_both_values_and_what_is_lowered_is_a_warning() {
        let forward = change("net.ipv4.ip_forward", "0", "1");
        let table = change("net.netfilter.nf_conntrack_max", "262144", "131072");
        let keep = ["conntrack.min: 262144".to_owned(), "--conntrack-min=262144".to_owned()];
        let parameters = vec![
            Parameter { change: forward, lowered_but_for: None },
            Parameter { change: table, lowered_but_for: Some(keep) },
        ];
        let findings = check(parameters, Some(Timeouts::UNCHANGED.tcp(7_200).udp(60)));
        let said: Vec<_> =
            findings.iter().map(|it| (it.verdict, format!("{}: {}", it.subject, it.what))).collect();
        let expected = [
            (Verdict::Note, "net.ipv4.ip_forward: 0, set to 1 at the start"),
            (Verdict::Warning, "net.netfilter.nf_conntrack_max: 262144, lowered to 131072 at the start"),
            (Verdict::Note, "timeouts of IPVS: set at the start: TCP 7200 s, UDP 60 s"),
        ];
        assert_eq!(said, expected.map(|(verdict, text)| (verdict, text.to_owned())));
        let remedy = findings[1].remedy.as_deref();
        assert_eq!(remedy, Some("conntrack.min: 262144, or --conntrack-min=262144 where there is no file"));
    }

    #[test]
    fn right_values_are_one_line() {
        assert_eq!(check(Vec::new(), None), [Finding::ok("kernel parameters", "each has its value")]);
    }
}
