//! `cargo xtask cluster try`: what only a whole cluster shows. Each scenario fails when something is lost.

mod api_server;
mod clients;
mod dead_node;
mod direct_return;
mod install;
pub(crate) mod many_services;
mod name_server;
mod nodes;
mod rollout;

use std::time::Instant;

use anyhow::{Result, ensure};
use clap::ValueEnum as _;

use crate::{
    load_balancer::LoadBalancer,
    proxy::{self, Proxy},
    state::Cluster,
    web,
};

/// The command line of `cargo xtask cluster try`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// What to try [default: everything that can begin with the cluster's proxy]
    #[arg(value_enum)]
    scenarios: Vec<Scenario>,
}

/// In the order in which all are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Scenario {
    /// A Deployment is rolled under load, and its pods drain: no request fails
    Rollout,
    /// The same without draining: how many requests fail
    RolloutUndrained,
    /// CoreDNS is rolled while pods resolve names
    NameServer,
    /// A node is drained, rebooted, and loses power; a new one joins
    Nodes,
    /// A node loses power while it is asked: what this costs until the cluster knows
    DeadNode,
    /// The API server is away for five minutes, and then all pods move
    ApiServer,
    /// kubeadm upgrades the cluster and renews its certificates
    Upgrade,
    /// Two thousand Services are made and deleted
    ManyServices,
    /// kubeadm's ConfigMap is deleted, and the change of its DaemonSet undone
    Mishaps,
    /// From kube-proxy in another mode to kube-ipvs, and on to it again
    FromAnotherMode,
    /// From kube-proxy to kube-ipvs and back, in kubeadm's DaemonSet: no connection is lost
    InstallByPatch,
    /// The same with manifests/, with an upgrade, a rollback and another configuration
    InstallByManifests,
    /// The same, one node after the other by a label
    InstallNodeByNode,
    /// The same with the Helm chart
    InstallByHelm,
    /// From kube-proxy to kube-ipvs and back on a node where both are systemd services, by the package for Debian
    InstallAsService,
    /// Direct return: the router chooses other nodes, proxies are replaced, an entrance loses power
    DirectReturn,
}

impl Scenario {
    /// Whether it can begin in a cluster with this proxy.
    fn suits(self, proxy: Proxy) -> bool {
        match self {
            Self::Rollout
            | Self::RolloutUndrained
            | Self::NameServer
            | Self::Nodes
            | Self::DeadNode
            | Self::ApiServer => true,
            Self::Upgrade | Self::ManyServices | Self::Mishaps | Self::DirectReturn => {
                proxy == Proxy::KubeIpvs
            }
            Self::FromAnotherMode => matches!(proxy, Proxy::KubeProxyNftables | Proxy::KubeProxyIptables),
            Self::InstallByPatch
            | Self::InstallByManifests
            | Self::InstallNodeByNode
            | Self::InstallByHelm
            | Self::InstallAsService => proxy == Proxy::KubeProxyIpvs,
        }
    }
}

/// Tries what is asked for in the cluster that is up.
pub(crate) fn run(args: &Args) -> Result<()> {
    let proxy = Cluster::open()?.proxy;
    let mut all = args.scenarios.clone();
    if all.is_empty() {
        let (suitable, others): (Vec<Scenario>, Vec<_>) =
            Scenario::value_variants().iter().partition(|one| one.suits(proxy));
        println!("not with {}: {others:?}", proxy.name());
        all = suitable;
    }
    let mut failed = Vec::new();
    for scenario in all {
        println!("=== {scenario:?}");
        let started = Instant::now();
        let done = attempt(scenario);
        let seconds = started.elapsed().as_secs();
        match done {
            Ok(()) => println!("ok: {scenario:?} in {seconds} s"),
            Err(error) => {
                println!("FAILED: {scenario:?} in {seconds} s: {error:#}");
                failed.push(format!("{scenario:?}"));
            }
        }
    }
    ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
    Ok(())
}

/// Tries one, from the proxy that it begins with to the one that it says it ends with.
fn attempt(scenario: Scenario) -> Result<()> {
    // The one before may have changed the proxy.
    let cluster = Cluster::open()?;
    ensure!(scenario.suits(cluster.proxy), "it cannot begin with {}", cluster.proxy.name());
    proxy::check(&cluster)?;
    let _balancer = LoadBalancer::start();
    let done = match scenario {
        Scenario::Rollout => rollout::drained(&cluster),
        Scenario::RolloutUndrained => rollout::undrained(&cluster),
        Scenario::ApiServer => api_server::goes_and_returns(&cluster),
        Scenario::Upgrade => api_server::upgrades(&cluster),
        Scenario::ManyServices => many_services::come_and_go(&cluster),
        Scenario::Mishaps => install::mishaps::happen(&cluster),
        Scenario::FromAnotherMode => install::another_mode::there_and_back(&cluster),
        Scenario::InstallByPatch => install::by_patch::there_and_back(&cluster),
        Scenario::InstallByManifests => install::by_manifests::there_and_back(&cluster),
        Scenario::InstallNodeByNode => install::by_manifests::node_by_node(&cluster),
        Scenario::InstallByHelm => install::by_manifests::by_helm_there_and_back(&cluster),
        Scenario::InstallAsService => install::as_service::there_and_back(&cluster),
        Scenario::Nodes => nodes::come_and_go(&cluster),
        Scenario::DeadNode => dead_node::costs(&cluster),
        Scenario::NameServer => name_server::rolls(&cluster),
        Scenario::DirectReturn => direct_return::outlives_its_entrance(&cluster),
    };
    // While there is a load balancer: the Service goes when that has let it go.
    done.and(web::remove())?;
    proxy::check(&Cluster::open()?)
}
