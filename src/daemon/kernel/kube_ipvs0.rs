//! kube-ipvs0: opens it, chooses how VIPs are bound, and follows what others change.

use std::collections::BTreeSet;

use anyhow::{Context as _, anyhow, bail};
use dummy_interface::{Changed, DummyInterface, KernelDummyInterface, Monitor, Operation, VipBinding};
use ipvs::Family;
use reconciler::Handle;
use tokio::{select, sync::watch, task::spawn_blocking};

use super::notifications::resubscribing;
use crate::node::families::{families as families_here, outward};

/// Creates kube-ipvs0. It must exist before the daemon waits for anything: Calico's Felix reads the names once, at
/// its own start.
pub(in crate::daemon) fn make_device() -> anyhow::Result<()> {
    open(VipBinding::Address, false).map(drop)
}

/// Opens kube-ipvs0, creating it if missing.
pub(in crate::daemon) fn open(binding: VipBinding, gue: bool) -> anyhow::Result<KernelDummyInterface> {
    let mut links = KernelDummyInterface::open(binding)?.with_gue(gue);
    if !links.observe()?.device
        && let Some(failed) = links.apply(&[Operation::EnsureDevice])?.first()
    {
        bail!("cannot create {}: {}", dummy_interface::DEVICE, failed.error);
    }
    Ok(links)
}

/// Whether the routes name an old source address. Reads all addresses of the node, which takes long with many VIPs.
async fn is_outdated(binding: VipBinding) -> anyhow::Result<bool> {
    let now = spawn_blocking(move || outward(binding)).await.context("reading the node's addresses")??;
    Ok(names_another_source(binding, now))
}

/// Whether the routes in use name an outdated source. IPv6 routes that name none are as good as those that do: the
/// kernel never takes the VIP of a route. This happens when VIPs that were addresses had hidden the node's own.
fn names_another_source(used: VipBinding, now: VipBinding) -> bool {
    match (used, now) {
        (
            VipBinding::Route { source_v4: used_v4, source_v6: used_v6 },
            VipBinding::Route { source_v4, source_v6 },
        ) => used_v4 != source_v4 || (used_v6.is_some() && used_v6 != source_v6),
        _ => used != now,
    }
}

/// Passes on the kernel's notifications about kube-ipvs0 and the VIPs. Returns only when a change requires a restart:
/// of the node's address, or that it has IPv6 and had not at the start.
pub(in crate::daemon) async fn follow(
    binding: VipBinding,
    families: &BTreeSet<Family>,
    handle: &Handle,
    mut first_sync_ended: watch::Receiver<bool>,
) -> anyhow::Error {
    let first_sync = first_sync_ended.wait_for(|ended| *ended);
    if binding == VipBinding::Address {
        drop(first_sync.await);
    } else {
        // Links and addresses alone: the routes must not name an address that the node has lost while it waits.
        let without_routes = follow_as(VipBinding::Address, binding, families, handle);
        select! {
            error = without_routes => return error,
            _ = first_sync => {}
        }
    }
    follow_as(binding, binding, families, handle).await
}

/// Follows the notifications that matter where VIPs are bound as `watched`.
async fn follow_as(
    watched: VipBinding,
    binding: VipBinding,
    families: &BTreeSet<Family>,
    handle: &Handle,
) -> anyhow::Error {
    let subscribe = || Monitor::start(watched);
    resubscribing(dummy_interface::DEVICE, subscribe, async |mut monitor| {
        let mut changed = Changed::everything();
        loop {
            let addresses_changed = changed.node_addresses;
            handle.kernel_changed(changed);
            // `lo` has an address then, if nothing else has.
            if addresses_changed && !families_here().is_subset(families) {
                return Ok(anyhow!("this node has IPv6 now, and had none at the start; exiting to be restarted"));
            }
            if addresses_changed && is_outdated(binding).await.context("cannot read this node's addresses")? {
                return Ok(anyhow!(
                    "this node's address has changed, and the routes of --vip-binding=route refer to it; exiting to be restarted"
                ));
            }
            changed = monitor.changed().await?;
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn naming(source_v4: Option<&str>, source_v6: Option<&str>) -> VipBinding {
        VipBinding::Route {
            source_v4: source_v4.map(|ip| ip.parse().unwrap()),
            source_v6: source_v6.map(|ip| ip.parse().unwrap()),
        }
    }

    #[test]
    fn routes_that_name_no_ipv6_source_need_none_and_every_other_difference_counts() {
        let used = naming(Some("192.0.2.1"), None);
        assert!(!names_another_source(used, naming(Some("192.0.2.1"), Some("2001:db8::1"))));
        assert!(names_another_source(used, naming(Some("192.0.2.2"), None)));
        assert!(names_another_source(naming(None, None), used), "IPv4 would take the VIP itself");
        let both = naming(Some("192.0.2.1"), Some("2001:db8::1"));
        assert!(names_another_source(both, used) && !names_another_source(both, both));
        assert!(!names_another_source(VipBinding::Address, VipBinding::Address));
    }
}
