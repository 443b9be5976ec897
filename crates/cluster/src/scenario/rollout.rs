//! A Deployment is rolled under load.

use anyhow::{Result, ensure};

use super::clients::Clients;
use crate::proxy::Proxy;
use crate::state::Cluster;
use crate::web::{End, Web};

/// How many pods there are, and how often all of them are replaced.
const REPLICAS: usize = 4;
const ROLLOUTS: u32 = 2;

/// Without draining, at most one request in so many fails. With kube-proxy in nftables mode it was one in sixteen
/// (docs/conformance.md).
const FEW: u64 = 100;

/// Pods that serve on for a while after they were told to end: no request fails.
pub(super) fn drained(cluster: &Cluster) -> Result<()> {
    roll(cluster, End::Drained)?.expect_all_answered()
}

/// Pods that end at once: nobody can know before, so some requests may be refused by the node of one that has ended, or
/// end with it. With kube-ipvs these are few. None may get no answer at all.
pub(super) fn undrained(cluster: &Cluster) -> Result<()> {
    let outcomes = roll(cluster, End::AtOnce)?;
    let (answered, failed) = outcomes.requests();
    println!("without draining {failed} of {} requests failed", answered + failed);
    let are_few = failed * FEW <= answered;
    ensure!(are_few || cluster.proxy != Proxy::KubeIpvs, "more than one request in {FEW} failed");
    outcomes.expect_failures_by(&["refused", "reset", "closed before the answer"])
}

fn roll(cluster: &Cluster, end: End) -> Result<super::clients::Outcomes> {
    let web = Web::deploy(cluster, REPLICAS, end)?;
    let clients = Clients::start(cluster, &web, 0)?;
    for _ in 0..ROLLOUTS {
        web.restart()?;
        web.wait()?;
    }
    clients.end()
}
