//! Who looks at the node while the daemon runs.

use std::time::Duration;

use netfilter::Policy;
use reconciler::Handle;

use crate::{
    advice::{AnotherProxy, Doorbell, Held, Lookout, Rounds},
    events::Outbox,
};

/// Looks at the node from the first sync on. Returns what is found, and the bell to ring when the host's
/// firewall has changed.
pub(super) fn start(
    period: Duration,
    policy: Policy,
    handle: Handle,
    another_proxy: AnotherProxy,
    outbox: Option<Outbox>,
) -> (Held, Doorbell) {
    let held = Held::default();
    let mut lookout = Lookout::new(handle, policy, another_proxy, held.clone(), move |advice| {
        if let Some(outbox) = &outbox {
            outbox.advise(advice);
        }
    });
    let (rounds, doorbell) = Rounds::new(period);
    tokio::spawn(rounds.run(move || lookout.look()));
    (held, doorbell)
}
