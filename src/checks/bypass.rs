//! Traffic that bypasses IPVS: answers between pods on a bridge, NodeLocal DNSCache, and flows in flowtables.

use std::{collections::BTreeSet, net::IpAddr};

use dummy_interface::{RouteLookup, addresses_of};
use host_rules::flowtables::Flowtable;
use ipvs::Family;
use service::one_line;
use tracing::debug;

use super::{
    BeforeStart,
    facts::{Facts, Interfaces},
    while_running::WhileRunning,
};
use crate::finding::{Finding, first_few};

/// A bridge of the node, and what it shows to netfilter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Bridge {
    pub(super) name: String,
    pub(super) index: u32,
    /// The families of which this bridge shows its packets, whatever is set for all.
    pub(super) shows: BTreeSet<Family>,
}

/// One finding for each bridge that has pods behind it and does not show their packets to netfilter.
///
/// Two pods on one bridge are neighbours. A request from one to a VIP is routed, so it passes IPVS and comes
/// to the other as if sent to its own address; the answer is for a neighbour and goes over the bridge. Unless
/// the bridge shows its packets to netfilter, IPVS never sees it, and the client is answered by an address
/// that it did not ask.
pub(super) fn bridges(facts: &Facts) -> Vec<Finding> {
    let (bridges, endpoints) = (Interfaces::default().bridges(), &facts.in_use.local_endpoints);
    // Where every flow is masqueraded the answers come back through the node.
    if facts.masquerade_all || bridges.is_empty() || endpoints.is_empty() {
        return Vec::new();
    }
    let mut routes = match RouteLookup::open() {
        Ok(routes) => routes,
        Err(error) => {
            debug!("not known which pods are behind a bridge: {}", one_line(&error));
            return Vec::new();
        }
    };
    let way = |endpoint| routes.interface_to(endpoint).ok().flatten();
    hiding(&bridges, endpoints, way, |family| Some(facts.number(switch(family))? != 0))
}

/// The parameter that makes all bridges show their packets of a family.
fn switch(family: Family) -> &'static str {
    match family {
        Family::V4 => "net.bridge.bridge-nf-call-iptables",
        Family::V6 => "net.bridge.bridge-nf-call-ip6tables",
    }
}

/// `way` is the index of the interface that leads to an address, and `for_all` what [`switch`] is set to;
/// `None` without br_netfilter, and then a bridge's own setting means nothing either.
fn hiding(
    bridges: &[Bridge],
    endpoints: &BTreeSet<IpAddr>,
    mut way: impl FnMut(IpAddr) -> Option<u32>,
    for_all: impl Fn(Family) -> Option<bool>,
) -> Vec<Finding> {
    let behind: BTreeSet<_> =
        endpoints.iter().filter_map(|endpoint| Some((way(*endpoint)?, Family::from(*endpoint)))).collect();
    let hidden = |bridge: &Bridge| -> Vec<Family> {
        let shown = |family| for_all(family).is_some_and(|on| on || bridge.shows.contains(&family));
        let families = Family::BOTH.into_iter();
        families.filter(|family| behind.contains(&(bridge.index, *family)) && !shown(*family)).collect()
    };
    bridges.iter().filter_map(|bridge| hides(&bridge.name, &hidden(bridge), &for_all)).collect()
}

fn hides(bridge: &str, hidden: &[Family], for_all: impl Fn(Family) -> Option<bool>) -> Option<Finding> {
    let first = *hidden.first()?;
    let switches: Vec<_> = hidden.iter().map(|family| switch(*family)).collect();
    let (why, load) = match for_all(first) {
        Some(_) => (format!("{} is 0", switches.join(" and ")), ""),
        None => ("br_netfilter is not loaded".to_owned(), "modprobe br_netfilter && "),
    };
    let what = format!(
        "pods behind the bridge {bridge} cannot reach each other through a Service: \
         the answers bypass IPVS because {why}"
    );
    Some(Finding::warning(bridge, what).remedy(format!("{load}sysctl -w {}=1", switches.join("=1 "))))
}

