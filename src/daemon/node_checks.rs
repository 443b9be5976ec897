//! Who looks at the node while the daemon runs.

use netfilter::Policy;
use reconciler::Handle;

use crate::{
    config::Settings,
    events::Outbox,
    node::{
        advice::{Asked, Doorbell, Held, Lookout, Rounds},
        host_firewall::Tending,
    },
    takeover::another_proxy::AnotherProxy,
};

/// Looks at the node, and tends the host's firewall, from the first sync on. Returns what is found, the bell to ring
/// when that firewall has changed, and what ends when it was tended once.
pub(super) fn start(
    settings: &Settings,
    policy: Policy,
    handle: Handle,
    another_proxy: AnotherProxy,
    outbox: Option<Outbox>,
) -> (Held, Doorbell, impl Future<Output = ()>) {
    let held = Held::default();
    let asked = Asked { conntrack: settings.conntrack, strict_arp: settings.strict_arp };
    let publish = move |advice: &_| {
        if let Some(outbox) = &outbox {
            outbox.advise(advice);
        }
    };
    let period = settings.sync_period;
    let mut lookout =
        Lookout::new(policy.masquerade_all, asked, another_proxy, period, held.clone(), publish);
    let (rounds, doorbell) = Rounds::new(period);
    let mut tending = Tending::new(policy);
    let tended = tending.done();
    tokio::spawn(rounds.run(move || {
        let (in_use, status) = (handle.in_use()?, handle.status()?);
        // First, for where our rule is there is nothing to advise.
        let firewall = tending.tend();
        lookout.look(&in_use, &status, firewall);
        Ok(())
    }));
    (held, doorbell, tended)
}
