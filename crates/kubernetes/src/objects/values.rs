//! Values that several objects have: addresses and ranges of them as Kubernetes reads them, ports, protocols, weights.

use std::{
    fmt::Display,
    net::{IpAddr, Ipv4Addr},
    num::NonZero,
};

use ipnet::IpNet;
use ipvs::Protocol;
use service::{SpecialAddress, Weight};

use super::{
    Problems,
    field::{Field, Quoted, Text},
};

/// The address that the text means, if it means one.
///
/// Octets may have leading zeros and are decimal all the same, as in Kubernetes (its
/// `ParseIPSloppy`); objects from before Go 1.17 may have such addresses. An IPv4 address mapped into
/// IPv6 is the IPv4 address.
pub(super) fn parse_ip(text: &str) -> Option<IpAddr> {
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Some(ip.to_canonical());
    }
    let mut octets = [0; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        *octet = decimal(parts.next()?)?;
    }
    parts.next().is_none().then(|| Ipv4Addr::from(octets).into())
}

/// The range that the text, such as `10.244.0.0/16`, means, without bits beyond its prefix.
///
/// Its address is read as any other, so a range of IPv4 addresses mapped into IPv6 is the IPv4 range.
fn parse_range(text: &str) -> Option<IpNet> {
    /// How many bits all mapped addresses have in common.
    const MAPPED: u8 = 96;
    let (address, prefix) = text.split_once('/')?;
    let (ip, prefix) = (parse_ip(address)?, decimal(prefix)?);
    let is_mapped = ip.is_ipv4() && address.contains(':');
    let prefix = if is_mapped { prefix.checked_sub(MAPPED)? } else { prefix };
    IpNet::new(ip, prefix).ok().map(|range| range.trunc())
}

/// A decimal number up to 255, leading zeros allowed, but no sign.
fn decimal(text: &str) -> Option<u8> {
    let has_only_digits = text.bytes().all(|byte| byte.is_ascii_digit());
    if has_only_digits { text.parse().ok() } else { None }
}

/// The address that the text means, if it means one. The empty text is not a problem: Go writes it for "not
/// set".
pub(super) fn ip(text: &str, at: impl Display, problems: &mut Problems) -> Option<IpAddr> {
    if text.is_empty() {
        return None;
    }
    problems.require(parse_ip(text), at, format_args!("{} is not an IP address", Quoted(text)))
}

/// The range that the text means.
pub(super) fn range(text: &str, at: impl Display, problems: &mut Problems) -> Option<IpNet> {
    problems.require(parse_range(text), at, format_args!("{} is not a CIDR", Quoted(text)))
}

/// The ClusterIP that the text means. Addresses that the node uses for something else are refused: the API
/// server gives none of them out, but manifests in a directory do not pass through it. IPv4 link-local
/// addresses are accepted, since a cluster's Service range can consist of them.
pub(super) fn cluster_ip(text: &str, at: impl Display + Copy, problems: &mut Problems) -> Option<IpAddr> {
    let ip = ip(text, at, problems)?;
    match SpecialAddress::from_ip(ip) {
        None => Some(ip),
        Some(SpecialAddress::LinkLocal) if ip.is_ipv4() => Some(ip),
        Some(special) => {
            problems.add(at, format_args!("{ip} is {special}, which cannot be served"));
            None
        }
    }
}

/// A port number, 1 to 65535. Kubernetes writes 0 for "not set".
pub(super) fn port(field: Field<i64>, at: impl Display + Copy, problems: &mut Problems) -> Option<u16> {
    if !field.is_present() {
        problems.add(at, "not set");
        return None;
    }
    in_range(field.read(at, problems)?, at, problems).map(NonZero::get)
}

/// A port number that may be missing, as 0 is.
pub(super) fn optional_port(
    field: Field<i64>,
    at: impl Display + Copy,
    problems: &mut Problems,
) -> Option<NonZero<u16>> {
    match field.read(at, problems)? {
        0 => None,
        number => in_range(number, at, problems),
    }
}

fn in_range(number: i64, at: impl Display, problems: &mut Problems) -> Option<NonZero<u16>> {
    let port = u16::try_from(number).ok().and_then(NonZero::new);
    problems.require(port, at, format_args!("{number} is not between 1 and 65535"))
}

/// A transport protocol; TCP where none is given, as in the API's default.
pub(super) fn protocol(
    field: Field<Text<'_>>,
    at: impl Display + Copy,
    problems: &mut Problems,
) -> Option<Protocol> {
    if !field.is_present() {
        return Some(Protocol::Tcp);
    }
    let name = field.read(at, problems)?;
    problems.require(name.parse().ok(), at, format_args!("{} is not TCP, UDP or SCTP", Quoted(&name)))
}