/// The interface of NodeLocal DNSCache.
const CACHE: &str = "nodelocaldns";

/// NodeLocal DNSCache in its layout for kube-proxy's modes iptables and nftables.
///
/// There the cache has the ClusterIP of cluster DNS on its own interface, and its rules keep conntrack from
/// port 53 of that address. IPVS takes what is sent there before the cache does. It answers pods; but what
/// the node sends comes from the ClusterIP itself, and without conntrack it is not masqueraded, so that no
/// answer finds the way back.
///
/// IPVS does not leave the address to the cache: the interface is there before the cache answers, and stays
/// when it has crashed.
pub(super) fn node_local_dns(facts: &Facts) -> Vec<Finding> {
    let Some(interface) = Interfaces::default().index(CACHE) else { return Vec::new() };
    match addresses_of(interface) {
        Ok(addresses) => bypassed(&addresses, &facts.in_use.dns).into_iter().collect(),
        Err(error) => {
            debug!("the addresses of NodeLocal DNSCache are not known: {}", one_line(&error));
            Vec::new()
        }
    }
}

/// Compares the addresses of the cache's interface with the ClusterIPs at which DNS is served.
fn bypassed(addresses: &[IpAddr], dns: &BTreeSet<IpAddr>) -> Option<Finding> {
    let of_services: Vec<_> = addresses.iter().filter(|it| dns.contains(it)).map(IpAddr::to_string).collect();
    let what = format!(
        "NodeLocal DNSCache has the ClusterIP of DNS on this interface, its layout for iptables mode: {}: pods \
         bypass the cache, and queries of the node and of pods in its network are not answered",
        of_services.join(", ")
    );
    let remedy = "use its layout for ipvs mode: the cache listens only at its link-local address \
                  (-localip 169.254.20.10), which is also the kubelet's clusterDNS";
    (!of_services.is_empty()).then(|| Finding::warning(CACHE, what).remedy(remedy))
}

/// How many flowtables are named.
const NAMED_FLOWTABLES: usize = 3;

/// Flowtables of other programs, which would take the flows of Services past IPVS: before the start.
pub(super) fn flowtables_before_start(node: &mut BeforeStart<'_>) -> Vec<Finding> {
    match node.kernel.modules.ask_nf_tables(Flowtable::in_use) {
        Some(Ok(found)) => offloading(&found).into_iter().collect(),
        Some(Err(error)) => vec![Finding::note("flowtables", format!("not checked: {}", one_line(&error)))],
        None => Vec::new(),
    }
}

/// The same while the daemon runs.
pub(super) fn flowtables_while_running(_: &mut WhileRunning) -> Vec<Finding> {
    let found =
        Flowtable::in_use().inspect_err(|error| debug!("flowtables are not known: {}", one_line(error)));
    offloading(&found.unwrap_or_default()).into_iter().collect()
}

