//! The kernel's notifications: from when on they are subscribed to, again after each failure, and those about
//! nf_tables.

use std::{convert::Infallible, error::Error, future, time::Duration};

use netfilter::{Changed, Monitor};
use reconciler::{Handle, Observer, SyncEvent};
use service::one_line;
use tokio::{sync::watch, time::sleep};
use tracing::warn;

use crate::checks::Recheck;

/// Signals that the first sync has ended, with any result.
///
/// Changes of nf_tables and VIPs are not subscribed to before. The first sync reads everything anyway, and a subscriber
/// is sent a message for each of the tens of thousands of elements and VIPs written: to make it (for elements only
/// then, `nfnetlink_has_listeners` in net/netfilter/nfnetlink.c) and to wake the reader takes longer than writing them.
/// No change of others is lost: a new subscriber begins by reading everything.
#[derive(Debug)]
pub(in crate::daemon) struct FirstSyncEnd(watch::Sender<bool>);

impl FirstSyncEnd {
    /// The observer, and whether the first sync has ended.
    pub(in crate::daemon) fn new() -> (Self, watch::Receiver<bool>) {
        let (sender, receiver) = watch::channel(false);
        (Self(sender), receiver)
    }
}

impl Observer for FirstSyncEnd {
    fn on_sync(&mut self, sync: &SyncEvent<'_>) {
        if sync.report.left == 0 {
            self.0.send_replace(true);
        }
    }
}

/// The pause before subscribing again.
const PAUSE: Duration = Duration::from_secs(1);

/// Subscribes to changes to `what` and runs `listen`, again and again, until `listen` returns a value. Errors of both
/// are logged. Changes before a subscription are not notified, so `listen` begins by reading everything.
pub(super) async fn resubscribing<M, E: Error + 'static, T>(
    what: &str,
    subscribe: impl Fn() -> Result<M, E>,
    listen: impl AsyncFn(M) -> anyhow::Result<T>,
) -> T {
    loop {
        match subscribe() {
            Ok(monitor) => match listen(monitor).await {
                Ok(end) => return end,
                Err(error) => {
                    warn!(
                        "notifications of {what} were lost, subscribing again: {}",
                        one_line(error.as_ref())
                    );
                }
            },
            Err(error) => {
                warn!(
                    "cannot subscribe to changes of {what}, the periodic sync finds them: {}",
                    one_line(&error)
                );
            }
        }
        sleep(PAUSE).await;
    }
}

/// Passes on the kernel's notifications about nf_tables, for ever: changes to our own tables go to the writer thread,
/// unless its own socket, with this port, made them; other changes cause a check of the host's firewall.
pub(in crate::daemon) async fn follow_nf_tables(
    our_port: u32,
    handle: &Handle,
    recheck: &Recheck,
    mut first_sync_ended: watch::Receiver<bool>,
) -> Infallible {
    if first_sync_ended.wait_for(|ended| *ended).await.is_err() {
        return future::pending().await;
    }
    resubscribing(
        "nf_tables",
        || Monitor::start(our_port),
        async |mut monitor| {
            let mut changed = Changed::everything();
            loop {
                if changed.ours {
                    handle.tables_changed();
                }
                if changed.others {
                    recheck.request();
                }
                changed = monitor.changed().await?;
            }
        },
    )
    .await
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, io};

    use anyhow::bail;
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_broken_subscription_is_renewed_a_second_later_until_listening_ends() {
        let (start, subscriptions) = (Instant::now(), Cell::new(0));
        let subscribe = || {
            subscriptions.set(subscriptions.get() + 1);
            if subscriptions.get() == 1 {
                Err(io::Error::other("no socket"))
            } else {
                Ok(subscriptions.get())
            }
        };
        let listen = async |subscription| {
            if subscription == 2 {
                bail!("notifications were lost");
            }
            Ok("a new start")
        };
        assert_eq!(resubscribing("kube-ipvs0", subscribe, listen).await, "a new start");
        assert_eq!((subscriptions.get(), start.elapsed()), (3, 2 * PAUSE));
    }
}
