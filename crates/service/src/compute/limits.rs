//! What one Service may cost every node.
//!
//! A few kilobytes of Service multiply: ports by addresses, and these by endpoints or source ranges. All
//! Services have one writer and one kernel in common, and a cluster limits how many of them a tenant has, not
//! how large they are. So each has room for so much, well above what anybody is known to need. What does not
//! fit is not served, and told of.

use ipvs::{Family, Scheduler};

use super::AddressKind;
use crate::input::CompactSlice;

/// How many virtual servers one Service has.
pub const MAX_VIRTUAL_SERVERS: usize = 16_384;

/// How many real servers all virtual servers of one Service have together.
pub const MAX_REAL_SERVERS: usize = 131_072;

/// The same with the scheduler `mh`, which fills a table of 4,093 entries anew whenever one is added
/// (`ip_vs_mh_reassign` in net/netfilter/ipvs/ip_vs_mh.c).
pub const MAX_REAL_SERVERS_MH: usize = 16_384;

/// How many real servers one virtual server has. To add one, the kernel goes through all that are there
/// (`ip_vs_lookup_dest` in net/netfilter/ipvs/ip_vs_ctl.c): ten thousand take a second, sixty thousand a
/// minute.
pub const MAX_REAL_SERVERS_PER_VIRTUAL_SERVER: usize = 10_000;

/// How many elements the source ranges of one Service become: ranges by load-balancer addresses by ports. The
/// more the kernel has of one address, the longer it takes to add one (`pipapo_refill` in
/// net/netfilter/nft_set_pipapo.c): four thousand take a second, forty thousand a minute.
pub const MAX_ALLOWED_SOURCES: usize = 4_096;

/// The room that one Service has for its virtual servers. It is given away in the order in which they matter.
///
/// A virtual server counts with all endpoints of its family, ready or not, here or elsewhere: what fits does
/// not change when a pod becomes ready, and is nearly the same on every node.
pub(crate) struct Quota {
    virtual_servers: usize,
    real_servers: usize,
    scheduler: Scheduler,
    endpoints_v4: usize,
    endpoints_v6: usize,
    /// What does not fit, in words.
    pub(crate) problems: Vec<String>,
}

impl Quota {
    /// All of it.
    pub(crate) fn new(slices: &[CompactSlice], scheduler: Scheduler) -> Self {
        let mut room = Self {
            virtual_servers: MAX_VIRTUAL_SERVERS,
            real_servers: most_real_servers(scheduler),
            scheduler,
            endpoints_v4: 0,
            endpoints_v6: 0,
            problems: Vec::new(),
        };
        for slice in slices {
            *room.endpoints(slice.family) += slice.endpoints.len();
        }
        for family in Family::BOTH {
            let endpoints = room.endpoints(family);
            if *endpoints > MAX_REAL_SERVERS_PER_VIRTUAL_SERVER {
                let problem = format!(
                    "endpoints: of {endpoints} ({family}) the first {MAX_REAL_SERVERS_PER_VIRTUAL_SERVER} by address that can be used \
                     are: no virtual server has more"
                );
                *endpoints = MAX_REAL_SERVERS_PER_VIRTUAL_SERVER;
                room.problems.push(problem);
            }
        }
        room
    }

    /// How many of the virtual servers fit that a Service asks for at addresses of one kind and family.
    pub(crate) fn take(&mut self, kind: AddressKind, family: Family, asked: usize) -> usize {
        let endpoints = *self.endpoints(family);
        let by_endpoints = self.real_servers.checked_div(endpoints).unwrap_or(usize::MAX);
        let fit = asked.min(self.virtual_servers).min(by_endpoints);
        if fit < asked {
            let most = if self.virtual_servers <= by_endpoints {
                format!("{MAX_VIRTUAL_SERVERS} virtual servers")
            } else {
                let Self { scheduler, .. } = self;
                let most = most_real_servers(*scheduler);
                format!("{most} real servers with the scheduler {scheduler}, and here each has {endpoints}")
            };
            self.problems.push(format!(
                "{}: of {asked} addresses with a port ({family}) {fit} are served: a Service has at most {most}",
                kind.field()
            ));
        }
        self.virtual_servers -= fit;
        self.real_servers -= fit * endpoints;
        fit
    }

    fn endpoints(&mut self, family: Family) -> &mut usize {
        match family {
            Family::V4 => &mut self.endpoints_v4,
            Family::V6 => &mut self.endpoints_v6,
        }
    }
}

fn most_real_servers(scheduler: Scheduler) -> usize {
    if scheduler == Scheduler::MH { MAX_REAL_SERVERS_MH } else { MAX_REAL_SERVERS }
}
