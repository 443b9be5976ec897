//! What others change in nf_tables.

use std::{convert::Infallible, future, time::Duration};

use netfilter::{Changed, Monitor};
use reconciler::Handle;
use tokio::{sync::oneshot, time::sleep};
use tracing::warn;
use watcher::one_line;

use crate::advice::Doorbell;

/// How long is waited before subscribing again.
const PAUSE: Duration = Duration::from_secs(1);

/// Passes on what the kernel says of nf_tables, for ever: of our own tables to the writer thread, unless it
/// changed them itself, by the socket with this port; of others to whoever looks at the host's firewall.
pub(super) async fn follow(
    our_port: u32,
    handle: &Handle,
    doorbell: &Doorbell,
    first_write: oneshot::Receiver<()>,
) -> Infallible {
    if first_write.await.is_err() {
        return future::pending().await;
    }
    loop {
        match Monitor::start(our_port) {
            Ok(mut monitor) => {
                // Whatever changed before the subscription was not told.
                let mut changed = Changed::everything();
                loop {
                    if changed.ours {
                        // When the writer thread is gone the daemon ends.
                        _ = handle.tables_changed();
                    }
                    if changed.others {
                        doorbell.ring();
                    }
                    changed = match monitor.changed().await {
                        Ok(changed) => changed,
                        Err(error) => {
                            warn!(
                                "no longer told of changes to nf_tables, subscribing again: {}",
                                one_line(&error)
                            );
                            break;
                        }
                    };
                }
            }
            Err(error) => {
                warn!("not told of changes to nf_tables, the periodic sync sees them: {}", one_line(&error));
            }
        }
        sleep(PAUSE).await;
    }
}
