//! A node that balances connections with IPVS, and who connects through it.

use std::net::{IpAddr, SocketAddr};

use ipvs::{Family, Protocol, RealServerAddress, ServiceAddress};
use netfilter::{
    Element, HairpinFlow, HostFirewall, KernelNetfilter, LocalTraffic, Netfilter, Operation, Policy,
};

use crate::support::{host::Host, programs::run};

/// A node with two pods and a client outside of the cluster.
pub(crate) struct Cluster {
    pub(crate) node: Host,
    pub(crate) pod1: Host,
    pub(crate) pod2: Host,
    pub(crate) client: Host,
}

/// The port of the ClusterIP and of the external address.
pub(crate) const PORT: u16 = 80;
/// Where both pods listen.
pub(crate) const TARGET_PORT: u16 = 8080;
const MARK: u32 = 0x4000;

/// Addresses end in 1 on the node's side of a link and in 2 on the other.
pub(crate) struct Addresses {
    /// A ClusterIP.
    pub(crate) vip: IpAddr,
    /// Of a load balancer, or one of `spec.externalIPs`.
    pub(crate) external: IpAddr,
    pub(crate) pod1: IpAddr,
    pub(crate) pod2: IpAddr,
    pub(crate) client: IpAddr,
    pub(crate) node_towards_client: IpAddr,
    pub(crate) node_towards_pod1: IpAddr,
    pub(crate) node_towards_pod2: IpAddr,
}

pub(crate) fn addresses(family: Family) -> Addresses {
    let of = |v4: &str, v6: &str| if family == Family::V4 { v4 } else { v6 }.parse().unwrap();
    Addresses {
        vip: of("10.96.0.10", "fd00:10:96::10"),
        external: of("203.0.113.10", "2001:db8:1::10"),
        pod1: of("10.244.1.2", "fd00:10:244:1::2"),
        pod2: of("10.244.2.2", "fd00:10:244:2::2"),
        client: of("192.0.2.2", "2001:db8::2"),
        node_towards_client: of("192.0.2.1", "2001:db8::1"),
        node_towards_pod1: of("10.244.1.1", "fd00:10:244:1::1"),
        node_towards_pod2: of("10.244.2.1", "fd00:10:244:2::1"),
    }
}

impl Cluster {
    pub(crate) fn new() -> Self {
        let cluster = Self { node: Host::new(), pod1: Host::new(), pod2: Host::new(), client: Host::new() };
        let node = &cluster.node;
        cluster.pod1.plug_into(node, "pod1", &["10.244.1.", "fd00:10:244:1::"]);
        cluster.pod2.plug_into(node, "pod2", &["10.244.2.", "fd00:10:244:2::"]);
        cluster.client.plug_into(node, "uplink", &["192.0.2.", "2001:db8::"]);
        node.write("/proc/sys/net/ipv4/ip_forward", "1");
        node.write("/proc/sys/net/ipv6/conf/all/forwarding", "1");
        node.write("/proc/sys/net/ipv4/vs/conntrack", "1");
        node.ip(&["link add kube-ipvs0 type dummy"]);
        for family in Family::BOTH {
            let Addresses { vip, external, .. } = addresses(family);
            let length = family.address_bits();
            for vip in [vip, external] {
                node.ip(&[&format!("address add {vip}/{length} dev kube-ipvs0")]);
            }
        }
        cluster.pod1.echo_peers(TARGET_PORT);
        cluster.pod2.echo_peers(TARGET_PORT);
        cluster
    }

    /// A cluster whose ClusterIPs, one per family, have `pod` as their only real server.
    pub(crate) fn balancing_to(pod: impl Fn(&Addresses) -> IpAddr) -> Self {
        let cluster = Self::new();
        for family in Family::BOTH {
            let addresses = addresses(family);
            let real = SocketAddr::new(pod(&addresses), TARGET_PORT);
            cluster.balance(SocketAddr::new(addresses.vip, PORT), real);
        }
        cluster
    }

    /// Adds a virtual server with one real server.
    pub(crate) fn balance(&self, server: SocketAddr, real: SocketAddr) {
        self.node.inside(move || {
            run(&format!("ipvsadm -A -t {server} -s rr"));
            run(&format!("ipvsadm -a -t {server} -r {real} -m"));
        });
    }

    /// Installs both tables with the ClusterIPs, and hairpin elements for `local` pods.
    pub(crate) fn install(&self, policy: &Policy, local: impl Fn(&Addresses) -> Vec<IpAddr>) {
        let mut changes = Vec::new();
        for family in Family::BOTH {
            let addresses = addresses(family);
            changes.push(Operation::InstallTable(family));
            let vip = ServiceAddress { protocol: Protocol::Tcp, ip: addresses.vip, port: PORT };
            changes.push(Operation::AddElement(Element::ClusterIp(vip)));
            changes.extend(local(&addresses).into_iter().map(|ip| {
                let pod = RealServerAddress { ip, port: TARGET_PORT };
                Operation::AddElement(Element::Hairpin(HairpinFlow { protocol: Protocol::Tcp, pod }))
            }));
        }
        self.apply(policy, changes);
    }

    pub(crate) fn apply(&self, policy: &Policy, changes: Vec<Operation>) {
        let policy = policy.clone();
        self.node.inside(move || KernelNetfilter::open(&policy).unwrap().apply(&changes).unwrap());
    }
}

pub(crate) fn policy(local_traffic: LocalTraffic) -> Policy {
    Policy { mark: MARK, host_firewall: HostFirewall::Warn, ..Policy::new(local_traffic) }
}

pub(crate) fn cluster_cidr() -> LocalTraffic {
    LocalTraffic::Source {
        ipv4: Some("10.244.0.0/16".parse().unwrap()),
        ipv6: Some("fd00:10:244::/48".parse().unwrap()),
    }
}
