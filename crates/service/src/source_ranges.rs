//! Which clients may reach a load balancer's address (`spec.loadBalancerSourceRanges`).

use ipnet::IpNet;
use ipvs::Family;
use netfilter::AllowedSource;

use crate::{AddressKind, Service, frontend::Frontend, this_node::ThisNode};

impl Frontend<'_> {
    /// The clients that may reach it, sorted, without overlaps; `None`: everybody.
    ///
    /// Only a load balancer's address is restricted, and by the ranges of its own family. As upstream has it,
    /// a range of all addresses lifts that, and ranges of the other family alone say nothing about this one.
    /// Where no range is left at all, since none could be read, nobody is let in.
    pub(crate) fn allowed_sources(&self, service: &Service, node: &ThisNode) -> Option<Box<[AllowedSource]>> {
        let ranges = service.load_balancer_source_ranges.as_ref()?;
        if self.kind != AddressKind::LoadBalancer {
            return None;
        }
        let of_family: Vec<IpNet> =
            ranges.iter().filter(|range| Family::of(range.addr()) == self.family()).copied().collect();
        let only_of_the_other = of_family.is_empty() && !ranges.is_empty();
        if only_of_the_other || of_family.iter().any(|range| range.prefix_len() == 0) {
            return None;
        }
        // What a node sends to a VIP that is one of its addresses has that address for its source.
        let node_may = node.ips().iter().any(|ip| of_family.iter().any(|range| range.contains(ip)));
        let itself = node_may.then(|| IpNet::from(self.address.ip));
        Some(without_overlaps(of_family.into_iter().chain(itself).map(|range| self.source(range)).collect()))
    }

    fn source(&self, range: IpNet) -> AllowedSource {
        AllowedSource { to: self.address, first: range.network(), last: range.broadcast() }
    }
}

/// Merges ranges that overlap: the same clients, sorted, each of them once. All are clients of one address.
fn without_overlaps(mut sources: Vec<AllowedSource>) -> Box<[AllowedSource]> {
    sources.sort_unstable();
    sources.dedup_by(|next, kept| {
        let overlaps = next.first <= kept.last;
        if overlaps {
            kept.last = kept.last.max(next.last);
        }
        overlaps
    });
    sources.into()
}
