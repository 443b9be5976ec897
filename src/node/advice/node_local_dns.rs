//! NodeLocal DNSCache on this node, in its layout for kube-proxy's modes iptables and nftables.
//!
//! There the cache has the ClusterIP of cluster DNS on its own interface, and its rules keep conntrack from port 53 of
//! that address. IPVS takes what is sent there before the cache does. It answers pods; but what the node sends comes from
//! the ClusterIP itself, and without conntrack it is not masqueraded, so that no answer finds the way back.
//!
//! IPVS does not leave the address to the cache: the interface is there before the cache answers, and stays when it has
//! crashed.

use std::{collections::BTreeSet, net::IpAddr};

use super::{Advice, Cause, Severity};

/// The interface of the cache.
pub(super) const INTERFACE: &str = "nodelocaldns";

/// Looks at the addresses of the cache's interface, and at the ClusterIPs at which DNS is served.
pub(super) fn check(addresses: &[IpAddr], dns: &BTreeSet<IpAddr>) -> Option<Advice> {
    let of_services: Vec<_> = addresses.iter().filter(|it| dns.contains(it)).map(IpAddr::to_string).collect();
    (!of_services.is_empty()).then(|| Advice {
        severity: Severity::Warning,
        cause: Cause::NodeLocalDns,
        subject: INTERFACE.to_owned(),
        what: format!(
            "NodeLocal DNSCache has the ClusterIP of DNS on this interface, as beside iptables mode: {}: pods bypass the \
             cache, and what the node and pods in its network ask there gets no answer",
            of_services.join(", ")
        ),
        remedy: "its layout for ipvs mode: the cache listens at its link-local address alone (-localip 169.254.20.10), \
                 and the kubelet's clusterDNS is that address"
            .to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(addresses: &[&str]) -> Option<String> {
        let dns = ["10.96.0.10", "fd00:96::a"].map(|address| address.parse().unwrap()).into();
        let addresses: Vec<_> = addresses.iter().map(|address| address.parse().unwrap()).collect();
        check(&addresses, &dns).map(|advice| advice.what)
    }

    #[test]
    fn cache_with_the_cluster_ip_of_dns_is_named_with_that_address() {
        let what = found(&["169.254.20.10", "10.96.0.10", "fd00:96::a"]).unwrap();
        assert!(what.contains(": 10.96.0.10, fd00:96::a: pods bypass the cache"), "{what}");
    }

    #[test]
    fn cache_at_its_own_address_alone_is_fine() {
        assert_eq!(found(&["169.254.20.10", "192.0.2.53"]), None);
        assert_eq!(found(&[]), None);
    }
}
