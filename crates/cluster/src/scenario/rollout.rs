//! A Deployment is rolled under load.

use anyhow::Result;

use super::clients::Clients;
use crate::state::Cluster;
use crate::web::{End, Web};

/// How many pods there are, and how often all of them are replaced.
const REPLICAS: usize = 4;
const ROLLOUTS: u32 = 2;

/// Pods that serve on for a while after they were told to end: no request fails.
pub(super) fn drained(cluster: &Cluster) -> Result<()> {
    roll(cluster, End::Drained)?.expect_all_answered()
}

/// Pods that end at once: nobody can know before, so some requests may fail. How many is printed.
pub(super) fn undrained(cluster: &Cluster) -> Result<()> {
    let (answered, failed) = roll(cluster, End::AtOnce)?.requests();
    println!("without draining {failed} of {} requests failed", answered + failed);
    Ok(())
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
