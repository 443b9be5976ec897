//! Filling a kernel in which nothing is served.

use std::{iter, sync::Arc};

use service::{DesiredVirtualServer, State, Touched};
use watcher::{Observed, Scope, diff};

use super::{Reconciler, apply::apply, blocked::Blocked, outcome::PlanOutcome};

/// How many virtual servers a portion has, and a few more where an address would be cut in two.
const PORTION: usize = 1_000;

impl Reconciler {
    /// At the start, writes what is desired to a kernel in which nothing is served: portion by portion, the urgent Services
    /// first. A plan for everything at once takes half as much memory as all that is kept, and the allocator does not give
    /// it back.
    ///
    /// It ends at the first failure. The comparison of everything, which comes next, tries that again, goes on with what is
    /// left, and reports. Where an answer was lost, and so the image is in doubt, the failures are returned.
    pub(super) fn fill(&mut self, image: &mut Observed, touched: &mut Touched) -> PlanOutcome {
        let mut outcome = PlanOutcome::default();
        let is_empty = image.virtual_servers.is_empty() && image.netfilter.elements.is_empty();
        // Later, whatever is missing was taken away by another program: a repair.
        if self.unrepaired.has_adopted() || !is_empty {
            return outcome;
        }
        let servers = by_urgency(&self.state);
        if servers.len() <= PORTION {
            return outcome;
        }
        let portions: Vec<_> = portions(&servers, &self.state).collect();
        let portions = portions.into_iter().map(Scope::VirtualServers);
        for scope in [Scope::Foundation].into_iter().chain(portions) {
            let Some(done) = self.carry_out_portion(scope, image, touched) else { break };
            let goes_on = done.failures.is_empty() && !done.doubtful;
            outcome.extend(if done.doubtful { done } else { done.without_failures() });
            if !goes_on {
                break;
            }
        }
        outcome
    }

    /// `None` if a scheduler is missing, so that something else is desired by now.
    fn carry_out_portion(
        &mut self,
        scope: Scope<'_>,
        image: &mut Observed,
        touched: &mut Touched,
    ) -> Option<PlanOutcome> {
        let mut plan = diff(&self.state, image, scope, &self.ownership);
        let probe = self.probe_schedulers_of(&plan, image, touched);
        if probe.doubtful {
            return Some(PlanOutcome { doubtful: true, ..PlanOutcome::default() });
        }
        if probe.changed {
            return None;
        }
        self.rotate(&mut plan);
        let outcome = apply(&plan, &mut self.kernel, image, Blocked::new(true));
        if let Scope::VirtualServers(portion) = scope {
            image.virtual_servers.share(portion);
        }
        Some(outcome)
    }
}

/// All virtual servers: the urgent ones first, then by address, so that those of one address follow each other.
fn by_urgency(state: &State) -> Vec<Arc<DesiredVirtualServer>> {
    let mut servers: Vec<_> = state.virtual_servers().cloned().collect();
    servers.sort_by_cached_key(|server| {
        let ip = server.address.ip;
        (state.urgency(&ip), ip, server.address)
    });
    servers
}

/// Parts of about the same size. All virtual servers of a VIP are in one of them, because it is bound after its last
/// virtual server.
fn portions<'a>(
    mut servers: &'a [Arc<DesiredVirtualServer>],
    state: &State,
) -> impl Iterator<Item = &'a [Arc<DesiredVirtualServer>]> {
    iter::from_fn(move || {
        let (portion, rest) = servers.split_at(PORTION.min(servers.len()));
        let last = portion.last()?.address.ip;
        let of_the_last =
            rest.iter().take_while(|server| server.address.ip == last && state.wants_vip(&last)).count();
        let (portion, rest) = servers.split_at(portion.len() + of_the_last);
        servers = rest;
        Some(portion)
    })
}
