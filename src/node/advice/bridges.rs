//! Pods behind a bridge whose packets netfilter does not see.
//!
//! Two pods on one bridge are neighbours. A request from one to a VIP is routed, so it passes IPVS and comes to
//! the other as if sent to its own address; the answer is for a neighbour and goes over the bridge. Unless the
//! bridge shows its packets to netfilter, IPVS never sees it, and the client is answered by somebody it did not
//! ask.

use std::{collections::BTreeSet, net::IpAddr};

use ipvs::Family;

use super::{Advice, Cause, Severity};

/// A bridge of the node, and what it shows to netfilter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Bridge {
    pub(super) name: String,
    pub(super) index: u32,
    /// The families of which this bridge shows its packets, whatever is set for all.
    pub(super) shows: BTreeSet<Family>,
}

/// The parameter that makes all bridges show their packets of a family.
pub(super) fn switch(family: Family) -> &'static str {
    match family {
        Family::V4 => "net.bridge.bridge-nf-call-iptables",
        Family::V6 => "net.bridge.bridge-nf-call-ip6tables",
    }
}

/// One piece of advice for each bridge that has endpoints of this node behind it and does not show their
/// packets. `way` is the index of the interface that leads to an address, and `for_all` what [`switch`] is set
/// to; `None` without br_netfilter, and then a bridge's own setting means nothing either.
pub(super) fn check(
    bridges: &[Bridge],
    endpoints: &BTreeSet<IpAddr>,
    mut way: impl FnMut(IpAddr) -> Option<u32>,
    for_all: impl Fn(Family) -> Option<bool>,
) -> Vec<Advice> {
    if bridges.is_empty() {
        return Vec::new();
    }
    let behind: BTreeSet<_> =
        endpoints.iter().filter_map(|endpoint| Some((way(*endpoint)?, Family::from(*endpoint)))).collect();
    let hidden = |bridge: &Bridge| -> Vec<Family> {
        let shown = |family| for_all(family).is_some_and(|on| on || bridge.shows.contains(&family));
        let families = Family::BOTH.into_iter();
        families.filter(|family| behind.contains(&(bridge.index, *family)) && !shown(*family)).collect()
    };
    bridges.iter().filter_map(|bridge| advice(&bridge.name, &hidden(bridge), &for_all)).collect()
}

fn advice(bridge: &str, hidden: &[Family], for_all: impl Fn(Family) -> Option<bool>) -> Option<Advice> {
    let first = *hidden.first()?;
    let switches: Vec<_> = hidden.iter().map(|family| switch(*family)).collect();
    let (why, load) = match for_all(first) {
        Some(_) => (format!("{} is 0", switches.join(" and ")), ""),
        None => ("br_netfilter is not loaded".to_owned(), "modprobe br_netfilter && "),
    };
    Some(Advice {
        severity: Severity::Warning,
        cause: Cause::Bridge,
        subject: bridge.to_owned(),
        what: format!(
            "pods behind the bridge {bridge} cannot reach each other through a Service: \
             the answers pass IPVS by, since {why}"
        ),
        remedy: format!("{load}sysctl -w {}=1", switches.join("=1 ")),
    })
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

    fn advice_on(
        bridges: &[Bridge],
        endpoints: &[&str],
        for_all: fn(Family) -> Option<bool>,
    ) -> Vec<(String, String)> {
        let way = |ip: IpAddr| match ip {
            IpAddr::V4(ip) => (ip.octets()[..2] == [10, 244]).then_some(7),
            IpAddr::V6(ip) => (ip.segments()[0] == 0xfd00).then_some(7),
        };
        let endpoints = endpoints.iter().map(|ip| ip.parse().unwrap()).collect();
        let found = check(bridges, &endpoints, way, for_all);
        found.into_iter().map(|advice| (advice.what, advice.remedy)).collect()
    }

    #[test]
    fn a_bridge_that_hides_its_packets_is_named_with_the_parameter_to_set() {
        let found = advice_on(&bridges(&[]), &["10.244.1.2"], OFF);
        let what = "pods behind the bridge cni0 cannot reach each other through a Service: \
             the answers pass IPVS by, since net.bridge.bridge-nf-call-iptables is 0";
        let remedy = "sysctl -w net.bridge.bridge-nf-call-iptables=1";
        assert_eq!(found, [(what.to_owned(), remedy.to_owned())]);
    }

    #[test]
    fn without_br_netfilter_the_remedy_is_the_module_whatever_the_bridge_s_own_setting() {
        let found = advice_on(&bridges(&Family::BOTH), &["10.244.1.2", "fd00:10::2"], NOT_LOADED);
        let [(what, remedy)] = found.as_slice() else { panic!("{found:?}") };
        assert!(what.ends_with("since br_netfilter is not loaded"), "{what}");
        assert_eq!(
            remedy,
            "modprobe br_netfilter && sysctl -w net.bridge.bridge-nf-call-iptables=1 \
             net.bridge.bridge-nf-call-ip6tables=1"
        );
    }

    #[test]
    fn each_family_has_its_own_setting_for_all_bridges_and_for_one() {
        let both = ["10.244.1.2", "fd00:10::2"];
        let [(what, remedy)] = &advice_on(&bridges(&[Family::V4]), &both, OFF)[..] else { panic!() };
        assert!(what.ends_with("net.bridge.bridge-nf-call-ip6tables is 0"), "{what}");
        assert_eq!(remedy, "sysctl -w net.bridge.bridge-nf-call-ip6tables=1");
        assert_eq!(advice_on(&bridges(&Family::BOTH), &both, OFF), []);
        assert_eq!(advice_on(&bridges(&[]), &both, ON), []);
        assert_eq!(advice_on(&bridges(&[]), &both, |family| Some(family == Family::V4)).len(), 1);
    }

    #[test]
    fn a_bridge_without_endpoints_behind_it_is_nobody_s_concern() {
        for endpoints in [&[][..], &["192.0.2.7"]] {
            assert_eq!(advice_on(&bridges(&[]), endpoints, NOT_LOADED), []);
        }
        assert_eq!(advice_on(&[], &["10.244.1.2"], NOT_LOADED), []);
    }
}
