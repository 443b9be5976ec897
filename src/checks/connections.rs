//! The tables of connections, conntrack's and IPVS': how full they are, and how long they keep an idle
//! connection.

use ipvs::Timeouts;

use super::{facts::Facts, while_running::WhileRunning};
use crate::{
    finding::Finding,
    node::sysctl::{
        Sysctl, TableSize,
        conntrack::{COUNT, MAX, TCP_ESTABLISHED},
    },
};

/// What conntrack calls the timeouts that [`Timeouts`] has, in the same order.
const OF_CONNTRACK: [&str; 3] = [
    TCP_ESTABLISHED,
    "net.netfilter.nf_conntrack_tcp_timeout_fin_wait",
    "net.netfilter.nf_conntrack_udp_timeout_stream",
];

/// The connections that each timeout applies to.
const OF: [&str; 3] = ["TCP", "half-closed TCP", "UDP"];

/// What sets them.
const FLAGS: [&str; 3] = ["--ipvs-tcp-timeout", "--ipvs-tcpfin-timeout", "--ipvs-udp-timeout"];

/// Whether IPVS forgets connections before conntrack does.
///
/// IPVS forgets a TCP connection after 15 minutes without a packet, conntrack after a day or five. What comes
/// after that is not a SYN, so IPVS lets it pass, to the VIP, which is an address of this node: the node knows
/// no such connection and resets it. A UDP exchange is sent to whichever real server is next.
///
/// A kernel is like this by default, and most programs never notice: nothing is broken. Flags and fields of
/// the configuration file change it where a program does notice.
pub(super) fn timeouts(facts: &Facts) -> Vec<Finding> {
    let compare = |ipvs| sooner(ipvs, OF_CONNTRACK.map(|key| facts.number(key)));
    facts.ipvs_timeouts.and_then(compare).into_iter().collect()
}

/// Compares the timeouts in seconds; those of conntrack, in the order of [`OF_CONNTRACK`], as far as they are
/// known.
fn sooner(ipvs: Timeouts, conntrack: [Option<u32>; 3]) -> Option<Finding> {
    let seconds = [ipvs.tcp, ipvs.tcp_fin, ipvs.udp];
    let (mut sooner, mut longer) = (Vec::new(), Vec::new());
    for (((of, flag), ipvs), conntrack) in OF.iter().zip(FLAGS).zip(seconds).zip(conntrack) {
        if let Some(conntrack) = conntrack.filter(|conntrack| ipvs < *conntrack) {
            sooner.push(format!("{of} after {ipvs} s (conntrack: {conntrack} s)"));
            longer.push(format!("{flag}={conntrack}s"));
        }
    }
    let what = format!(
        "IPVS forgets idle connections sooner than conntrack does; packets sent after that are reset or go to \
         another pod: {}",
        sooner.join(", ")
    );
    let remedy = format!("send keepalives more often, or set {}", longer.join(" "));
    (!sooner.is_empty()).then(|| Finding::note("IPVS", what).remedy(remedy))
}

/// The percentage from which conntrack's table counts as full: a periodic check seldom sees the last entry
/// taken.
const NEARLY_FULL: u64 = 95;

/// Whether conntrack's table is full. The kernel drops every packet that would need another entry, and
/// reports it only in its own log (`nf_conntrack: table full, dropping packet`).
pub(super) fn conntrack_full(node: &mut WhileRunning) -> Vec<Finding> {
    let sysctl = &node.facts.sysctl;
    let (Some(count), Some(most)) = (sysctl.number(COUNT), sysctl.number(MAX)) else { return Vec::new() };
    full(count, most, sysctl.table_size(&node.parameters.conntrack)).into_iter().collect()
}

/// Compares the two numbers. `most` is 0 where there is no limit. `size` says which setting decides the limit
/// at a start.
fn full(count: u32, most: u32, size: TableSize) -> Option<Finding> {
    let full = most > 0 && u64::from(count) * 100 >= u64::from(most) * NEARLY_FULL;
    let what = "conntrack's table is full or nearly full: new connections are dropped, or will be";
    full.then(|| Finding::warning(MAX, what).remedy(larger(most.saturating_mul(2), size)))
}

/// How to give conntrack's table so many entries, now and after the node's next start. No start of ours makes
/// it smaller.
fn larger(entries: u32, size: TableSize) -> String {
    let on_node = format!("sysctl -w {MAX}={entries} on the node, and the same in its /etc/sysctl.d");
    match size.settings_for(entries) {
        // With a configuration file the flag has no effect.
        Some([fields, flags]) => {
            format!(
                "{on_node} or {fields} in the KubeProxyConfiguration ({flags} without a configuration file)"
            )
        }
        None => on_node,
    }
}

/// Whether IPVS' own table takes much memory.
///
/// It usually has fewer entries than conntrack's, but for the templates of session affinity: one for each
/// client and Service, for as long as `sessionAffinityConfig` says. Forged sources make more.
pub(super) fn ipvs_table(node: &mut WhileRunning) -> Vec<Finding> {
    let sysctl: &Sysctl = &node.facts.sysctl;
    let (Some(entries), Some(part)) = (sysctl.ipvs_entries(), sysctl.most_entries()) else {
        return Vec::new();
    };
    large(entries, part, sysctl.conn_max()).into_iter().collect()
}

