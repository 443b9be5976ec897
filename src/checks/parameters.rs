//! The kernel parameters: those that the start sets, and those that differ afterwards.
//!
//! They are set once, and an administrator's later change stays: `sysctl --system` with an old file in
//! /etc/sysctl.d is enough to end all forwarding, and nothing else would report it.

use ipvs::Timeouts;
use service::one_line;

use super::{BeforeStart, facts::Facts, while_running::WhileRunning};
use crate::{
    config::{KernelParameters, Settings},
    finding::Finding,
    node::{
        requirements,
        sysctl::{Change, Differing, RUN_ESTIMATION, Sysctl, conntrack::TCP_ESTABLISHED},
    },
};

const SUBJECT: &str = "kernel parameters";

/// What the start would set, in this order. Conntrack's parameters can only be read once its module is loaded;
/// otherwise a finding says so.
pub(super) fn changes(settings: &Settings, sysctl: &Sysctl) -> (Vec<Change>, Option<Finding>) {
    let needed = sysctl.to_set(&settings.kernel_parameters).into_iter().map(|(change, _)| change);
    let of_conntrack = sysctl.conntrack_changes(&settings.kernel_parameters.conntrack);
    let unread = of_conntrack.as_ref().err().map(|error| {
        let what = format!("unknown until the module nf_conntrack is loaded: {}", one_line(error));
        Finding::note("conntrack", what)
    });
    let of_conntrack = of_conntrack.unwrap_or_default();
    (needed.chain(sysctl.ipvs_table_changes()).chain(of_conntrack).collect(), unread)
}

/// What the start would set, and what it should find but does not set.
pub(super) fn to_set(node: &mut BeforeStart<'_>) -> Vec<Finding> {
    let Some(settings) = node.settings else { return Vec::new() };
    let mut findings = Vec::from_iter(node.unread_parameters.take());
    findings.extend(node.facts.sysctl.loose_conntrack().filter(|_| node.direct_return()).map(differs));
    if node.kernel.ipvs.is_none() {
        let what = "unknown until the module ip_vs is loaded; the daemon sets those that it needs";
        findings.push(Finding::note("net.ipv4.vs", what));
    }
    let timeouts = settings.ipvs_timeouts.resolve(node.facts.number(TCP_ESTABLISHED));
    let different = |found| requirements::different(found, timeouts);
    let different = node.kernel.ipvs_timeouts.and_then(different);
    findings.extend(set_at_the_start(&node.facts.changes, different));
    findings
}

/// One finding for each parameter with another value, and one for the timeouts of IPVS, of which 0
/// changes nothing.
fn set_at_the_start(changes: &[Change], timeouts: Option<Timeouts>) -> Vec<Finding> {
    let change = |Change { key, found, wanted }: &Change| {
        Finding::note(key, format!("{found}, set to {wanted} at the start"))
    };
    let mut findings: Vec<_> = changes.iter().map(change).collect();
    findings.extend(timeouts.map(|Timeouts { tcp, tcp_fin, udp, .. }| {
        let all = [("TCP", tcp), ("TCP after FIN", tcp_fin), ("UDP", udp)];
        let set = all.iter().filter(|(_, seconds)| *seconds > 0);
        let set: Vec<_> = set.map(|(of, seconds)| format!("{of} {seconds} s")).collect();
        Finding::note("timeouts of IPVS", format!("set at the start: {}", set.join(", ")))
    }));
    if findings.is_empty() {
        findings.push(Finding::ok(SUBJECT, "all have the wanted values"));
    }
    findings
}

/// The parameters that differ from what the daemon has set at its start, or was asked to.
pub(super) fn differing(node: &mut WhileRunning) -> Vec<Finding> {
    let wanted = KernelParameters { direct_return: node.facts.in_use.direct_return, ..node.parameters };
    node.facts.sysctl.differing(&wanted).into_iter().map(differs).collect()
}

fn differs((Change { key, found, wanted }, otherwise): Differing) -> Finding {
    Finding::warning(key, format!("{key} is {found}, wanted {wanted}: {otherwise}"))
        .remedy(format!("sysctl -w {key}={wanted}"))
}

/// Whether IPVS counts what endpoints answer, where that decides about their connections.
pub(super) fn uncounted(facts: &Facts) -> Vec<Finding> {
    let is_off = facts.ejects && facts.number(RUN_ESTIMATION) == Some(0);
    let finding = || {
        let what = format!("endpoints cannot be ejected: IPVS does not count, since {RUN_ESTIMATION} is 0");
        Finding::warning(RUN_ESTIMATION, what).remedy(format!("sysctl -w {RUN_ESTIMATION}=1, or --eject=off"))
    };
    is_off.then(finding).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::finding::Severity;

    #[test]
    fn a_parameter_that_is_not_as_wanted_is_named_with_what_it_means() {
        let finding =
            differs((change("net.ipv4.ip_forward", "0", "1"), "the node forwards nothing to its pods"));
        assert_eq!(
            finding.to_string(),
            "net.ipv4.ip_forward is 0, wanted 1: the node forwards nothing to its pods; \
             remedy: sysctl -w net.ipv4.ip_forward=1"
        );
        assert_eq!((finding.severity, finding.subject.as_str()), (Severity::Warning, "net.ipv4.ip_forward"));
    }

    fn change(key: &'static str, found: &str, wanted: &str) -> Change {
        Change { key, found: found.to_owned(), wanted: wanted.to_owned() }
    }

    #[test]
    fn what_is_set_is_said_with_both_values() {
        let forward = change("net.ipv4.ip_forward", "0", "1");
        let findings = set_at_the_start(&[forward], Some(Timeouts::UNCHANGED.tcp(7_200).udp(60)));
        let said: Vec<_> =
            findings.iter().map(|it| (it.severity, format!("{}: {}", it.subject, it.what))).collect();
        let expected = [
            (Severity::Note, "net.ipv4.ip_forward: 0, set to 1 at the start"),
            (Severity::Note, "timeouts of IPVS: set at the start: TCP 7200 s, UDP 60 s"),
        ];
        assert_eq!(said, expected.map(|(severity, text)| (severity, text.to_owned())));
    }

    #[test]
    fn right_values_are_one_line() {
        assert_eq!(
            set_at_the_start(&[], None),
            [Finding::ok("kernel parameters", "all have the wanted values")]
        );
    }
    #[test]
    fn ejection_without_the_counters_of_ipvs_is_a_warning() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("proc/sys/net/ipv4/vs");
        fs::create_dir_all(&directory).unwrap();
        let found =
            |ejects| uncounted(&Facts { ejects, sysctl: Sysctl::at(root.path()), ..Facts::default() });
        assert_eq!(found(true), [], "before Linux 5.16 IPVS always counts");
        for (value, warns) in [("1", false), ("0", true)] {
            fs::write(directory.join("run_estimation"), value).unwrap();
            assert_eq!(found(false), [], "nothing depends on it");
            assert_eq!(!found(true).is_empty(), warns, "{value}");
        }
        assert_eq!(
            found(true)[0].to_string(),
            "endpoints cannot be ejected: IPVS does not count, since net.ipv4.vs.run_estimation is 0; \
             remedy: sysctl -w net.ipv4.vs.run_estimation=1, or --eject=off"
        );
    }
}
