//! Reads what the checks need of the node, and changes nothing.

use std::{
    collections::BTreeMap,
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::Path,
};

use dummy_interface::{DEVICE, InterfaceAddress, interface_addresses};
use ipnet::Ipv4Net;
use service::{AddressKind, ObjectName, State};

use super::{arp::Network, ports::listeners};
use crate::{
    config::Settings,
    serve::control::{self, Client, Control as _},
    takeover::instance_lock,
};

/// The files in which the kernel lists who listens.
const LISTENERS: [&str; 2] = ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"];

/// The kernel's release, as `uname -r` has it.
pub(super) fn release() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned()
}

/// Whether the kernel has IPVS already: only then can it be asked without loading it.
pub(super) fn has_ipvs() -> bool {
    Path::new("/proc/thread-self/net/ip_vs").exists()
}

/// The locks of a kube-ipvs that are held, and by whom.
pub(super) fn locks(settings: Option<&Settings>) -> Vec<String> {
    instance_lock::held(socket(settings))
}

fn socket(settings: Option<&Settings>) -> &Path {
    settings.map_or(Path::new(control::SOCKET), |settings| &settings.control_socket)
}

/// The version of the kube-ipvs that answers at its control socket, if one does.
pub(super) fn kube_ipvs(settings: Option<&Settings>) -> Option<String> {
    Some(Client::new(socket(settings)).status().ok()?.daemon.version)
}

/// The addresses at which somebody listens.
pub(super) fn listening() -> Vec<SocketAddr> {
    let texts = LISTENERS.iter().filter_map(|path| fs::read_to_string(path).ok());
    texts.flat_map(|text| listeners(&text).collect::<Vec<_>>()).collect()
}

/// The networks that the node is in, without those that it is alone in.
pub(super) fn networks() -> Result<Vec<Network>, dummy_interface::Error> {
    let names: BTreeMap<_, _> = indices().into_iter().map(|(name, index)| (index, name)).collect();
    let network = |found: InterfaceAddress| {
        let IpAddr::V4(address) = found.address else { return None };
        let interface = names.get(&found.interface).filter(|name| name.as_str() != DEVICE)?.clone();
        let range = Ipv4Net::new(address, found.prefix).ok()?.trunc();
        let answers_all = answers_all(&interface);
        (!address.is_loopback() && found.prefix < 32).then_some(Network { interface, range, answers_all })
    };
    Ok(interface_addresses()?.into_iter().filter_map(network).collect())
}

/// Whether ARP is answered on an interface for every address of the node: the larger of the two parameters counts
/// (`IN_DEV_ARP_IGNORE` in include/linux/inetdevice.h).
fn answers_all(interface: &str) -> bool {
    let ignores = |whose: &str| {
        let value = fs::read_to_string(format!("/proc/sys/net/ipv4/conf/{whose}/arp_ignore"));
        value.is_ok_and(|value| value.trim() != "0")
    };
    !(ignores("all") || ignores(interface))
}

/// The interfaces with their indices.
fn indices() -> BTreeMap<String, u32> {
    let entries = fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
    let index = |entry: fs::DirEntry| {
        let index = fs::read_to_string(entry.path().join("ifindex")).ok()?.trim().parse().ok()?;
        Some((entry.file_name().into_string().ok()?, index))
    };
    entries.filter_map(index).collect()
}

/// The addresses of load balancers and the external IPs that become local to this node, each with a Service that has it.
pub(super) fn external(state: &State) -> BTreeMap<Ipv4Addr, ObjectName> {
    let external = state.virtual_servers().filter(|server| {
        matches!(server.kind, AddressKind::LoadBalancer | AddressKind::ExternalIp)
            && state.wants_vip(&server.address.ip)
    });
    let owned = external.filter_map(|server| match server.address.ip {
        IpAddr::V4(ip) => Some((ip, state.owner(&server.address)?.clone())),
        IpAddr::V6(_) => None,
    });
    owned.collect()
}
