//! Handing a node to a kube-proxy that translates destinations itself, in iptables or nftables mode.
//!
//! New connections are its own from then on. Open ones keep what they need: IPVS, which has chosen their real
//! servers, the VIPs, and what masquerades and accepts them.

mod preview;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    iter::Sum,
};

use dummy_interface::{remove_routes, replace_device_by_routes};
use host_rules::leftovers::{self, Translation, has_written};
use ipvs::{Command, FailedRequest, Family, Ipvs, KernelIpvs, ObservedRealServer, ServiceAddress};
use netfilter::{Element, ElementSet};
use service::one_line;

use super::live_proxy::LiveProxy;
use crate::node::families::{outward_addresses, route_sources};
pub use preview::{Preview, no_default_route, nothing_unknown_is_left, preview};

/// Why no proxy takes the node over.
#[derive(Debug, thiserror::Error)]
pub enum NoSuccessor {
    /// No program answers where kube-proxy does.
    #[error("no kube-proxy answers at 127.0.0.1:10249/proxyMode")]
    None,
    /// The proxy needs what would be taken away.
    #[error("{0}: `kube-ipvs cleanup --keep-ipvs` leaves virtual servers and kube-ipvs0 to it")]
    OtherMode(LiveProxy),
    /// The proxy has just started, or its rules cannot be read.
    #[error(
        "{proxy}, but has no rules for {family} yet, or has them in iptables-legacy, which cannot be read"
    )]
    NoRules {
        /// The proxy.
        proxy: LiveProxy,
        /// A family in which this node has ClusterIPs.
        family: Family,
    },
    /// The rules were there, and are no longer.
    #[error("the rules of kube-proxy in {mode} mode for {family} are gone")]
    RulesGone {
        /// The mode of the proxy.
        mode: String,
        /// A family in which this node has ClusterIPs.
        family: Family,
    },
    /// The kernel's answer was not understood, or others change their rules all the time.
    #[error(transparent)]
    Unreadable(#[from] leftovers::Error),
}

/// What our tables say that we serve. Virtual servers beside it are not ours.
#[derive(Debug, Default)]
pub struct Served {
    addresses: BTreeSet<ServiceAddress>,
    /// The families with a ClusterIP.
    families: BTreeSet<Family>,
}

impl Served {
    /// Reads our tables; nothing where there are none.
    pub fn read() -> Result<Self, netfilter::Error> {
        Ok(netfilter::elements()?.into())
    }

    /// Whether nothing is served.
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty()
    }

    /// The families in which the node itself would not reach a ClusterIP without us: it has no default route,
    /// so that its connections fail before another proxy's rules could send them elsewhere.
    pub fn families_without_a_route(&self) -> Vec<Family> {
        let (ipv4, ipv6) = outward_addresses();
        let outward = |family: &Family| match family {
            Family::V4 => ipv4.is_some(),
            Family::V6 => ipv6.is_some(),
        };
        self.families.iter().copied().filter(|family| !outward(family)).collect()
    }

    /// Whether this virtual server is ours.
    pub fn has(&self, address: &ServiceAddress) -> bool {
        self.addresses.contains(address)
    }

    /// The proxy that has rules for all of it.
    pub fn successor(&self) -> Result<LiveProxy, NoSuccessor> {
        let proxy = LiveProxy::find().ok_or(NoSuccessor::None)?;
        let Some(translation) = translation(&proxy) else { return Err(NoSuccessor::OtherMode(proxy)) };
        match self.family_without_rules(translation)? {
            Some(family) => Err(NoSuccessor::NoRules { proxy, family }),
            None => Ok(proxy),
        }
    }

    /// Whether the proxy that took over still has rules for all of it. It need not run: its rules serve. If one runs, it
    /// must not have changed to ipvs mode, in which it writes some of the rules too.
    pub fn still_served_by(&self, proxy: &LiveProxy) -> Result<(), NoSuccessor> {
        if let Some(now) = LiveProxy::find().filter(|now| translation(now).is_none()) {
            return Err(NoSuccessor::OtherMode(now));
        }
        let Some(translation) = translation(proxy) else { return Ok(()) };
        match self.family_without_rules(translation)? {
            Some(family) => Err(NoSuccessor::RulesGone { mode: proxy.mode().to_owned(), family }),
            None => Ok(()),
        }
    }

    fn family_without_rules(&self, of: Translation) -> Result<Option<Family>, leftovers::Error> {
        for &family in &self.families {
            if !has_written(of, family)? {
                return Ok(Some(family));
            }
        }
        Ok(None)
    }
}