fn offloading(found: &[Flowtable]) -> Option<Finding> {
    let what = format!(
        "another program offloads flows, by a rule with `flow add`: {}. Flows of Services must not be among them: they \
         would bypass IPVS, with addresses that are not translated",
        first_few(found.iter().map(ToString::to_string), NAMED_FLOWTABLES)
    );
    let remedy = "exempt addresses of Services and pods from the rule (`nft list ruleset` shows it), or switch the \
                  offload off in its program (firewalld: NftablesFlowtable=off)";
    (!found.is_empty()).then(|| Finding::warning("flowtables", what).remedy(remedy))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFF: fn(Family) -> Option<bool> = |_| Some(false);
    const ON: fn(Family) -> Option<bool> = |_| Some(true);
    const NOT_LOADED: fn(Family) -> Option<bool> = |_| None;

    /// cni0 with the pods 10.244.x.x and fd00:10::x behind it, and docker0 with nothing of ours.
    fn bridges(shows: &[Family]) -> Vec<Bridge> {
        let bridge = |name: &str, index, shows: &[Family]| Bridge {
            name: name.to_owned(),
            index,
            shows: shows.iter().copied().collect(),
        };
        vec![bridge("cni0", 7, shows), bridge("docker0", 8, &[])]
    }

    fn hidden_on(
        bridges: &[Bridge],
        endpoints: &[&str],
        for_all: fn(Family) -> Option<bool>,
    ) -> Vec<(String, String)> {
        let way = |ip: IpAddr| match ip {
            IpAddr::V4(ip) => (ip.octets()[..2] == [10, 244]).then_some(7),
            IpAddr::V6(ip) => (ip.segments()[0] == 0xfd00).then_some(7),
        };
        let endpoints = endpoints.iter().map(|ip| ip.parse().unwrap()).collect();
        let found = hiding(bridges, &endpoints, way, for_all);
        found.into_iter().map(|found| (found.what, found.remedy.unwrap())).collect()
    }

    #[test]
    fn a_bridge_that_hides_its_packets_is_named_with_the_parameter_to_set() {
        let found = hidden_on(&bridges(&[]), &["10.244.1.2"], OFF);
        let what = "pods behind the bridge cni0 cannot reach each other through a Service: \
             the answers bypass IPVS because net.bridge.bridge-nf-call-iptables is 0";
        let remedy = "sysctl -w net.bridge.bridge-nf-call-iptables=1";
        assert_eq!(found, [(what.to_owned(), remedy.to_owned())]);
    }

    #[test]
    fn without_br_netfilter_the_remedy_is_the_module_whatever_the_bridge_s_own_setting() {
        let found = hidden_on(&bridges(&Family::BOTH), &["10.244.1.2", "fd00:10::2"], NOT_LOADED);
        let [(what, remedy)] = found.as_slice() else { panic!("{found:?}") };
        assert!(what.ends_with("because br_netfilter is not loaded"), "{what}");
        assert_eq!(
            remedy,
            "modprobe br_netfilter && sysctl -w net.bridge.bridge-nf-call-iptables=1 \
             net.bridge.bridge-nf-call-ip6tables=1"
        );
    }

    #[test]
    fn each_family_has_its_own_setting_for_all_bridges_and_for_one() {
        let both = ["10.244.1.2", "fd00:10::2"];
        let [(what, remedy)] = &hidden_on(&bridges(&[Family::V4]), &both, OFF)[..] else { panic!() };
        assert!(what.ends_with("net.bridge.bridge-nf-call-ip6tables is 0"), "{what}");
        assert_eq!(remedy, "sysctl -w net.bridge.bridge-nf-call-ip6tables=1");
        assert_eq!(hidden_on(&bridges(&Family::BOTH), &both, OFF), []);
        assert_eq!(hidden_on(&bridges(&[]), &both, ON), []);
        assert_eq!(hidden_on(&bridges(&[]), &both, |family| Some(family == Family::V4)).len(), 1);
    }

    #[test]
    fn a_bridge_without_endpoints_behind_it_is_ignored() {
        for endpoints in [&[][..], &["192.0.2.7"]] {
            assert_eq!(hidden_on(&bridges(&[]), endpoints, NOT_LOADED), []);
        }
        assert_eq!(hidden_on(&[], &["10.244.1.2"], NOT_LOADED), []);
    }

    fn cached(addresses: &[&str]) -> Option<String> {
        let dns = ["10.96.0.10", "fd00:96::a"].map(|address| address.parse().unwrap()).into();
        let addresses: Vec<_> = addresses.iter().map(|address| address.parse().unwrap()).collect();
        bypassed(&addresses, &dns).map(|found| found.what)
    }

    #[test]
    fn cache_with_the_cluster_ip_of_dns_is_named_with_that_address() {
        let what = cached(&["169.254.20.10", "10.96.0.10", "fd00:96::a"]).unwrap();
        assert!(what.contains(": 10.96.0.10, fd00:96::a: pods bypass the cache"), "{what}");
    }

    #[test]
    fn cache_at_its_own_address_alone_is_fine() {
        assert_eq!(cached(&["169.254.20.10", "192.0.2.53"]), None);
        assert_eq!(cached(&[]), None);
    }
}
