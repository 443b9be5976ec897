//! The clients that may reach the load-balancer addresses of a Service (`spec.loadBalancerSourceRanges`).

use std::net::IpAddr;

use ipnet::IpNet;
use ipvs::Family;
use netfilter::AllowedSource;

use super::{AddressKind, Frontend};
use crate::input::ServiceInputs;

/// The clients that one Service lets in at its load balancer's addresses.
#[derive(Debug)]
pub(crate) struct SourceRanges {
    v4: Clients,
    v6: Clients,
}

/// The clients of one family.
#[derive(Debug)]
enum Clients {
    Everybody,
    In {
        /// The first and the last of each range, sorted; between two there is a gap.
        ranges: Vec<(IpAddr, IpAddr)>,
        /// One of the node's own addresses is among them.
        node: bool,
    },
}

impl SourceRanges {
    /// The clients that a Service lets in.
    pub(super) fn new(inputs: ServiceInputs<'_>) -> Self {
        let [v4, v6] = Family::BOTH.map(|family| Clients::new(inputs, family));
        Self { v4, v6 }
    }

    /// How many elements these clients need for one frontend of a family, at most. It is the same on every node.
    pub(super) fn elements(&self, family: Family) -> usize {
        match self.clients(family) {
            Clients::Everybody => 0,
            // And the node itself.
            Clients::In { ranges, .. } => ranges.len() + 1,
        }
    }

    /// The clients that may reach a frontend, sorted, without overlaps; `None`: everybody. Only a load
    /// balancer's address is restricted.
    pub(crate) fn allowed(&self, frontend: &Frontend<'_>) -> Option<Box<[AllowedSource]>> {
        if frontend.kind != AddressKind::LoadBalancer {
            return None;
        }
        let to = frontend.address;
        let source = |(first, last)| AllowedSource { to, first, last };
        match self.clients(frontend.family()) {
            Clients::Everybody => None,
            Clients::In { .. } if frontend.closed => Some(Box::default()),
            Clients::In { ranges, node: false } => Some(ranges.iter().copied().map(source).collect()),
            // What a node sends to a VIP that is one of its addresses has that address for its source.
            Clients::In { ranges, node: true } => {
                let with_itself = ranges.iter().copied().chain([(to.ip, to.ip)]).collect();
                Some(merged(with_itself).into_iter().map(source).collect())
            }
        }
    }

    fn clients(&self, family: Family) -> &Clients {
        match family {
            Family::V4 => &self.v4,
            Family::V6 => &self.v6,
        }
    }
}

impl Clients {
    /// The clients of one family. As in upstream, a range of all addresses lifts the restriction.
    fn new(inputs: ServiceInputs<'_>, family: Family) -> Self {
        let ServiceInputs { service, node, .. } = inputs;
        let Some(ranges) = service.source_ranges_of(family) else { return Self::Everybody };
        if ranges.clone().any(|range| range.prefix_len() == 0) {
            return Self::Everybody;
        }
        let node = node.ips().iter().any(|ip| ranges.clone().any(|range| range.contains(ip)));
        Self::In { ranges: merged(ranges.map(ends).collect()), node }
    }
}

fn ends(range: &IpNet) -> (IpAddr, IpAddr) {
    (range.network(), range.broadcast())
}

/// The same clients, all of one family, in as few ranges as there can be, sorted.
fn merged(mut ranges: Vec<(IpAddr, IpAddr)>) -> Vec<(IpAddr, IpAddr)> {
    ranges.sort_unstable();
    ranges.dedup_by(|(first, last), (_, kept_last)| {
        let touches = *first <= *kept_last || is_next(*kept_last, *first);
        if touches {
            *kept_last = (*kept_last).max(*last);
        }
        touches
    });
    ranges
}

/// Whether there is no address between these two.
fn is_next(before: IpAddr, after: IpAddr) -> bool {
    match (before, after) {
        (IpAddr::V4(before), IpAddr::V4(after)) => before.to_bits().checked_add(1) == Some(after.to_bits()),
        (IpAddr::V6(before), IpAddr::V6(after)) => before.to_bits().checked_add(1) == Some(after.to_bits()),
        _ => false,
    }
}
