//! `cargo xtask cluster up`: from nothing to a cluster that serves.

use std::{fs, thread, time::Instant};

use anyhow::{Context as _, Result, anyhow, ensure};

use crate::{
    disk, kubeadm, kubectl, network,
    node::{Node, NodeProcess},
    pod_network::{self, PodNetwork},
    proxy::{self, Proxy},
    state::{self, Cluster, named},
};

/// The command line of `cargo xtask cluster up`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The Service proxy
    #[arg(long, value_enum, default_value_t = Proxy::KubeIpvs)]
    proxy: Proxy,
    /// The network of the pods
    #[arg(long, value_enum, default_value_t = PodNetwork::Bridge)]
    cni: PodNetwork,
    /// How many nodes, the control plane among them
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=9))]
    nodes: u8,
}

/// Starts a cluster, or fails with what went wrong, whose traces then stay to be looked at.
pub(crate) fn run(args: &Args) -> Result<()> {
    ensure!(Cluster::open().is_err(), "a cluster is up already: stop it with cargo xtask cluster down");
    ensure!(!network::exists(), "another checkout's cluster is up on this machine, or what is left of one");
    let disk = disk::ensure()?;
    if args.proxy == Proxy::KubeIpvs {
        proxy::build_image()?;
    }
    let progress = Progress::start();
    fs::create_dir_all(state::directory()).with_context(|| state::directory().display().to_string())?;
    let nodes = (1..=args.nodes).map(node).collect();
    let cluster = Cluster { nodes, proxy: args.proxy, pod_network: args.cni, disk };
    cluster.save()?;

    network::create()?;
    boot(&cluster, &cluster.nodes)?;
    progress.done("the nodes are up");

    kubeadm::init(&cluster, args.proxy)?;
    let kubeconfig = cluster.control_plane()?.run(&cluster, "cat /etc/kubernetes/admin.conf")?;
    fs::write(state::kubeconfig(), kubeconfig).context("writing the administrator's kubeconfig")?;
    progress.done("the control plane is up (kubeadm init)");

    on_each(cluster.workers(), |node| kubeadm::join(&cluster, node))?;
    progress.done("the workers are in the cluster (kubeadm join)");

    pod_network::connect(&cluster)?;
    kubectl::output(&["wait", "--for=condition=Ready", "node", "--all", "--timeout=120s"])?;
    progress.done("the nodes are ready");

    if args.proxy == Proxy::KubeIpvs {
        proxy::change_image()?;
        progress.done("kube-ipvs runs on every node");
    } else {
        proxy::wait()?;
    }
    let dns = ["--namespace=kube-system", "rollout", "status", "deployment/coredns", "--timeout=300s"];
    kubectl::output(&dns)?;
    progress.done("CoreDNS is ready");
    println!("cargo xtask cluster kubectl get pods -A");
    Ok(())
}

/// Switches nodes of the cluster on, and gives them the image of kube-ipvs if it has been built.
pub(crate) fn boot(cluster: &Cluster, nodes: &[Node]) -> Result<()> {
    for node in nodes {
        network::connect(node)?;
        node.boot(cluster)?;
    }
    on_each(nodes, |node| {
        node.wait_until_up(cluster)?;
        let image = proxy::image_archive();
        if cluster.proxy == Proxy::KubeIpvs { proxy::load_image(cluster, node, &image) } else { Ok(()) }
    })
}

/// The node of this number.
pub(crate) fn node(number: u8) -> Node {
    let name = if number == 1 { "control-plane".to_owned() } else { format!("worker-{}", number - 1) };
    Node { name, number }
}

/// Does something with several nodes at a time.
fn on_each(nodes: &[Node], work: impl Fn(&Node) -> Result<()> + Sync) -> Result<()> {
    thread::scope(|scope| {
        let threads: Vec<_> = nodes.iter().map(|node| scope.spawn(|| work(node))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| anyhow!("a thread panicked"))?)
    })
}

/// `cargo xtask cluster status`.
///
/// Prints the nodes, and what runs on them. Fails if one is off.
pub(crate) fn status() -> Result<()> {
    let cluster = Cluster::open()?;
    for node in &cluster.nodes {
        let state = if node.is_on() { "on" } else { "off" };
        println!(
            "{:14} {:3} {} {} {}",
            node.name,
            state,
            node.ipv4(),
            node.ipv6(),
            node.directory().display()
        );
    }
    println!("{}", state::kubeconfig().display());
    print!("{}", kubectl::output(&["get", "nodes,pods", "--all-namespaces", "--output=wide"])?);
    let off: Vec<&str> =
        cluster.nodes.iter().filter(|node| !node.is_on()).map(|node| node.name.as_str()).collect();
    ensure!(off.is_empty(), "off: {}", off.join(", "));
    Ok(())
}

/// `cargo xtask cluster down`.
///
/// Stops what runs and removes what is there, whatever it was that started it.
pub(crate) fn down() -> Result<()> {
    let directory = state::directory();
    if directory.exists() {
        for entry in fs::read_dir(&directory).with_context(named(&directory))? {
            NodeProcess::in_directory(&entry?.path()).kill()?;
        }
        fs::remove_dir_all(&directory).with_context(named(&directory))?;
    }
    network::delete()
}

/// What is done when, in seconds since the start.
///
/// Prints a line for each step.
pub(crate) struct Progress(Instant);

impl Progress {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn done(&self, step: &str) {
        println!("{:6.1} s  {step}", self.0.elapsed().as_secs_f32());
    }
}
