//! A node loses power while it is asked, without warning.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};

use super::{
    clients::Clients,
    nodes::{boot, lead_to, leave_out},
};
use crate::{
    kubectl::{self, patiently},
    node::Node,
    state::Cluster,
    web::{Address, Client, End, IN, Web},
};

/// How many requests a second there are from each client: so few that none waits for those that are not answered.
const RATE: u32 = 6;

/// How long the API server may take until it knows: 50 seconds of silence, then the controllers.
const CLUSTER_KNOWS: Duration = Duration::from_secs(180);

/// The last worker loses power while clients ask an application of which it has half the pods. What this costs them is
/// printed, until the API server takes these pods out: every proxy can be tried, and only kube-ipvs reads the
/// annotation.
pub(super) fn costs(cluster: &Cluster) -> Result<()> {
    ensure!(cluster.workers().len() > 1, "the clients are on the only worker");
    let web = Web::deploy(cluster, 4, End::Drained)?;
    kubectl::run(&format!("{IN} annotate --overwrite service web kube-ipvs.io/eject=silent"))?;
    let node = cluster.workers().last().context("a cluster without workers")?;
    // A load balancer that leads to a dead node is not what is measured.
    leave_out(node)?;
    let measured = measure(cluster, &web, node);
    let returned = if node.is_on() { Ok(()) } else { boot(node) };
    let used = lead_to(node);
    measured.and(returned).and(used)
}

fn measure(cluster: &Cluster, web: &Web, node: &Node) -> Result<()> {
    ensure!(web.ready_endpoints_on(node)? > 0, "no pod is on {}", node.name);
    let (worker, control_plane) = (cluster.first_worker()?, cluster.control_plane()?);
    let kinds = [
        ("pod, ClusterIP", Client::Pod(worker), Address::ClusterIp),
        ("node, ClusterIP of IPv6", Client::Node(worker), Address::ClusterIpV6),
        ("outside, NodePort", Client::Outside, Address::NodePort(control_plane)),
    ];
    let clients = Clients::start_at(web, &kinds, RATE, 0)?;
    thread::sleep(Duration::from_secs(5));
    let dead = Instant::now();
    node.cut_power()?;
    patiently(CLUSTER_KNOWS, || {
        ensure!(web.ready_endpoints_on(node)? == 0, "endpoints on {} are still ready", node.name);
        Ok(())
    })?;
    println!(
        "{}: {} was dead for {:?} before the cluster knew",
        cluster.proxy.name(),
        node.name,
        dead.elapsed()
    );
    clients.end().map(drop)
}
