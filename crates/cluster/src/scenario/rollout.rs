//! A Deployment is rolled under load.

use anyhow::{Result, ensure};

use super::clients::{Clients, Outcomes};
use crate::{
    proxy::Proxy,
    state::Cluster,
    web::{End, Web},
};

/// How many pods there are, and how often all of them are replaced.
const REPLICAS: usize = 4;
const ROLLOUTS: u32 = 2;

/// With kube-proxy in nftables mode: how many requests were answered, and how many failed (docs/evidence/conformance.md).
const WITH_NFTABLES: (u64, u64) = (4547, 314);

/// Pods that serve for a while after SIGTERM: no request fails.
pub(super) fn drained(cluster: &Cluster) -> Result<()> {
    roll(cluster, End::Drained)?.expect_all_answered()
}

/// Pods that end at once: no proxy can know before, so some requests may be refused by the node of one that has ended,
/// or end with it. With kube-ipvs there are no more of these than with kube-proxy in nftables mode. None may get no
/// answer at all.
pub(super) fn undrained(cluster: &Cluster) -> Result<()> {
    let outcomes = roll(cluster, End::AtOnce)?;
    let (answered, failed) = outcomes.requests();
    println!("without draining {failed} of {} requests failed", answered + failed);
    if cluster.proxy != Proxy::KubeIpvs {
        return Ok(());
    }
    let (answered_there, failed_there) = WITH_NFTABLES;
    ensure!(
        failed * answered_there <= failed_there * answered,
        "with kube-proxy in nftables mode {failed_there} of {} failed",
        answered_there + failed_there
    );
    outcomes.expect_failures_by(&["refused", "reset", "closed before the answer"])
}

fn roll(cluster: &Cluster, end: End) -> Result<Outcomes> {
    let web = Web::deploy(cluster, REPLICAS, end)?;
    let clients = Clients::start(cluster, &web, 0)?;
    for _ in 0..ROLLOUTS {
        web.restart()?;
        web.wait()?;
    }
    clients.end()
}
