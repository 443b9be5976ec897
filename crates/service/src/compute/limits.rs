//! What one Service may cost each node.
//!
//! A few kilobytes of Service multiply: ports by addresses, and these by endpoints or source ranges. All
//! Services share one writer and one kernel, and a cluster limits how many Services a tenant has, not how large
//! they are. So each Service has a quota, well above any known need. What exceeds it is not served, and reported
//! as a problem.

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

/// The virtual servers and real servers that one Service may have. The most important addresses take theirs first.
///
/// A virtual server counts with all endpoints of its family, ready or not, here or elsewhere: what fits does
/// not change when a pod becomes ready, and is nearly the same on every node.
pub(crate) struct Quota {
    virtual_servers: usize,
    real_servers: usize,
    scheduler: Scheduler,
    endpoints_v4: usize,
    endpoints_v6: usize,
    /// What exceeds the quota, in words.
    pub(crate) problems: Vec<String>,
}

impl Quota {
    /// The whole quota, for a Service of which this is the costliest scheduler.
    pub(crate) fn new(slices: &[CompactSlice], scheduler: Scheduler) -> Self {
        let mut quota = Self {
            virtual_servers: MAX_VIRTUAL_SERVERS,
            real_servers: most_real_servers(scheduler),
            scheduler,
            endpoints_v4: 0,
            endpoints_v6: 0,
            problems: Vec::new(),
        };
        for slice in slices {
            *quota.endpoints(slice.family) += slice.endpoints.len();
        }
        for family in Family::BOTH {
            let endpoints = quota.endpoints(family);
            if *endpoints > MAX_REAL_SERVERS_PER_VIRTUAL_SERVER {
                let problem = format!(
                    "endpoints: of {endpoints} ({family}) the first {MAX_REAL_SERVERS_PER_VIRTUAL_SERVER} by address that can be used \
                     are: no virtual server has more"
                );
                *endpoints = MAX_REAL_SERVERS_PER_VIRTUAL_SERVER;
                quota.problems.push(problem);
            }
        }
        quota
    }

    /// Takes virtual servers for the addresses of one kind and family. Returns how many of those asked for fit.
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

/// Of two schedulers the one with which a Service has fewer real servers.
pub(super) fn costlier(one: Scheduler, other: Scheduler) -> Scheduler {
    if most_real_servers(other) < most_real_servers(one) { other } else { one }
}

fn most_real_servers(scheduler: Scheduler) -> usize {
    if scheduler == Scheduler::MH { MAX_REAL_SERVERS_MH } else { MAX_REAL_SERVERS }
}
