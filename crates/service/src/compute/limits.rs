//! The limits of the cost of one Service on each node.
//!
//! A few kilobytes of Service multiply: ports by addresses, and these by endpoints or source ranges. All
//! Services share one writer and one kernel, and a cluster limits how many Services a tenant has, not how large
//! they are. So each Service has a quota, well above any known need. What exceeds it is not served, and reported
//! as a problem.

use std::{collections::BTreeMap, fmt, net::IpAddr};

use ipvs::{Family, Scheduler};

use super::AddressKind;
use crate::input::{CompactSlice, Service, ServicePort};

/// How many external IPs one Service has, and how many addresses of load balancers. To bind an address the kernel goes
/// through all that are there (`__inet_insert_ifa` in net/ipv4/devinet.c): forty thousand take minutes.
pub const MAX_ADDRESSES: usize = 1_024;

/// How many virtual servers one Service has. A set of kube-proxy's has 65,536 elements, of all Services together
/// (`maxelem` of ipset).
pub const MAX_VIRTUAL_SERVERS: usize = 40_960;

/// How many real servers all virtual servers of one Service have together.
pub const MAX_REAL_SERVERS: usize = 262_144;

/// The same with the scheduler `mh`, which fills a table of 4,093 entries anew whenever one is added
/// (`ip_vs_mh_reassign` in net/netfilter/ipvs/ip_vs_mh.c).
pub const MAX_REAL_SERVERS_MH: usize = 32_768;

/// How many real servers one virtual server has. To add one, the kernel goes through all that are there
/// (`ip_vs_lookup_dest` in net/netfilter/ipvs/ip_vs_ctl.c): ten thousand take a second, sixty thousand a
/// minute.
pub const MAX_REAL_SERVERS_PER_VIRTUAL_SERVER: usize = 10_000;

/// How many elements the source ranges of one Service become: ranges by load-balancer addresses by ports. The
/// more the kernel has of one address, the longer it takes to add or delete one (`pipapo_refill` and
/// `nft_pipapo_remove` in net/netfilter/nft_set_pipapo.c): six thousand take a second to add and five to delete,
/// sixteen thousand seven and thirty.
pub const MAX_ALLOWED_SOURCES: usize = 6_144;

/// The rest of the quota of one Service. The addresses that matter most take theirs first.
///
/// An address with a port counts with all endpoints that slices list for that port, ready or not, here or elsewhere:
/// what fits does not change when a pod becomes ready, and is the same on every node.
pub(super) struct Quota<'a> {
    virtual_servers: usize,
    real_servers: usize,
    allowed_sources: usize,
    scheduler: Scheduler,
    slices: &'a [CompactSlice],
    shares: BTreeMap<(AddressKind, Family), Share>,
    ranges: BTreeMap<Family, RangesShare>,
}

/// The share of the addresses of one kind and family.
#[derive(Default)]
struct Share {
    asked: usize,
    served: usize,
    /// The limit that the first one met that did not fit.
    bound: Option<Bound>,
}

/// The share of the source ranges of one family.
#[derive(Default)]
struct RangesShare {
    /// Load-balancer addresses with a port.
    asked: usize,
    /// Those at which no client is let in, because not all of the ranges fit.
    closed: usize,
    /// How many elements the ranges take at one of them.
    elements: usize,
}

/// A limit of what a Service has.
#[derive(Clone, Copy)]
enum Bound {
    VirtualServers,
    RealServers { scheduler: Scheduler, endpoints: usize },
}

impl<'a> Quota<'a> {
    /// The whole quota, for a Service of which this is the costliest scheduler.
    pub(super) fn new(slices: &'a [CompactSlice], scheduler: Scheduler) -> Self {
        Self {
            virtual_servers: MAX_VIRTUAL_SERVERS,
            real_servers: most_real_servers(scheduler),
            allowed_sources: MAX_ALLOWED_SOURCES,
            scheduler,
            slices,
            shares: BTreeMap::new(),
            ranges: BTreeMap::new(),
        }
    }

