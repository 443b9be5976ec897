//! Direct return in a whole cluster: pods on one node, and clients that come in by the others.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use guest::programs::printed;

use super::nodes;
use crate::{
    kubectl::{self, patiently},
    network,
    node::Node,
    proxy,
    state::Cluster,
    web::{Address, Client, End, IN, Web},
};

/// How many pods there are.
const REPLICAS: usize = 4;

/// How many requests a second there are, and how many connections are held.
const RATE: u32 = 50;
const HELD: u32 = 100;

/// How long the router leads one way, so that each connection is used there.
const MEANWHILE: Duration = Duration::from_secs(5);

/// How long a router with BFD takes to see that a node has gone, at the most.
const NOTICED: Duration = Duration::from_secs(1);

/// An application whose pods are all on the last worker, and its load balancer's address.
struct Application<'a> {
    web: Web,
    address: SocketAddr,
    /// Without pods, and not the control plane.
    entrance: &'a Node,
    /// With all pods.
    pods: &'a Node,
}

impl<'a> Application<'a> {
    fn deploy(cluster: &'a Cluster) -> Result<Self> {
        proxy::allow_direct_return()?;
        let [entrance, .., pods] = cluster.workers() else {
            anyhow::bail!("the pods are on the only worker")
        };
        let others: Vec<_> = cluster.workers().iter().filter(|node| *node != pods).collect();
        for node in &others {
            kubectl::run(&format!("cordon {}", node.name))?;
        }
        let web = Web::deploy(cluster, REPLICAS, End::Drained);
        for node in &others {
            kubectl::run(&format!("uncordon {}", node.name))?;
        }
        let web = web?;
        patiently(Duration::from_secs(30), || {
            let there = web.ready_endpoints_on(pods)?;
            // Each is in a slice of either family.
            ensure!(there == 2 * REPLICAS, "{} has {there} endpoints", pods.name);
            Ok(())
        })?;
        let address = web.address(Address::LoadBalancer)?;
        Ok(Self { web, address, entrance, pods })
    }

    /// Asks for direct return, and waits until what comes in by these nodes is served so.
    fn return_directly(&self, entrances: &[&Node]) -> Result<()> {
        kubectl::run(&format!(
            "{IN} annotate --overwrite service web kube-ipvs.io/forwarding-method=tunnel"
        ))?;
        for entrance in entrances {
            self.enter_by(&[entrance])?;
            patiently(Duration::from_secs(60), || {
                let seen: BTreeSet<_> = (0..20).map(|_| self.client_as_seen()).collect::<Result<_>>()?;
                let is_direct = seen == BTreeSet::from([network::CLIENT_OF_BALANCED.into()]);
                ensure!(is_direct, "by {} clients are seen as {seen:?}", entrance.name);
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Makes the router lead clients by these nodes, whichever way they came before.
    fn enter_by(&self, entrances: &[&Node]) -> Result<()> {
        network::spread(self.ipv4()?, entrances)
    }

    /// Makes it choose each of these ways for a while.
    fn lead_by_each(&self, ways: &[&[&Node]]) -> Result<()> {
        for way in ways {
            self.enter_by(way)?;
            thread::sleep(MEANWHILE);
        }
        Ok(())
    }

    fn ipv4(&self) -> Result<Ipv4Addr> {
        match self.address.ip() {
            IpAddr::V4(address) => Ok(address),
            IpAddr::V6(address) => anyhow::bail!("the load balancer's address is {address}"),
        }
    }

    /// The address from which a pod sees a new connection of a client outside.
    fn client_as_seen(&self) -> Result<IpAddr> {
        let seen: SocketAddr = self.ask("clientip")?.parse().context("what a pod says of its client")?;
        Ok(seen.ip())
    }

    /// What a pod answers to a new connection.
    fn ask(&self, path: &str) -> Result<String> {
        let mut curl = network::outside("curl");
        curl.args(["--silent", "--fail", "--max-time", "5"]).arg(format!("http://{}/{path}", self.address));
        printed(&mut curl).with_context(|| format!("asking for {path}"))
    }
}

/// Clients are seen with their own address by all pods, and nothing breaks when the router chooses other nodes, when
/// all proxies are replaced, and when the node that clients came in by loses power.
pub(super) fn outlives_its_entrance(cluster: &Cluster) -> Result<()> {
    let application = Application::deploy(cluster)?;
    let moved = moves(cluster, &application);
    let entrance = application.entrance;
    // Whatever has failed.
    let returned = if entrance.is_on() { Ok(()) } else { nodes::boot(entrance) };
    moved.and(returned).and(network::spread_no_longer())
}

fn moves(cluster: &Cluster, application: &Application<'_>) -> Result<()> {
    let Application { web, entrance, pods, .. } = application;
    let control_plane = cluster.control_plane()?;
    let all = [*entrance, control_plane, *pods];
    application.return_directly(&all)?;
    let answer: BTreeSet<_> = (0..50).map(|_| application.ask("hostname")).collect::<Result<_>>()?;
    ensure!(answer.len() == REPLICAS, "{} of {REPLICAS} pods answer", answer.len());

    let load = web.ask(Client::Outside, Address::LoadBalancer, RATE, HELD)?;
    let ways: [&[&Node]; 4] =
        [&[entrance, control_plane], &[control_plane, entrance], &[pods, control_plane, entrance], &all];
    application.lead_by_each(&ways)?;
    println!("the router has chosen other nodes {} times", ways.len());
    kubectl::run("--namespace=kube-system rollout restart daemonset/kube-proxy")?;
    proxy::wait()?;
    application.lead_by_each(&ways)?;
    println!("all proxies were replaced, and the router has chosen again");
    application.enter_by(&[entrance])?;
    thread::sleep(MEANWHILE);
    entrance.cut_power()?;
    thread::sleep(NOTICED);
    application.enter_by(&[control_plane, pods])?;
    thread::sleep(MEANWHILE);
    println!("{} has lost power", entrance.name);

    let outcome = load.end()?;
    println!("{outcome:?}");
    ensure!(outcome.answered > 0, "no request was answered");
    ensure!(outcome.failures() == 0, "{} requests failed", outcome.failures());
    ensure!(outcome.losses() == 0, "{} connections broke", outcome.losses());
    ensure!(outcome.held == u64::from(HELD), "{} connections were held", outcome.held);
    let seen = application.client_as_seen()?;
    ensure!(seen == network::CLIENT_OF_BALANCED, "afterwards the client is seen as {seen}");
    Ok(())
}
