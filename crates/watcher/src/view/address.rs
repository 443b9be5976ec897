//! IP addresses as Kubernetes reads them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The address that the text means.
///
/// Octets may have leading zeros and are decimal all the same, as in Kubernetes (its
/// `ParseIPSloppy`); objects of before Go 1.17 may have such addresses. An IPv4 address mapped into
/// IPv6 is the IPv4 address.
pub(super) fn parse(text: &str) -> Option<IpAddr> {
    if text.contains(':') {
        return text.parse::<Ipv6Addr>().ok().map(|v6| IpAddr::V6(v6).to_canonical());
    }
    let mut octets = [0; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        *octet = decimal_octet(parts.next()?)?;
    }
    parts.next().is_none().then(|| Ipv4Addr::from(octets).into())
}

fn decimal_octet(text: &str) -> Option<u8> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    match text.trim_start_matches('0') {
        "" => Some(0),
        digits => digits.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leading_zeros_are_decimal_and_vanish() {
        assert_eq!(parse("010.000.0.01"), parse("10.0.0.1"));
        assert_eq!(parse("010.0.0.1").unwrap().to_string(), "10.0.0.1");
    }

    #[test]
    fn an_address_has_one_canonical_form() {
        assert_eq!(parse("FD00:0:0::1").unwrap().to_string(), "fd00::1");
        assert_eq!(parse("::ffff:10.0.0.1"), parse("10.0.0.1"));
    }

    #[test]
    fn what_is_no_address_is_refused() {
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
            assert_eq!(parse(text), None, "{text:?}");
        }
    }
}
