//! Clears the way to the API server before anything is asked of it.
//!
//! A VIP that an earlier program bound takes whatever this node sends to its address. If it is the API server's, the
//! lists never come, nothing is written, and the VIP stays: nothing would heal that.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
};

use dummy_interface::{DummyInterface, KernelDummyInterface, Operation, VipBinding};
use ipvs::{Command, Ipvs, Protocol, ServiceAddress, VirtualServerId};
use rustc_hash::FxHashSet;
use tracing::warn;

/// The port of the ClusterIP of `default/kubernetes`, whose real servers are the API servers: the program may ask one
/// of them through a proxy on this node, as with k3s.
const CLUSTER_IP_PORT: u16 = 443;

/// Unbinds the VIPs that stand between this node and the API server at these addresses. What cannot be done is logged:
/// nearly always there is nothing to do.
pub(in crate::daemon) fn clear(ipvs: &mut impl Ipvs, api_server: &BTreeSet<SocketAddr>) {
    if let Err(error) = try_to_clear(ipvs, api_server) {
        warn!("cannot check whether a VIP hides the API server: {error:#}");
    }
}

fn try_to_clear(ipvs: &mut impl Ipvs, api_server: &BTreeSet<SocketAddr>) -> anyhow::Result<()> {
    let mut links = KernelDummyInterface::open(VipBinding::Address)?;
    let observed = links.observe()?;
    let bound = &observed.bound | &observed.stale_bindings;
    if bound.is_empty() {
        return Ok(());
    }
    let servers: FxHashSet<_> =
        ipvs.virtual_servers()?.iter().filter_map(|it| tcp_address(it.config.id)).collect();
    let mut leads_to = |at: SocketAddr| {
        if !servers.contains(&at) {
            return Ok(Vec::new());
        }
        // One of weight 0 takes no new connections.
        let used = ipvs.real_servers(tcp(at).into())?.into_iter().filter(|server| server.config.weight > 0);
        Ok::<_, ipvs::Error>(
            used.map(|server| server.config.address).map(|it| SocketAddr::new(it.ip, it.port)).collect(),
        )
    };
    let ways = ways(api_server, &servers, &mut leads_to)?;
    let hiding = hiding(&ways, &bound, leads_to)?;
    if hiding.is_empty() {
        return Ok(());
    }
    // IPVS takes what the node sends to a virtual server, whether its address is bound or not.
    let empty = hiding.iter().filter(|at| servers.contains(at));
    let deletions: Vec<_> = empty.map(|at| Command::DeleteVirtualServer(tcp(*at).into())).collect();
    for failed in ipvs.apply(&deletions)? {
        warn!("a virtual server without real servers hides the API server: {}", failed.error);
    }
    let vips: BTreeSet<IpAddr> = hiding.iter().map(SocketAddr::ip).collect();
    let operations: Vec<_> = vips.iter().copied().map(Operation::Unbind).collect();
    let failed = links.apply(&operations)?;
    for (position, vip) in vips.iter().enumerate() {
        match failed.iter().find(|failed| failed.index == position) {
            Some(failed) => {
                warn!(%vip, "the VIP hides the API server and cannot be unbound: {}", failed.error);
            }
            None => warn!(%vip, "the VIP was unbound: it hid the API server, which has this address"),
        }
    }
    Ok(())
}

/// The addresses to which a connection to the API server goes.
///
/// A program on this node that is asked there asks one of the API servers itself, and not the ClusterIP.
fn ways<E>(
    api_server: &BTreeSet<SocketAddr>,
    virtual_servers: &FxHashSet<SocketAddr>,
    mut leads_to: impl FnMut(SocketAddr) -> Result<Vec<SocketAddr>, E>,
) -> Result<BTreeSet<SocketAddr>, E> {
    let mut ways = api_server.clone();
    if api_server.iter().any(|at| at.ip().is_loopback()) {
        for cluster_ip in virtual_servers.iter().filter(|at| at.port() == CLUSTER_IP_PORT) {
            ways.extend(leads_to(*cluster_ip)?);
        }
    }
    Ok(ways)
}