/// How the proxy translates destinations; `None` for one that uses IPVS.
fn translation(proxy: &LiveProxy) -> Option<Translation> {
    match proxy.mode() {
        "iptables" => Some(Translation::Iptables),
        "nftables" => Some(Translation::Nftables),
        _ => None,
    }
}

impl From<ElementSet> for Served {
    fn from(elements: ElementSet) -> Self {
        let is_cluster_ip = |element: &Element| matches!(element, Element::ClusterIp(_));
        Self {
            families: elements.iter().filter(is_cluster_ip).map(|element| element.family()).collect(),
            addresses: elements.iter().filter_map(|element| element.virtual_server().copied()).collect(),
        }
    }
}

/// Hands new connections over: VIPs become routes, so that what the node opens from now on does not come from
/// one, and our tables no longer keep new flows from the other proxy. What it does not take is refused: a
/// Service may be gone.
///
/// Returns the connections that are open, and what was refused. Whatever of this was done before is not done
/// again.
pub fn hand_over(served: &Served) -> anyhow::Result<(OpenConnections<KernelIpvs>, Vec<String>)> {
    let (source_v4, source_v6) = route_sources()?;
    replace_device_by_routes(source_v4, source_v6)?;
    for family in Family::BOTH {
        netfilter::hand_over(family)?;
    }
    let mut open = match KernelIpvs::open() {
        Ok(kernel) => OpenConnections::at(kernel, served),
        Err(ipvs::Error::NoIpvs) => OpenConnections::none(),
        Err(error) => return Err(error.into()),
    };
    let refused = open.refuse_new_ones()?;
    Ok((open, refused))
}

/// The connections at our virtual servers.
#[derive(Debug)]
pub struct OpenConnections<K> {
    kernel: Option<K>,
    /// The connections of each virtual server when last read. One that has none gets no more.
    at: BTreeMap<ServiceAddress, Count>,
    /// What could not be read last time; it counts as it did before.
    unread: Option<String>,
}

/// How many connections, as IPVS counts them: inactive are those of UDP, and of TCP those that are closing,
/// or have been closed up to two minutes ago.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    active: u64,
    inactive: u64,
}

impl Count {
    /// Active and inactive connections together.
    pub fn total(self) -> u64 {
        self.active + self.inactive
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} active and {} inactive connections", self.active, self.inactive)
    }
}

impl From<&ObservedRealServer> for Count {
    fn from(server: &ObservedRealServer) -> Self {
        Self { active: server.active_connections.into(), inactive: server.inactive_connections.into() }
    }
}

impl Sum for Count {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::default(), |one, other| Self {
            active: one.active + other.active,
            inactive: one.inactive + other.inactive,
        })
    }
}

impl<K: Ipvs> OpenConnections<K> {
    /// No connections, where nothing is served.
    pub fn none() -> Self {
        Self { kernel: None, at: BTreeMap::new(), unread: None }
    }

    fn at(kernel: K, served: &Served) -> Self {
        // Each counts until it was read.
        let one = Count { active: 1, inactive: 0 };
        let at = served.addresses.iter().map(|address| (*address, one)).collect();
        Self { kernel: Some(kernel), at, unread: None }
    }

    /// Gives every real server the weight 0, which keeps its connections. Returns those that were refused.
    fn refuse_new_ones(&mut self) -> Result<Vec<String>, ipvs::Error> {
        let Some(kernel) = &mut self.kernel else { return Ok(Vec::new()) };
        let mut edits = Vec::new();
        for address in self.at.keys() {
            let id = (*address).into();
            let weighty = kernel.real_servers(id)?.into_iter().filter(|real| real.config.weight != 0);
            edits.extend(weighty.map(|real| Command::EditRealServer(id, real.config.weight(0))));
        }
        let failed = kernel.apply(&edits)?.into_iter();
        let named =
            |failed: FailedRequest| Some(format!("{}: {}", edits.get(failed.index)?, failed.error.cause()));
        Ok(failed.filter_map(named).collect())
    }

    /// Counts the connections again, and releases the VIPs that have none: as long as they are bound, no other machine
    /// can have such an address, and the hostPorts of others apply to it.
    pub fn recount(&mut self) -> Result<(), dummy_interface::Error> {
        self.count_again();
        remove_routes(&self.at.keys().map(|address| address.ip).collect()).map(drop)
    }

    fn count_again(&mut self) {
        let Some(kernel) = &mut self.kernel else { return };
        self.unread = None;
        self.at.retain(|address, count| {
            match kernel.real_servers((*address).into()) {
                Ok(real_servers) => *count = real_servers.iter().map(Count::from).sum(),
                Err(error) => self.unread = Some(format!("{address}: {}", one_line(&error))),
            }
            count.total() > 0
        });
    }

