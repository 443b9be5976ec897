//! ipvsadm's order.
//!
//! It compares by the difference of two unsigned numbers taken as signed (`ipvs_cmp_services` in its
//! libipvs), so that an address comes *before* those that are less than half the number range above
//! it, and 192.168.0.1 before 10.0.0.1. That is not an order: of three addresses each can come before
//! the next. What comes out then depends on how it is sorted, so this is the merge sort of glibc's
//! `qsort` too.

use std::net::IpAddr;

use crate::{Family, ObservedRealServer, ObservedVirtualServer, VirtualServerId};

type Entry = (ObservedVirtualServer, Vec<ObservedRealServer>);

/// Whether the first argument may stand before the second.
type NotAfter<T> = fn(&T, &T) -> bool;

pub(super) fn virtual_servers(servers: &[Entry]) -> Vec<&Entry> {
    sorted(servers, |a, b| {
        let steps = virtual_server_key(&a.0.config.id).into_iter().zip(virtual_server_key(&b.0.config.id));
        first_difference(steps) <= 0
    })
}

pub(super) fn real_servers(servers: &[ObservedRealServer]) -> Vec<&ObservedRealServer> {
    sorted(servers, |a, b| {
        let (a, b) = (a.config.address, b.config.address);
        // As many words of the address as the first one has, then the port.
        let words = if a.ip.is_ipv6() { 4 } else { 1 };
        let addresses = words_of(a.ip).into_iter().zip(words_of(b.ip)).take(words);
        first_difference(addresses.chain([(a.port.into(), b.port.into())])) <= 0
    })
}

/// Mark, family, protocol, address and port; 0 where one is missing.
fn virtual_server_key(id: &VirtualServerId) -> [u32; 8] {
    let (mark, protocol, address, port) = match id {
        VirtualServerId::Mark { mark, .. } => (*mark, 0, [0; 4], 0),
        VirtualServerId::Address(address) => {
            (0, address.protocol.number().into(), words_of(address.ip), address.port.into())
        }
    };
    let family = match id.family() {
        Family::V4 => 2,
        Family::V6 => 10,
    };
    let [a, b, c, d] = address;
    [mark, family, protocol, a, b, c, d, port]
}

/// `union nf_inet_addr` in host order: an IPv4 address is its first word.
fn words_of(ip: IpAddr) -> [u32; 4] {
    match ip {
        IpAddr::V4(ip) => [ip.to_bits(), 0, 0, 0],
        IpAddr::V6(ip) => {
            let bits = ip.to_bits();
            [96, 64, 32, 0]
                .map(|shift| u32::try_from(bits >> shift & u128::from(u32::MAX)).unwrap_or_default())
        }
    }
}

/// The first difference that is not 0, as C computes it in an `int`.
fn first_difference(pairs: impl Iterator<Item = (u32, u32)>) -> i32 {
    pairs.map(|(a, b)| a.wrapping_sub(b).cast_signed()).find(|difference| *difference != 0).unwrap_or(0)
}

/// The top-down merge sort of glibc: the first half is the smaller one.
fn sorted<T>(items: &[T], not_after: NotAfter<T>) -> Vec<&T> {
    if items.len() < 2 {
        return items.iter().collect();
    }
    let (left, right) = items.split_at(items.len() / 2);
    let mut left = sorted(left, not_after).into_iter().peekable();
    let mut right = sorted(right, not_after).into_iter().peekable();
    let mut merged = Vec::with_capacity(items.len());
    while let (Some(a), Some(b)) = (left.peek(), right.peek()) {
        let next = if not_after(a, b) { left.next() } else { right.next() };
        merged.extend(next);
    }
    merged.extend(left);
    merged.extend(right);
    merged
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{RealServer, Stats};

    fn sorted_addresses(addresses: &[&str]) -> Vec<String> {
        let servers: Vec<_> = addresses
            .iter()
            .map(|ip| ObservedRealServer {
                config: RealServer::masquerade(ip.parse().unwrap(), 80),
                active_connections: 0,
                inactive_connections: 0,
                persistent_connections: 0,
                stats: Stats::default(),
            })
            .collect();
        real_servers(&servers).iter().map(|server| server.config.address.ip.to_string()).collect()
    }

    #[test]
    fn near_addresses_are_in_numeric_order() {
        assert_eq!(
            sorted_addresses(&["10.0.0.10", "10.0.0.9", "10.0.0.1"]),
            ["10.0.0.1", "10.0.0.9", "10.0.0.10"]
        );
    }

    #[test]
    fn addresses_more_than_half_the_range_apart_are_in_the_opposite_order() {
        assert_eq!(sorted_addresses(&["10.0.0.1", "192.168.0.1"]), ["192.168.0.1", "10.0.0.1"]);
        assert_eq!(sorted_addresses(&["1::", "fd00::1", "fd00::"]), ["fd00::", "fd00::1", "1::"]);
    }

    #[test]
    fn nothing_is_lost_where_the_comparison_goes_in_circles() {
        let circle = ["10.0.0.1", "120.0.0.1", "200.0.0.1", "10.0.0.1", "120.0.0.1"];
        let mut shown = sorted_addresses(&circle);
        shown.sort();
        assert_eq!(shown, ["10.0.0.1", "10.0.0.1", "120.0.0.1", "120.0.0.1", "200.0.0.1"]);
    }
}
