//! Who looks at the node while the daemon runs.

use netfilter::Policy;
use reconciler::Handle;

use crate::{
    advice::{AnotherProxy, Asked, Doorbell, Held, Lookout, Rounds},
    config::Settings,
    events::Outbox,
};

/// Looks at the node from the first sync on. Returns what is found, and the bell to ring when the host's
/// firewall has changed.
pub(super) fn start(
    settings: &Settings,
    policy: Policy,
    handle: Handle,
    another_proxy: AnotherProxy,
    outbox: Option<Outbox>,
) -> (Held, Doorbell) {
    let held = Held::default();
    let asked = Asked { conntrack: settings.conntrack, strict_arp: settings.strict_arp };
    let mut lookout = Lookout::new(handle, policy, asked, another_proxy, held.clone(), move |advice| {
        if let Some(outbox) = &outbox {
            outbox.advise(advice);
        }
    });
    let (rounds, doorbell) = Rounds::new(settings.sync_period);
    tokio::spawn(rounds.run(move || lookout.look()));
    (held, doorbell)
}
