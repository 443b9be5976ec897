//! How VIPs are bound here: with routes, from which of the node's own addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use dummy_interface::{DummyInterface as _, KernelDummyInterface, VipBinding};

use super::families;
use crate::config;

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

/// The node's current source addresses, for VIPs that are routes. A VIP is never one of them: while VIPs are still
/// addresses, kube-proxy's or our own, and the outgoing interface has no IPv6 address itself, the kernel may choose
/// one (`ipv6_dev_get_saddr` in net/ipv6/addrconf.c).
pub(crate) fn route_sources() -> anyhow::Result<(Option<Ipv4Addr>, Option<Ipv6Addr>)> {
    let routes = VipBinding::Route { source_v4: None, source_v6: None };
    let own = KernelDummyInterface::open(routes)?.observe()?.node_addresses;
    let (source_v4, source_v6) = families::outward_addresses();
    Ok((
        source_v4.filter(|source| own.contains(&IpAddr::from(*source))),
        source_v6.filter(|source| own.contains(&IpAddr::from(*source))),
    ))
}
