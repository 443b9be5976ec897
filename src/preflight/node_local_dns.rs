//! NodeLocal DNSCache on this node, in its layout for kube-proxy's iptables mode.
//!
//! There the cache has the ClusterIP of cluster DNS on its own interface. In ipvs mode that address is also one of
//! kube-ipvs0, and IPVS takes what is sent to it before the cache does.

use std::net::IpAddr;

use service::ObjectName;

use super::Finding;

/// The interface of the cache.
pub(super) const INTERFACE: &str = "nodelocaldns";

/// Looks at the addresses of the cache's interface, if there is one. `owner` is the Service with such a ClusterIP, as far
/// as Services are known.
pub(super) fn check(
    addresses: Option<&[IpAddr]>,
    owner: impl Fn(IpAddr) -> Option<ObjectName>,
) -> Option<Finding> {
    let addresses = addresses?;
    let named = |address: &IpAddr| match owner(*address) {
        Some(service) => format!("{address} ({service})"),
        None => address.to_string(),
    };
    let of_services: Vec<_> =
        addresses.iter().filter(|address| !is_link_local(**address)).map(named).collect();
    if of_services.is_empty() {
        return Some(Finding::ok(INTERFACE, "NodeLocal DNSCache is there, in its layout for ipvs mode"));
    }
    let finding = Finding::warning(
        INTERFACE,
        format!(
            "NodeLocal DNSCache has the ClusterIP of DNS on this interface, as beside iptables mode: {}: pods bypass the \
             cache, and the node's own queries to that address time out",
            of_services.join(", ")
        ),
    );
    Some(finding.remedy(
        "its layout for ipvs mode: the cache listens at its link-local address alone (-localip 169.254.20.10), and the \
         kubelet's clusterDNS is that address",
    ))
}

/// What the cache has for itself, which no Service can have.
fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Verdict, *};

    fn found(addresses: &[&str]) -> Option<(Verdict, String)> {
        let addresses: Vec<IpAddr> = addresses.iter().map(|address| address.parse().unwrap()).collect();
        let dns: IpAddr = "10.96.0.10".parse().unwrap();
        let owner = |address| (address == dns).then(|| ObjectName::new("kube-system", "kube-dns"));
        check(Some(&addresses), owner).map(|finding| (finding.verdict, finding.what))
    }

    #[test]
    fn cache_with_the_cluster_ip_of_dns_is_a_warning_that_names_it() {
        let (verdict, what) = found(&["169.254.20.10", "10.96.0.10"]).unwrap();
        assert_eq!(verdict, Verdict::Warning);
        assert!(what.contains(": 10.96.0.10 (kube-system/kube-dns): pods bypass the cache"), "{what}");
        assert!(found(&["fd00:96::a"]).unwrap().1.contains(": fd00:96::a: pods"), "Services are not known");
    }

    #[test]
    fn cache_at_its_own_address_alone_is_fine_and_without_one_there_is_nothing_to_say() {
        assert_eq!(found(&["169.254.20.10", "fe80::1"]).unwrap().0, Verdict::Ok);
        assert_eq!(check(None, |_| None), None);
    }
}
