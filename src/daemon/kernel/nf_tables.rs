//! Follows what others change in nf_tables.

use std::{convert::Infallible, future};

use netfilter::{Changed, Monitor};
use reconciler::Handle;
use tokio::sync::watch;

use super::subscription::resubscribing;
use crate::node::check_loop::Recheck;

/// Passes on the kernel's notifications about nf_tables, for ever: changes to our own tables go to the writer thread,
/// unless its own socket, with this port, made them; other changes cause a check of the host's firewall.
pub(in crate::daemon) async fn follow(
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
