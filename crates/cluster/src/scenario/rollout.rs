//! A Deployment is rolled under load.

use std::{fs, path::PathBuf};

use anyhow::{Context as _, Result, ensure};
use guest::workspace;
use serde::{Deserialize, Serialize};

use super::clients::Clients;
use crate::{
    proxy::Proxy,
    state::Cluster,
    web::{End, Web},
};

/// How many pods there are, and how often all of them are replaced.
const REPLICAS: usize = 4;
const ROLLOUTS: u32 = 2;

/// What became of requests without draining.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct Undrained {
    answered: u64,
    failed: u64,
}

/// With kube-proxy in nftables mode, where that was not tried on this machine (docs/conformance.md).
const ELSEWHERE: Undrained = Undrained { answered: 4547, failed: 314 };

/// Pods that serve on for a while after they were told to end: no request fails.
pub(super) fn drained(cluster: &Cluster) -> Result<()> {
    roll(cluster, End::Drained)?.expect_all_answered()
}

/// Pods that end at once: nobody can know before, so some requests may be refused by the node of one that has ended, or
/// end with it. With kube-ipvs there are no more of these than with kube-proxy in nftables mode, on the same machine if
/// that was tried there. None may get no answer at all.
pub(super) fn undrained(cluster: &Cluster) -> Result<()> {
    let outcomes = roll(cluster, End::AtOnce)?;
    let (answered, failed) = outcomes.requests();
    println!("without draining {failed} of {} requests failed", answered + failed);
    let ours = Undrained { answered, failed };
    ours.keep(cluster.proxy)?;
    if cluster.proxy != Proxy::KubeIpvs {
        return Ok(());
    }
    let theirs = Undrained::kept(Proxy::KubeProxyNftables).unwrap_or(ELSEWHERE);
    ensure!(
        ours.failed * theirs.answered <= theirs.failed * ours.answered,
        "with kube-proxy in nftables mode {} of {} failed",
        theirs.failed,
        theirs.answered + theirs.failed
    );
    outcomes.expect_failures_by(&["refused", "reset", "closed before the answer"])
}

impl Undrained {
    /// Keeps it for a comparison, whichever cluster is up by then.
    fn keep(self, proxy: Proxy) -> Result<()> {
        let file = Self::file(proxy);
        fs::create_dir_all(file.parent().context("no directory")?)?;
        fs::write(&file, serde_json::to_vec_pretty(&self)?).with_context(|| file.display().to_string())
    }

    fn kept(proxy: Proxy) -> Option<Self> {
        serde_json::from_slice(&fs::read(Self::file(proxy)).ok()?).ok()
    }

    fn file(proxy: Proxy) -> PathBuf {
        workspace::root().join("target/rollout-undrained").join(proxy.name()).with_extension("json")
    }
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