    /// Takes the virtual servers of these ports at each of these addresses, address by address: as many whole addresses
    /// as fit, and of the next one the ports that fit. Returns those for which there is room.
    pub(super) fn take<'p>(
        &mut self,
        kind: AddressKind,
        family: Family,
        ips: &[IpAddr],
        ports: &[(&'p ServicePort, u16)],
    ) -> Vec<(IpAddr, &'p ServicePort, u16)> {
        let mut fit = Vec::new();
        let mut bound = None;
        if ips.is_empty() {
            return fit;
        }
        let ports: Vec<_> =
            ports.iter().map(|&(port, number)| (port, number, self.endpoints_of(port, family))).collect();
        for &ip in ips {
            for &(port, number, endpoints) in &ports {
                match self.take_one(endpoints) {
                    Ok(()) => fit.push((ip, port, number)),
                    Err(met) => bound = bound.or(Some(met)),
                }
            }
            if bound.is_some() {
                break;
            }
        }
        let share = self.shares.entry((kind, family)).or_default();
        share.asked += ips.len() * ports.len();
        share.served += fit.len();
        share.bound = share.bound.or(bound);
        fit
    }

    /// Sets aside what the NodePorts of a Service take at one address of each of its families, whatever addresses this
    /// node has. Returns how many virtual and real servers.
    pub(super) fn set_aside(&mut self, service: &Service) -> [usize; 2] {
        let before = (self.virtual_servers, self.real_servers);
        for family in Family::BOTH.into_iter().filter(|family| service.has_cluster_ip_of(*family)) {
            for (port, _) in AddressKind::NodePort.ports(service) {
                // What does not fit leaves room for what does.
                _ = self.take_one(self.endpoints_of(port, family));
            }
        }
        [before.0 - self.virtual_servers, before.1 - self.real_servers]
    }

    /// Gives back what was set aside.
    pub(super) fn release(&mut self, [virtual_servers, real_servers]: [usize; 2]) {
        self.virtual_servers += virtual_servers;
        self.real_servers += real_servers;
    }

    /// Takes the virtual server of a port with so many endpoints at one address.
    fn take_one(&mut self, endpoints: usize) -> Result<(), Bound> {
        let endpoints = endpoints.min(MAX_REAL_SERVERS_PER_VIRTUAL_SERVER);
        let virtual_servers = self.virtual_servers.checked_sub(1).ok_or(Bound::VirtualServers)?;
        let exhausted = Bound::RealServers { scheduler: self.scheduler, endpoints };
        self.real_servers = self.real_servers.checked_sub(endpoints).ok_or(exhausted)?;
        self.virtual_servers = virtual_servers;
        Ok(())
    }

    /// Takes so many elements for the clients of a load balancer's address with a port. Returns whether they fit: to
    /// leave out some clients would be as wrong for them as to leave out all, and harder to see.
    pub(super) fn let_in(&mut self, family: Family, elements: usize) -> bool {
        let left = self.allowed_sources.checked_sub(elements);
        self.allowed_sources = left.unwrap_or(self.allowed_sources);
        let share = self.ranges.entry(family).or_default();
        share.asked += 1;
        share.closed += usize::from(left.is_none());
        share.elements = elements;
        left.is_some()
    }

    /// The problems of a Service of which something does not fit.
    pub(super) fn problems(&self, service: &Service) -> Vec<String> {
        let endpoints = Family::BOTH.into_iter().filter_map(|family| {
            let most = service.ports.iter().map(|port| self.endpoints_of(port, family)).max()?;
            (most > MAX_REAL_SERVERS_PER_VIRTUAL_SERVER).then(|| {
                format!(
                    "endpoints: of {most} ({family}) only the first {MAX_REAL_SERVERS_PER_VIRTUAL_SERVER} usable ones by address are \
                     used: the limit of a virtual server"
                )
            })
        });
        let addresses = self.shares.iter().filter_map(|((kind, family), share)| {
            let Share { asked, served, bound } = share;
            let most = bound.as_ref()?;
            let field = kind.field();
            Some(format!(
                "{field}: of {asked} addresses with a port ({family}) {served} are served: a Service has at most {most}"
            ))
        });
        let ranges = self.ranges.iter().filter(|(_, share)| share.closed > 0).map(|(family, share)| {
            let RangesShare { asked, closed, elements } = share;
            format!(
                "spec.loadBalancerSourceRanges: no client is let in at {closed} of {asked} load-balancer addresses with a port \
                 ({family}): merged where they touch, the ranges take {elements} elements at each, and a Service has at most \
                 {MAX_ALLOWED_SOURCES}"
            )
        });
        endpoints.chain(addresses).chain(ranges).collect()
    }

    /// How many endpoints a port has in a family.
    fn endpoints_of(&self, port: &ServicePort, family: Family) -> usize {
        let slices = self.slices.iter().filter(|slice| slice.family == family);
        slices.map(|slice| slice.ports_of(port).len() * slice.endpoints.len()).sum()
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::VirtualServers => write!(f, "{MAX_VIRTUAL_SERVERS} virtual servers"),
            Self::RealServers { scheduler, endpoints } => {
                let most = most_real_servers(*scheduler);
                write!(
                    f,
                    "{most} real servers with the scheduler {scheduler}, and the next one has {endpoints}"
                )
            }
        }
    }
}

/// Of two schedulers the one with which a Service has fewer real servers.
pub(super) fn min_real_servers(one: Scheduler, other: Scheduler) -> Scheduler {
    if most_real_servers(other) < most_real_servers(one) { other } else { one }
}

fn most_real_servers(scheduler: Scheduler) -> usize {
    if scheduler == Scheduler::MH { MAX_REAL_SERVERS_MH } else { MAX_REAL_SERVERS }
}