/// Compares the number of entries with how many the table may have. `part` is the number with which it has
/// its part of the machine's memory, `limit` the kernel's own, if it has one. Half of either is much.
fn large(entries: u64, part: u64, limit: Option<u64>) -> Option<Finding> {
    let most = limit.map_or(part, |limit| limit.min(part));
    let what = match limit {
        Some(limit) => format!("new connections are refused at {limit} entries (net.ipv4.vs.conn_max)"),
        None => "only the node's memory limits it".to_owned(),
    };
    let remedy = "`kube-ipvs list -c` shows the clients and Services: stop a client that floods before its packets \
                  reach the node; session affinity keeps an entry of each client for timeoutSeconds, 3 hours by default. \
                  `sysctl -w net.ipv4.vs.drop_entry=3` deletes, within a minute or two, entries that were never \
                  established and some idle connections of few packets: set it back to 1 when the flood is over, \
                  kube-ipvs does not";
    (entries >= most / 2)
        .then(|| Finding::warning("IPVS", format!("IPVS' connection table is large: {what}")).remedy(remedy))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Severity;

    const USUAL: Timeouts = Timeouts::UNCHANGED.tcp(900).tcp_fin(120).udp(300);

    fn differing(ipvs: Timeouts, conntrack: [Option<u32>; 3]) -> Option<(String, String)> {
        sooner(ipvs, conntrack).map(|found| (found.what, found.remedy.unwrap()))
    }

    #[test]
    fn a_kernel_as_it_comes_forgets_tcp_connections_and_that_is_a_note_and_no_warning() {
        let found = sooner(USUAL, [Some(432_000), Some(120), Some(120)]).unwrap();
        assert_eq!(found.severity, Severity::Note);
        assert!(found.what.ends_with(": TCP after 900 s (conntrack: 432000 s)"), "{}", found.what);
        assert_eq!(found.remedy.unwrap(), "send keepalives more often, or set --ipvs-tcp-timeout=432000s");
    }

    #[test]
    fn each_timeout_is_compared_with_its_own_of_conntrack() {
        let (what, remedy) = differing(USUAL, [Some(86_400), Some(3_600), Some(301)]).unwrap();
        assert!(
            what.ends_with(
                ": TCP after 900 s (conntrack: 86400 s), half-closed TCP after 120 s (conntrack: 3600 s), \
                 UDP after 300 s (conntrack: 301 s)"
            ),
            "{what}"
        );
        assert_eq!(
            remedy,
            "send keepalives more often, or set --ipvs-tcp-timeout=86400s --ipvs-tcpfin-timeout=3600s \
             --ipvs-udp-timeout=301s"
        );
    }

    #[test]
    fn timeouts_that_are_as_long_or_longer_or_unknown_are_not_mentioned() {
        assert_eq!(differing(USUAL, [Some(900), Some(120), Some(300)]), None);
        assert_eq!(differing(USUAL, [None; 3]), None, "conntrack is not loaded");
    }

    #[test]
    fn a_table_that_is_full_or_nearly_so_is_a_warning_with_twice_its_size_as_remedy() {
        let size = TableSize::Entries(262_144);
        let found = full(262_144, 262_144, size).unwrap();
        assert_eq!(found.severity, Severity::Warning);
        assert_eq!(
            found.remedy.as_deref().unwrap(),
            "sysctl -w net.netfilter.nf_conntrack_max=524288 on the node, and the same in its /etc/sysctl.d or \
             conntrack.min: 524288 in the KubeProxyConfiguration (--conntrack-min=524288 without a configuration file)"
        );
        assert_eq!(full(250_000, 262_144, size), Some(found), "the same finding, whatever the count");
    }

    #[test]
    fn the_remedy_is_what_outlives_a_start_on_this_machine() {
        let remedy = |size| full(1_048_576, 1_048_576, size).unwrap().remedy.unwrap();
        assert_eq!(
            remedy(TableSize::Capped),
            "sysctl -w net.netfilter.nf_conntrack_max=2097152 on the node, and the same in its /etc/sysctl.d or \
             conntrack.maxPerCore: 1 and conntrack.min: 2097152 in the KubeProxyConfiguration \
             (--conntrack-max-per-core=1 --conntrack-min=2097152 without a configuration file)"
        );
        assert_eq!(
            remedy(TableSize::Host),
            "sysctl -w net.netfilter.nf_conntrack_max=2097152 on the node, and the same in its /etc/sysctl.d"
        );
    }

    #[test]
    fn a_table_with_room_or_without_a_limit_is_fine() {
        assert_eq!(full(240_000, 262_144, TableSize::Capped), None);
        assert_eq!(full(0, 262_144, TableSize::Capped), None);
        assert_eq!(full(1_000_000, 0, TableSize::Capped), None);
    }

    #[test]
    fn half_of_the_limit_or_of_its_part_of_memory_is_a_warning() {
        let what = |entries, limit| large(entries, 3_000_000, limit).map(|found| found.what);
        assert_eq!(what(1_499_999, None), None);
        let words = "IPVS' connection table is large: only the node's memory limits it";
        assert_eq!(what(1_500_000, None).as_deref(), Some(words));
        assert_eq!(what(250_000, Some(1 << 30)), None);
        let words = "IPVS' connection table is large: new connections are refused at 500000 entries (net.ipv4.vs.conn_max)";
        assert_eq!(what(250_000, Some(500_000)).as_deref(), Some(words));
        assert_eq!(what(400_000, Some(500_000)).as_deref(), Some(words), "the same, whatever the count");
    }
}
