//! How many packets have gone through this node's tunnels, as our rules have counted them.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use ipvs::Family;
use netfilter::TunnelCounts;
use service::one_line;
use tokio::{task::spawn_blocking, time::sleep};
use tracing::debug;

/// How old the counts may be.
const PERIOD: Duration = Duration::from_secs(2);

/// The counts of each family, read again and again while anything is answered directly: who asks for them is never kept
/// waiting by the kernel. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct TunnelPackets(Arc<Mutex<BTreeMap<Family, TunnelCounts>>>);

impl TunnelPackets {
    /// Those of a family; all 0 where nothing is answered directly.
    pub(crate) fn of(&self, family: Family) -> TunnelCounts {
        self.counts().get(&family).copied().unwrap_or_default()
    }

    pub(super) fn clear(&self) {
        self.counts().clear();
    }

    pub(super) async fn keep_up_to_date(&self) -> Infallible {
        loop {
            for family in Family::BOTH {
                // The kernel may let a reader of rules wait for somebody's transaction.
                match spawn_blocking(move || TunnelCounts::read(family)).await {
                    Ok(Ok(counts)) => _ = self.counts().insert(family, counts),
                    Ok(Err(error)) => debug!("{}", one_line(&error)),
                    // The daemon ends.
                    Err(_) => {}
                }
            }
            sleep(PERIOD).await;
        }
    }

    fn counts(&self) -> MutexGuard<'_, BTreeMap<Family, TunnelCounts>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