/// The VIPs with a port at which a connection to the API server would end on this node.
///
/// A VIP with a virtual server at the API server's port leads on: to its real servers, as the ClusterIP of
/// `default/kubernetes` does. Without them it leads nowhere. `leads_to` are the real servers that take connections.
fn hiding<E>(
    ways: &BTreeSet<SocketAddr>,
    bound: &BTreeSet<IpAddr>,
    mut leads_to: impl FnMut(SocketAddr) -> Result<Vec<SocketAddr>, E>,
) -> Result<BTreeSet<SocketAddr>, E> {
    let mut hiding = BTreeSet::new();
    for way in ways {
        let next = leads_to(*way)?;
        if next.is_empty() && bound.contains(&way.ip()) {
            hiding.insert(*way);
        }
        for real in next {
            if bound.contains(&real.ip()) && leads_to(real)?.is_empty() {
                hiding.insert(real);
            }
        }
    }
    Ok(hiding)
}

fn tcp(at: SocketAddr) -> ServiceAddress {
    ServiceAddress { protocol: Protocol::Tcp, ip: at.ip(), port: at.port() }
}

fn tcp_address(id: VirtualServerId) -> Option<SocketAddr> {
    match id {
        VirtualServerId::Address(ServiceAddress { protocol: Protocol::Tcp, ip, port }) => {
            Some(SocketAddr::new(ip, port))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, convert::Infallible};

    use super::*;

    /// The VIPs that hide an API server at `10.96.0.1:443`, where virtual servers lead on to these addresses.
    fn hidden_by(bound: &[&str], servers: &[(&str, &str)]) -> Vec<String> {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let mut next: BTreeMap<SocketAddr, Vec<SocketAddr>> = BTreeMap::new();
        for (server, real) in servers {
            next.entry(at(server)).or_default().push(at(real));
        }
        let bound = bound.iter().map(|ip| ip.parse().unwrap()).collect();
        let leads_to = |at: SocketAddr| Ok::<_, Infallible>(next.get(&at).cloned().unwrap_or_default());
        let Ok(hiding) = hiding(&[at("10.96.0.1:443")].into(), &bound, leads_to);
        hiding.into_iter().map(|at| at.ip().to_string()).collect()
    }

    #[test]
    fn a_vip_without_a_virtual_server_for_the_api_server_hides_it() {
        assert_eq!(
            hidden_by(&["10.96.0.1", "10.96.0.2"], &[("10.96.0.1:80", "10.244.0.1:80")]),
            ["10.96.0.1"]
        );
        assert_eq!(hidden_by(&["10.96.0.2"], &[]), [""; 0], "another one does not");
    }

    #[test]
    fn a_vip_of_the_api_server_stays_and_one_that_hides_its_real_servers_goes() {
        let servers = [("10.96.0.1:443", "192.0.2.10:6443"), ("10.96.0.1:443", "192.0.2.11:6443")];
        assert_eq!(hidden_by(&["10.96.0.1"], &servers), [""; 0]);
        assert_eq!(hidden_by(&["10.96.0.1", "192.0.2.11"], &servers), ["192.0.2.11"]);
    }

    #[test]
    fn a_node_that_asks_a_local_proxy_goes_to_real_servers_and_not_to_the_cluster_ip() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let servers = [at("10.96.0.1:443"), at("10.96.0.2:80")].into_iter().collect();
        let leads_to = |_| Ok::<_, Infallible>(vec![at("192.0.2.10:6443")]);
        let asked = |api_server: &str| {
            let Ok(ways) = ways(&[at(api_server)].into(), &servers, leads_to);
            ways.into_iter().map(|at| at.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(asked("127.0.0.1:6444"), ["127.0.0.1:6444", "192.0.2.10:6443"]);
        assert_eq!(asked("192.0.2.11:6443"), ["192.0.2.11:6443"]);
    }

    #[test]
    fn a_vip_whose_virtual_server_has_no_real_servers_hides_it_too() {
        let leads_to = |at: SocketAddr| Ok::<_, Infallible>(if at.port() == 443 { vec![] } else { vec![at] });
        let at: SocketAddr = "192.0.2.10:443".parse().unwrap();
        let Ok(found) = hiding(&[at].into(), &[at.ip()].into(), leads_to);
        assert_eq!(found, [at].into());
    }
}
