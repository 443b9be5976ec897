//! The configuration that decides whether a flow is masqueraded or accepted.

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use ipvs::Family;
use serde::{Deserialize, Serialize};

/// The part of the configuration that shapes the rules.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Policy {
    /// Masquerade every flow to a ClusterIP.
    pub masquerade_all: bool,
    /// The packet mark that asks for masquerading, one bit (`1 << masqueradeBit`).
    pub mark: u32,
    /// How pods of this node are recognised.
    pub local_traffic: LocalTraffic,
    /// How the host's own firewall is treated.
    pub host_firewall: HostFirewall,
    /// The ranges of the pods of all nodes, at most one per family, if conntrack is to leave out their flows to some
    /// Services. Has no effect where every flow is masqueraded.
    pub untracked_pods: Vec<IpNet>,
    /// Whether other nodes may also tunnel by generic UDP encapsulation, to
    /// [`GUE_PORT`](crate::tunnel::GUE_PORT).
    pub gue: bool,
}

impl Policy {
    /// The policy with the defaults of every option that has one: bit 14 masquerades, the host's firewall is treated as
    /// kube-proxy does, every flow is tracked.
    pub fn new(local_traffic: LocalTraffic) -> Self {
        Self {
            masquerade_all: false,
            mark: 1 << 14,
            local_traffic,
            host_firewall: HostFirewall::default(),
            untracked_pods: Vec::new(),
            gue: false,
        }
    }

    /// The range of a family's pods of which conntrack is to leave out flows to some Services, if it can.
    pub fn untracked_pods_of(&self, family: Family) -> Option<IpNet> {
        let mut of_family = self.untracked_pods.iter().filter(|range| Family::from(range.addr()) == family);
        of_family.next().copied().filter(|_| !self.masquerade_all)
    }

    /// The packet mark that makes the host's own firewall accept: 0x1000, or 0x800 if the first is used for
    /// masquerading. Our table sets it before the host's chains and clears it after them, in the same hook,
    /// on what [`HostFirewall`] says.
    ///
    /// No bit is free of others (<https://github.com/fwmark/registry>). 0xff are the AWS and Antrea plugins'
    /// and administrators', 0xf00 Cilium's, 0x2000 is portmap's for hostPorts, 0x4000 masquerades and 0x8000
    /// drops for kubelet, 0xffff0000 are Calico's and Tailscale's. 0x1000 is the least used: by Cilium when
    /// it encrypts, and by Azure's network policies.
    pub const fn accept_mark(&self) -> u32 {
        const USUAL: u32 = 0x1000;
        if self.mark == USUAL { USUAL >> 1 } else { USUAL }
    }
}

/// How the host's own firewall is treated if its chains drop unknown traffic (`--host-firewall`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HostFirewall {
    /// What kube-proxy in ipvs mode accepts is accepted where kube-proxy accepts it, in the chains of
    /// iptables: in FORWARD what is marked for masquerading, and packets of connections that conntrack knows;
    /// in INPUT health checks. What drops anything else is reported.
    #[default]
    AsKubeProxy,
    /// The chains that drop are only reported.
    Warn,
    /// A rule in such a chain accepts what is sent to our VIPs and NodePorts, and what comes back.
    Accept,
}

/// How a flow from a pod of this node is recognised (`detectLocalMode`).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LocalTraffic {
    /// By its source address: the cluster's or the node's pod range, per family. In a family without a range
    /// nothing is known: of the flows to a ClusterIP only those whose source is itself a VIP are masqueraded,
    /// and an address of the external policy Local without an endpoint here is there for everybody.
    Source {
        /// The IPv4 range.
        ipv4: Option<Ipv4Net>,
        /// The IPv6 range.
        ipv6: Option<Ipv6Net>,
    },
    /// By the bridge it came in through. The name has 1 to 15 bytes.
    Bridge(Box<str>),
    /// By the first letters, 1 to 15 bytes, of the interface it came in through.
    InterfacePrefix(Box<str>),
}

impl LocalTraffic {
    /// Whether pods of this node are recognised in a family.
    pub const fn is_known(&self, family: Family) -> bool {
        match self {
            Self::Source { .. } => self.range(family).is_some(),
            Self::Bridge(_) | Self::InterfacePrefix(_) => true,
        }
    }

    /// The pods' range of a family, if they are recognised by it.
    pub const fn range(&self, family: Family) -> Option<IpNet> {
        match (self, family) {
            (Self::Source { ipv4: Some(range), .. }, Family::V4) => Some(IpNet::V4(*range)),
            (Self::Source { ipv6: Some(range), .. }, Family::V6) => Some(IpNet::V6(*range)),
            _ => None,
        }
    }
}
