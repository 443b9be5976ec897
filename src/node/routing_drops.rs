//! Packets that the kernel's routing has dropped.

use std::{fs, path::Path};

/// The counters of dropped packets, since the start of the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RoutingDrops {
    /// `TcpExt: IPReversePathFilter`: dropped by `rp_filter` (`fib_validate_source` in net/ipv4/fib_frontend.c).
    pub(crate) reverse_path: u64,
    /// `IpExt: InNoRoutes`.
    pub(crate) no_route: u64,
}

impl RoutingDrops {
    /// Reads the counters of the calling thread's network namespace; 0 for those that the kernel lacks.
    pub(crate) fn read() -> Self {
        let text = fs::read_to_string("/proc/thread-self/net/netstat").unwrap_or_default();
        Self {
            reverse_path: counter(&text, "TcpExt:", "IPReversePathFilter"),
            no_route: counter(&text, "IpExt:", "InNoRoutes"),
        }
    }
}

/// The parameters of IPv4 of all interfaces.
pub(crate) const CONF: &str = "/proc/sys/net/ipv4/conf";

/// The value of `rp_filter` of an interface, or of `all`, in a directory like `/proc/sys/net/ipv4/conf`. The larger of
/// the two applies (`IN_DEV_RPFILTER` in include/linux/inetdevice.h).
pub(crate) fn reverse_path_filter(conf: &Path, interface: &str) -> Option<u8> {
    fs::read_to_string(conf.join(interface).join("rp_filter")).ok()?.trim().parse().ok()
}

/// A counter of `/proc/net/netstat`: one line has the names of a group, and the next one the values.
fn counter(text: &str, group: &str, name: &str) -> u64 {
    let mut lines = text.lines().filter(|line| line.starts_with(group));
    let (Some(names), Some(values)) = (lines.next(), lines.next()) else { return 0 };
    let mut both = names.split_whitespace().zip(values.split_whitespace());
    both.find(|(it, _)| *it == name).and_then(|(_, value)| value.parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_found_by_its_name_and_not_by_its_place() {
        let text = "TcpExt: SyncookiesSent IPReversePathFilter\nTcpExt: 3 7\nIpExt: InNoRoutes\nIpExt: 5\n";
        assert_eq!(counter(text, "TcpExt:", "IPReversePathFilter"), 7);
        assert_eq!(counter(text, "IpExt:", "InNoRoutes"), 5);
        assert_eq!(counter(text, "IpExt:", "InCsumErrors"), 0);
    }
}
