//! Subscribes to kernel notifications, again after each failure.

use std::{error::Error, time::Duration};

use service::one_line;
use tokio::time::sleep;
use tracing::warn;

/// The pause before subscribing again.
const PAUSE: Duration = Duration::from_secs(1);

/// Subscribes to changes to `what` and runs `listen`, again and again, until `listen` returns a value. Errors of both
/// are logged. Changes before a subscription are not notified, so `listen` begins by reading everything.
pub(in crate::daemon) async fn resubscribing<M, E: Error + 'static, T>(
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
                        "no longer told of changes to {what}, subscribing again: {}",
                        one_line(error.as_ref())
                    );
                }
            },
            Err(error) => {
                warn!("not told of changes to {what}, the periodic sync sees them: {}", one_line(&error));
            }
        }
        sleep(PAUSE).await;
    }
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
