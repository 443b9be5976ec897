//! Notices that IPVS' own table of connections takes much memory.
//!
//! A node whose clients are what they seem has fewer entries than conntrack, but for the templates of session affinity: one for
//! each client and Service, for as long as `sessionAffinityConfig` says.

use super::{Advice, Cause, Severity};

/// Compares the number of entries with how many the table may have. `part` is the number with which it has its part of
/// the machine's memory, `limit` the kernel's own, if it has one. Half of either is much.
pub(super) fn check(entries: u64, part: u64, limit: Option<u64>) -> Option<Advice> {
    let most = limit.map_or(part, |limit| limit.min(part));
    let what = match limit {
        Some(limit) => format!("at {limit} new ones are refused (net.ipv4.vs.conn_max)"),
        None => "it has no limit but the node's memory".to_owned(),
    };
    (entries >= most / 2).then(|| Advice {
        severity: Severity::Warning,
        cause: Cause::IpvsTable,
        subject: "IPVS".to_owned(),
        what: format!("the table of connections of IPVS is large: {what}"),
        remedy: "`sysctl -w net.ipv4.vs.drop_entry=3` deletes, within a minute or two, entries that were never established, and \
                 some idle connections of few packets: set it back to 1 as soon as the flood is over, kube-ipvs does not. \
                 `kube-ipvs list -c` names the clients and Services: a client that floods is to be stopped before it comes to \
                 the node, and session affinity keeps an entry of each client for timeoutSeconds, 3 hours unless the Service says \
                 less"
            .to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_limit_or_of_its_part_of_memory_is_a_warning() {
        let advised = |entries, limit| check(entries, 3_000_000, limit).map(|advice| advice.what);
        assert_eq!(advised(1_499_999, None), None);
        let words = "the table of connections of IPVS is large: it has no limit but the node's memory";
        assert_eq!(advised(1_500_000, None).as_deref(), Some(words));
        assert_eq!(advised(250_000, Some(1 << 30)), None);
        let words = "the table of connections of IPVS is large: at 500000 new ones are refused (net.ipv4.vs.conn_max)";
        assert_eq!(advised(250_000, Some(500_000)).as_deref(), Some(words));
        assert_eq!(advised(400_000, Some(500_000)).as_deref(), Some(words), "the same, whatever the count");
    }
}
