//! Clears the way to the API server before anything is asked of it.
//!
//! A VIP that an earlier program bound takes whatever this node sends to its address. If it is the API server's, the lists
//! never come, nothing is written, and the VIP stays: nothing would heal that.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
};

use dummy_interface::{DummyInterface, KernelDummyInterface, Operation, VipBinding};
use ipvs::{Ipvs, Protocol, RealServerAddress, ServiceAddress, VirtualServerId};
use tracing::warn;

/// The port of the ClusterIP of `default/kubernetes`, whose real servers are the API servers: the program may ask one of them
/// through a proxy on this node, as with k3s.
const CLUSTER_IP_PORT: u16 = 443;

/// Unbinds the VIPs that stand between this node and the API server at these addresses. What cannot be done is logged:
/// nearly always there is nothing to do.
pub(in crate::daemon) fn clear(ipvs: &mut impl Ipvs, api_server: &BTreeSet<SocketAddr>) {
    if let Err(error) = try_to_clear(ipvs, api_server) {
        warn!("whether a VIP hides the API server is not known: {error:#}");
    }
}

fn try_to_clear(ipvs: &mut impl Ipvs, api_server: &BTreeSet<SocketAddr>) -> anyhow::Result<()> {
    let mut links = KernelDummyInterface::open(VipBinding::Address)?;
    let observed = links.observe()?;
    let bound = &observed.bound | &observed.stale_bindings;
    if bound.is_empty() {
        return Ok(());
    }
    let servers = ipvs.virtual_servers()?;
    let mut real_servers = |of: ServiceAddress| -> Result<Option<Vec<RealServerAddress>>, ipvs::Error> {
        if !servers.iter().any(|server| server.config.id == of.into()) {
            return Ok(None);
        }
        let found = ipvs.real_servers(of.into())?;
        Ok(Some(found.into_iter().map(|server| server.config.address).collect()))
    };
    let kubernetes = servers.iter().filter_map(|server| match server.config.id {
        VirtualServerId::Address(at) if at.protocol == Protocol::Tcp && at.port == CLUSTER_IP_PORT => {
            Some(SocketAddr::new(at.ip, at.port))
        }
        _ => None,
    });
    let ways = api_server.iter().copied().chain(kubernetes).collect();
    let hiding = hiding(&ways, &bound, &mut real_servers)?;
    if hiding.is_empty() {
        return Ok(());
    }
    let operations: Vec<_> = hiding.iter().copied().map(Operation::Unbind).collect();
    let failed = links.apply(&operations)?;
    for (position, vip) in hiding.iter().enumerate() {
        match failed.iter().find(|failed| failed.index == position) {
            Some(failed) => {
                warn!(%vip, "the VIP hides the API server and cannot be unbound: {}", failed.error);
            }
            None => warn!(%vip, "the VIP was unbound: it hid the API server, which has this address"),
        }
    }
    Ok(())
}

/// The VIPs at which a connection to the API server would end on this node.
///
/// A VIP with a virtual server at the API server's port leads on: to its real servers, as the ClusterIP of
/// `default/kubernetes` does. Without one it leads nowhere.
fn hiding<E>(
    ways: &BTreeSet<SocketAddr>,
    bound: &BTreeSet<IpAddr>,
    real_servers: &mut impl FnMut(ServiceAddress) -> Result<Option<Vec<RealServerAddress>>, E>,
) -> Result<BTreeSet<IpAddr>, E> {
    let mut hiding = BTreeSet::new();
    for at in ways {
        match real_servers(tcp(*at))? {
            Some(next) => {
                for real in next {
                    let at = SocketAddr::new(real.ip, real.port);
                    if bound.contains(&real.ip) && real_servers(tcp(at))?.is_none() {
                        hiding.insert(real.ip);
                    }
                }
            }
            None if bound.contains(&at.ip()) => _ = hiding.insert(at.ip()),
            None => {}
        }
    }
    Ok(hiding)
}

fn tcp(at: SocketAddr) -> ServiceAddress {
    ServiceAddress { protocol: Protocol::Tcp, ip: at.ip(), port: at.port() }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, convert::Infallible};

    use super::*;

    /// The VIPs that hide an API server at `10.96.0.1:443`, where virtual servers lead on to these addresses.
    fn hidden_by(bound: &[&str], servers: &[(&str, &str)]) -> Vec<String> {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let mut next: BTreeMap<SocketAddr, Vec<RealServerAddress>> = BTreeMap::new();
        for (server, real) in servers {
            let real = at(real);
            next.entry(at(server)).or_default().push(RealServerAddress { ip: real.ip(), port: real.port() });
        }
        let bound = bound.iter().map(|ip| ip.parse().unwrap()).collect();
        let mut real_servers = |of: ServiceAddress| -> Result<_, Infallible> {
            Ok(next.get(&SocketAddr::new(of.ip, of.port)).cloned())
        };
        let Ok(hiding) = hiding(&[at("10.96.0.1:443")].into(), &bound, &mut real_servers);
        hiding.into_iter().map(|ip| ip.to_string()).collect()
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
    fn a_vip_that_leads_to_the_api_server_stays_and_what_hides_its_real_servers_does_not() {
        let servers = [("10.96.0.1:443", "192.0.2.10:6443"), ("10.96.0.1:443", "192.0.2.11:6443")];
        assert_eq!(hidden_by(&["10.96.0.1"], &servers), [""; 0]);
        assert_eq!(hidden_by(&["10.96.0.1", "192.0.2.11"], &servers), ["192.0.2.11"]);
    }
}
