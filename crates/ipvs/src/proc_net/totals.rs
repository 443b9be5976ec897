//! The totals in `/proc/net/ip_vs_stats`.

use std::str;

/// The number of connections that IPVS has scheduled, from a text like `/proc/net/ip_vs_stats`; `None` if it is not
/// understood. The kernel brings it up to date every two seconds (`ip_vs_stats_show` in
/// net/netfilter/ipvs/ip_vs_ctl.c).
///
/// ```
/// let text = "\
///    Total Incoming Outgoing         Incoming         Outgoing
///    Conns  Packets  Packets            Bytes            Bytes
///       1F       48       30              8A8              53C
/// ";
/// assert_eq!(ipvs::proc_net::total_connections(text.as_bytes()), Some(31));
/// ```
pub fn total_connections(text: &[u8]) -> Option<u64> {
    let line = text.split(|byte| *byte == b'\n').nth(2)?;
    let first = str::from_utf8(line).ok()?.split_whitespace().next()?;
    u64::from_str_radix(first, 16).ok()
}
