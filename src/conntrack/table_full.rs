//! Notices a full table of conntrack. The kernel drops every packet that would need another entry, and says so only
//! in its own log (`nf_conntrack: table full, dropping packet`).

use super::settings::TableSize;
use crate::node::advice::{Advice, Cause, Severity};

/// The parameters with the current and the maximum number of entries in this network namespace.
pub(crate) const COUNT: &str = "net.netfilter.nf_conntrack_count";
pub(crate) const MOST: &str = "net.netfilter.nf_conntrack_max";

/// The percentage from which the table counts as full: a periodic check seldom sees the last entry taken.
const NEARLY_FULL: u64 = 95;

/// Compares the two numbers. `most` is 0 where there is no limit. `size` says which setting decides the limit at a
/// start.
pub(crate) fn check(count: u32, most: u32, size: TableSize) -> Option<Advice> {
    let full = most > 0 && u64::from(count) * 100 >= u64::from(most) * NEARLY_FULL;
    full.then(|| Advice {
        severity: Severity::Warning,
        cause: Cause::ConntrackFull,
        subject: MOST.to_owned(),
        what: "the table of conntrack is full, or nearly so: new connections are dropped, or will be"
            .to_owned(),
        remedy: remedy(most.saturating_mul(2), size),
    })
}

/// How to give the table so many entries, now and after the node's next start. No start of ours makes it smaller.
fn remedy(entries: u32, size: TableSize) -> String {
    let on_node = format!("sysctl -w {MOST}={entries} on the node, and the same in its /etc/sysctl.d");
    match size.settings_for(entries) {
        // With a configuration file the flag has no effect.
        Some([fields, flags]) => {
            format!("{on_node} or {fields} in the KubeProxyConfiguration ({flags} where there is no file)")
        }
        None => on_node,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_that_is_full_or_nearly_so_is_a_warning_with_twice_its_size_as_remedy() {
        let size = TableSize::Entries(262_144);
        let advice = check(262_144, 262_144, size).unwrap();
        assert_eq!(advice.severity, Severity::Warning);
        assert_eq!(
            advice.remedy,
            "sysctl -w net.netfilter.nf_conntrack_max=524288 on the node, and the same in its /etc/sysctl.d or \
             conntrack.min: 524288 in the KubeProxyConfiguration (--conntrack-min=524288 where there is no file)"
        );
        assert_eq!(check(250_000, 262_144, size), Some(advice), "the same advice, whatever the count");
    }

    #[test]
    fn the_remedy_is_what_outlives_a_start_on_this_machine() {
        let remedy = |size| check(1_048_576, 1_048_576, size).unwrap().remedy;
        assert_eq!(
            remedy(TableSize::Capped),
            "sysctl -w net.netfilter.nf_conntrack_max=2097152 on the node, and the same in its /etc/sysctl.d or \
             conntrack.maxPerCore: 1 and conntrack.min: 2097152 in the KubeProxyConfiguration \
             (--conntrack-max-per-core=1 --conntrack-min=2097152 where there is no file)"
        );
        assert_eq!(
            remedy(TableSize::Host),
            "sysctl -w net.netfilter.nf_conntrack_max=2097152 on the node, and the same in its /etc/sysctl.d"
        );
    }

    #[test]
    fn a_table_with_room_or_without_a_limit_is_nothing_to_be_told_of() {
        assert_eq!(check(240_000, 262_144, TableSize::Capped), None);
        assert_eq!(check(0, 262_144, TableSize::Capped), None);
        assert_eq!(check(1_000_000, 0, TableSize::Capped), None);
    }
}
