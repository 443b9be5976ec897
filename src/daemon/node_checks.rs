//! Starts the checks of the node, and our rules in the host's firewall.

use netfilter::Policy;
use reconciler::Handle;

use crate::{
    config::Settings,
    events::Outbox,
    node::{
        advice::{CheckLoop, CurrentAdvice, FoundElsewhere, NodeChecker, Recheck, WantedParameters},
        host_firewall::OurRules,
    },
};

/// Checks the node, and applies our rules in the host's firewall, from the first sync on; `held` is the current advice.
/// Returns the handle that requests another check, and a future that ends when the rules were applied once.
pub(super) fn start(
    settings: &Settings,
    policy: Policy,
    handle: Handle,
    elsewhere: FoundElsewhere,
    outbox: Option<Outbox>,
    held: CurrentAdvice,
) -> (Recheck, impl Future<Output = ()>) {
    let wanted = WantedParameters { conntrack: settings.conntrack, strict_arp: settings.strict_arp };
    let publish = move |advice: &_| {
        if let Some(outbox) = &outbox {
            outbox.post_advice(advice);
        }
    };
    let period = settings.sync_period;
    let mut checker = NodeChecker::new(policy.masquerade_all, wanted, elsewhere, period, held, publish);
    let (check_loop, recheck) = CheckLoop::new(period);
    let mut our_rules = OurRules::new(policy);
    let our_rules_applied = our_rules.done();
    tokio::spawn(check_loop.run(move || {
        let (in_use, status) = (handle.node_usage()?, handle.status()?);
        // First: a chain with our rules needs no advice.
        let firewall = our_rules.apply();
        checker.check(&in_use, &status, &firewall);
        Ok(())
    }));
    (recheck, our_rules_applied)
}
