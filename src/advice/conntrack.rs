//! A table of conntrack that is full: the kernel drops whatever would need another entry, and says so in its own log
//! alone (`nf_conntrack: table full, dropping packet`).

use super::{Advice, Cause, Severity};

/// How many entries there are in this network namespace, and may be.
pub(super) const COUNT: &str = "net.netfilter.nf_conntrack_count";
pub(super) const MOST: &str = "net.netfilter.nf_conntrack_max";

/// The percentage of entries in use from which the table counts as full: who looks now and then seldom sees
/// the last entry taken.
const NEARLY_FULL: u64 = 95;

/// Judges the two numbers; `most` is 0 where there is no limit.
pub(super) fn check(count: u32, most: u32) -> Option<Advice> {
    let full = most > 0 && u64::from(count) * 100 >= u64::from(most) * NEARLY_FULL;
    let twice = most.saturating_mul(2);
    full.then(|| Advice {
        severity: Severity::Warning,
        cause: Cause::ConntrackFull,
        subject: MOST.to_owned(),
        what: "the table of conntrack is full, or nearly so: new connections are dropped, or will be"
            .to_owned(),
        // With a file of configuration the flag has no effect.
        remedy: format!(
            "sysctl -w {MOST}={twice}, and for the next start conntrack.min: {twice} in the KubeProxyConfiguration, \
             or --conntrack-min={twice} where there is no file"
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_that_is_full_or_nearly_so_is_a_warning_with_twice_its_size_as_remedy() {
        let advice = check(262_144, 262_144).unwrap();
        assert_eq!(advice.severity, Severity::Warning);
        assert_eq!(
            advice.remedy,
            "sysctl -w net.netfilter.nf_conntrack_max=524288, and for the next start conntrack.min: 524288 in the \
             KubeProxyConfiguration, or --conntrack-min=524288 where there is no file"
        );
        assert_eq!(check(250_000, 262_144), Some(advice), "told once, whatever the count");
    }

    #[test]
    fn a_table_with_room_or_without_a_limit_is_nothing_to_be_told_of() {
        assert_eq!(check(240_000, 262_144), None);
        assert_eq!(check(0, 262_144), None);
        assert_eq!(check(1_000_000, 0), None);
    }
}