    /// The number of open connections.
    pub fn count(&self) -> Count {
        self.at.values().copied().sum()
    }

    /// The virtual servers with open connections, and how many.
    pub fn by_virtual_server(&self) -> impl Iterator<Item = (&ServiceAddress, Count)> {
        self.at.iter().map(|(address, count)| (address, *count))
    }

    /// What could not be read last time.
    pub fn unread(&self) -> Option<&str> {
        self.unread.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use ipvs::{Protocol, RealServer, Scheduler, VirtualServer};
    use netlink::Errno;
    use testkit::FakeKernel;

    use super::*;

    fn address(last: u8) -> ServiceAddress {
        ServiceAddress { protocol: Protocol::Tcp, ip: [10, 96, 0, last].into(), port: 80 }
    }

    /// Virtual servers at these addresses with so many connections, at one real server each.
    fn kernel(connections: &[(u8, u32)]) -> FakeKernel {
        let kernel = FakeKernel::new();
        for (last, active_connections) in connections {
            let config = RealServer::masquerade([10, 244, 1, *last].into(), 8080);
            let mut real = ObservedRealServer::new(config);
            real.active_connections = *active_connections;
            let id = address(*last).into();
            let server = VirtualServer::new(id, Scheduler::RR);
            kernel.state().virtual_servers.insert(id, (server, [(config.address, real)].into()));
        }
        kernel
    }

    fn open(kernel: &FakeKernel, served: &[u8]) -> OpenConnections<FakeKernel> {
        let elements = served.iter().map(|last| Element::ClusterIp(address(*last)));
        OpenConnections::at(kernel.clone(), &Served::from(elements.collect::<ElementSet>()))
    }

    #[test]
    fn only_the_virtual_servers_that_our_tables_name_lose_their_weights() {
        let kernel = kernel(&[(1, 0), (2, 0)]);
        assert_eq!(open(&kernel, &[1, 3]).refuse_new_ones().unwrap(), [""; 0]);
        let edit = "edit real server TCP 10.96.0.1:80 -> 10.244.1.1:8080 weight 0\n";
        assert_eq!(kernel.writes(), edit);
        kernel.heal();
        assert_eq!(open(&kernel, &[1, 3]).refuse_new_ones().unwrap(), [""; 0]);
        assert_eq!(kernel.writes(), "", "it was done before");
    }

    #[test]
    fn a_refused_edit_is_named_and_the_others_are_made() {
        let kernel = kernel(&[(1, 0), (2, 0)]);
        // After the two readings, the first.
        kernel.fail_call(2, Errno::ENOMEM);
        let refused = open(&kernel, &[1, 2]).refuse_new_ones().unwrap();
        let cause = Errno::ENOMEM;
        assert_eq!(
            refused,
            [format!("edit real server TCP 10.96.0.1:80 -> 10.244.1.1:8080 weight 0: {cause}")]
        );
        assert_eq!(kernel.writes(), "edit real server TCP 10.96.0.2:80 -> 10.244.1.2:8080 weight 0\n");
    }

    #[test]
    fn what_cannot_be_read_counts_as_before_and_the_others_are_counted() {
        let kernel = kernel(&[(1, 3), (2, 4), (3, 0)]);
        let mut open = open(&kernel, &[1, 2, 3]);
        open.count_again();
        assert_eq!((open.count().total(), open.unread()), (7, None));
        kernel.state().virtual_servers.clear();
        kernel.fail_call(0, Errno::ENOMEM);
        open.count_again();
        assert_eq!(
            open.by_virtual_server().collect::<Vec<_>>(),
            [(&address(1), Count { active: 3, inactive: 0 })]
        );
        assert!(open.unread().unwrap().starts_with("TCP 10.96.0.1:80: "), "{:?}", open.unread());
        open.count_again();
        assert_eq!((open.count(), open.unread()), (Count::default(), None));
    }

    #[test]
    fn families_in_which_there_is_no_cluster_ip_need_no_rules_of_the_other_proxy() {
        let node_port = ServiceAddress { ip: "fd00:50::1".parse().unwrap(), ..address(1) };
        let elements = [Element::ClusterIp(address(1)), Element::External(node_port)];
        let served = Served::from(elements.into_iter().collect::<ElementSet>());
        assert_eq!(served.families, BTreeSet::from([Family::V4]));
        assert!(served.has(&node_port) && !served.has(&address(2)) && !served.is_empty());
    }
}