/// A weight. 0: no new connections.
pub(super) fn weight(text: &str, at: impl Display, problems: &mut Problems) -> Option<Weight> {
    problems.require(
        text.trim().parse().ok(),
        at,
        format_args!("{} is not a weight, a number between 0 and {}", Quoted(text), Weight::MAX),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The address, and the problems.
    fn cluster_ip(text: &str) -> (Option<IpAddr>, Vec<String>) {
        let mut problems = Problems::default();
        let ip = super::cluster_ip(text, "at", &mut problems);
        (ip, problems.into_vec())
    }

    #[test]
    fn leading_zeros_are_decimal_and_vanish() {
        assert_eq!(parse_ip("010.000.0.01"), parse_ip("10.0.0.1"));
        assert_eq!(parse_ip("010.0.0.1").unwrap().to_string(), "10.0.0.1");
    }

    #[test]
    fn an_address_has_one_canonical_form() {
        assert_eq!(parse_ip("FD00:0:0::1").unwrap().to_string(), "fd00::1");
        assert_eq!(parse_ip("::ffff:10.0.0.1"), parse_ip("10.0.0.1"));
    }

    #[test]
    fn a_range_has_no_bits_beyond_its_prefix_and_one_canonical_form() {
        for (text, range) in [
            ("10.244.1.0/24", "10.244.1.0/24"),
            ("010.244.1.9/016", "10.244.0.0/16"),
            ("10.0.0.1/32", "10.0.0.1/32"),
            ("192.0.2.1/0", "0.0.0.0/0"),
            ("FD00:10:244::1/64", "fd00:10:244::/64"),
            ("::/0", "::/0"),
            ("::ffff:10.1.2.3/104", "10.0.0.0/8"),
            ("::ffff:0:0/96", "0.0.0.0/0"),
        ] {
            assert_eq!(parse_range(text).unwrap().to_string(), range);
        }
    }

    #[test]
    fn what_is_not_a_range_is_refused() {
        for text in [
            "",
            "/",
            "/8",
            "10.0.0.0",
            "10.0.0.0/",
            "10.0.0.0/33",
            "10.0.0.0/+8",
            "10.0.0.0/-1",
            "10.0.0.0/ 8",
            "10.0.0.0/8/8",
            "10.0.0.0/255.0.0.0",
            "10.0.0/8",
            "fd00::/129",
            "fd00::/256",
            "::ffff:10.0.0.0/95",
            "::ffff:10.0.0.0/129",
        ] {
            assert_eq!(parse_range(text), None, "{text:?}");
        }
    }

    #[test]
    fn what_is_not_an_address_is_refused() {
        for text in [
            "",
            "None",
            "10.0.0",
            "10.0.0.1.2",
            "10.0.0.256",
            "+1.0.0.1",
            "10.0.0.1 ",
            "1..1.1",
            "fe80::1%eth0",
            "10.0.0.1/32",
        ] {
            assert_eq!(parse_ip(text), None, "{text:?}");
        }
    }

    #[test]
    fn addresses_that_no_proxy_may_take_over_are_no_cluster_ips() {
        for (text, kind) in [
            ("0.0.0.0", "the unspecified address"),
            ("::", "the unspecified address"),
            ("127.0.0.1", "a loopback address"),
            ("127.255.255.254", "a loopback address"),
            ("::ffff:127.0.0.1", "a loopback address"),
            ("::1", "a loopback address"),
            ("224.0.0.1", "a multicast address"),
            ("239.255.255.255", "a multicast address"),
            ("ff02::1", "a multicast address"),
            ("255.255.255.255", "the broadcast address"),
            ("fe80::1", "a link-local address"),
            ("febf::1", "a link-local address"),
        ] {
            let ip = parse_ip(text).unwrap();
            assert_eq!(cluster_ip(text), (None, vec![format!("at: {ip} is {kind}, which cannot be served")]));
        }
    }

    #[test]
    fn any_other_address_can_be_a_cluster_ip() {
        for text in ["10.96.0.1", "169.254.20.10", "223.255.255.255", "fd00::1", "fec0::1", "2001:db8::1"] {
            assert_eq!(cluster_ip(text), (Some(text.parse().unwrap()), vec![]));
        }
    }

    #[test]
    fn an_empty_text_is_neither_an_address_nor_a_problem() {
        assert_eq!(cluster_ip(""), (None, vec![]));
    }
}
