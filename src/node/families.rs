//! The IP families of this node, the addresses by which it is reached, and how VIPs are bound.

use std::{
    collections::BTreeSet,
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket},
    path::Path,
};

use anyhow::ensure;
use dummy_interface::{DummyInterface as _, KernelDummyInterface, VipBinding};
use ipvs::Family;
use reconciler::Handle;
use tokio::task::spawn_blocking;

use super::requirements;
use crate::config::{self, Settings};

/// The families that the kernel serves here: IPv4, and IPv6 unless it is not built in or switched off.
pub(crate) fn families() -> BTreeSet<Family> {
    let built_in = Path::new("/proc/net/if_inet6").exists();
    let disabled = fs::read_to_string("/proc/sys/net/ipv6/conf/all/disable_ipv6");
    let switched_off = disabled.is_ok_and(|value| value.trim() == "1");
    let ipv6 = (built_in && !switched_off).then_some(Family::V6);
    [Family::V4].into_iter().chain(ipv6).collect()
}

/// Refuses a node whose own address is of a family that is switched off: `bindAddress` says which one it is,
/// be it :: or one address.
pub(crate) fn serves(families: &BTreeSet<Family>, bind_address: &str) -> anyhow::Result<()> {
    let family = bind_address.parse::<IpAddr>().map_or(Family::V4, Family::from);
    ensure!(families.contains(&family), "bindAddress is {bind_address}, but this node has no {family}");
    Ok(())
}

/// Refuses settings with which a daemon could not start on this node. A running writer thread tries whether
/// the kernel has the scheduler, so that only one thread writes; without a writer the start will show it.
pub(crate) async fn suits(settings: &Settings, writer: Option<&Handle>) -> anyhow::Result<()> {
    serves(&families(), settings.effective.bind_address())?;
    let Some(writer) = writer.cloned() else { return Ok(()) };
    let scheduler = settings.services.scheduler;
    let found = spawn_blocking(move || writer.probe_scheduler(scheduler)).await??;
    Ok(requirements::takes(scheduler, found)?)
}

/// An IPv6 address that no host has, to ask the kernel by which source it would be reached: in the range for
/// documentation, at an end that even documentation does not use.
const UNKNOWN_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0x0db8, 0xffff, 0xffff, 0xffff, 0xffff, 0xffff, 0xfffe);

/// The addresses that this node has towards the outside, as the kernel picks them: the source of a
/// packet to an address that can only be reached by the default route. Nothing is sent. A family
/// without such a route has none.
pub(crate) fn outward_addresses() -> (Option<Ipv4Addr>, Option<Ipv6Addr>) {
    // Documentation addresses (RFC 5737, RFC 3849): routed nowhere in particular.
    let ipv4 = source_towards(Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::new(192, 0, 2, 1).into());
    let ipv6 = source_towards(Ipv6Addr::UNSPECIFIED.into(), UNKNOWN_V6.into());
    let ipv4 = ipv4.and_then(|ip| if let IpAddr::V4(ip) = ip { Some(ip) } else { None });
    let ipv6 = ipv6.and_then(|ip| if let IpAddr::V6(ip) = ip { Some(ip) } else { None });
    (ipv4, ipv6)
}

fn source_towards(any: IpAddr, destination: IpAddr) -> Option<IpAddr> {
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect((destination, 9)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// The binding that the configuration asks for, with the node's current source addresses.
pub(crate) fn vip_binding(wanted: config::VipBinding) -> anyhow::Result<VipBinding> {
    outward(match wanted {
        config::VipBinding::Address => VipBinding::Address,
        config::VipBinding::Route => VipBinding::Route { source_v4: None, source_v6: None },
    })
}

/// Adds the node's current source addresses to the binding.
pub(crate) fn outward(binding: VipBinding) -> anyhow::Result<VipBinding> {
    match binding {
        VipBinding::Address => Ok(binding),
        VipBinding::Route { .. } => {
            let (source_v4, source_v6) = route_sources()?;
            Ok(VipBinding::Route { source_v4, source_v6 })
        }
    }
}

/// The node's current source addresses, for VIPs that are routes. A VIP is never one of them: while VIPs are
/// still addresses, kube-proxy's or our own, and the outgoing interface has no IPv6 address itself, the
/// kernel may choose one (`ipv6_dev_get_saddr` in net/ipv6/addrconf.c).
pub(crate) fn route_sources() -> anyhow::Result<(Option<Ipv4Addr>, Option<Ipv6Addr>)> {
    let routes = VipBinding::Route { source_v4: None, source_v6: None };
    let own = KernelDummyInterface::open(routes)?.observe()?.node_addresses;
    let (source_v4, source_v6) = outward_addresses();
    Ok((
        source_v4.filter(|source| own.contains(&IpAddr::from(*source))),
        source_v6.filter(|source| own.contains(&IpAddr::from(*source))),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_without_ipv6_has_no_place_for_an_ipv6_bind_address() {
        let (ipv4, both) = (BTreeSet::from([Family::V4]), BTreeSet::from(Family::BOTH));
        assert!(serves(&ipv4, "0.0.0.0").is_ok() && serves(&both, "::").is_ok());
        let refused = serves(&ipv4, "::").unwrap_err().to_string();
        assert_eq!(refused, "bindAddress is ::, but this node has no IPv6");
        assert!(serves(&ipv4, "2001:db8::1").is_err());
    }
}
