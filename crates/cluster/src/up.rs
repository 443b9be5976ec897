//! `cargo xtask cluster up`: from nothing to a cluster that serves; kubeadm, which makes it of nodes, with its configuration.

use std::{fs, os::unix::fs::symlink, thread, time::Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use guest::files;
use serde_json::{Value, json};

use crate::{
    disk::{self, images},
    kubectl,
    network::{
        self,
        pods::{self, PodNetwork},
    },
    node::Node,
    proxy::{self, Proxy},
    state::{self, Cluster},
};

/// The most nodes of a cluster, each with 4 GiB of memory.
const MOST_NODES: u8 = 9;

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
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=i64::from(MOST_NODES)))]
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
    let started = Instant::now();
    // Prints a line for each step, with the seconds since the start.
    let done = |step: &str| println!("{:6.1} s  {step}", started.elapsed().as_secs_f32());
    let nodes = (1..=args.nodes).map(node).collect();
    let cluster = Cluster { nodes, proxy: args.proxy, pod_network: args.cni };
    cluster.save()?;
    // It may be there from a cluster whose other files were removed.
    drop(fs::remove_file(state::base()));
    symlink(disk, state::base()).context("linking the nodes' disk")?;

    network::create()?;
    boot(&cluster, &cluster.nodes)?;
    done("the nodes are up");

    init(&cluster, args.proxy)?;
    files::write(&state::kubeconfig(), cluster.control_plane()?.run("cat /etc/kubernetes/admin.conf")?)?;
    done("the control plane is up (kubeadm init)");

    on_each(cluster.workers(), |node| join(&cluster, node))?;
    done("the workers are in the cluster (kubeadm join)");

    pods::connect(&cluster)?;
    kubectl::run("wait --for=condition=Ready node --all --timeout=120s")?;
    done("the nodes are ready");

    if args.proxy == Proxy::KubeIpvs {
        proxy::change_image()?;
        done("kube-ipvs runs on every node");
    } else {
        proxy::wait()?;
    }
    kubectl::wait_for_rollout("kube-system", "deployment/coredns")?;
    done("CoreDNS is ready");
    println!("cargo xtask cluster kubectl get pods -A");
    Ok(())
}

/// Switches nodes of the cluster on, and gives them the image of kube-ipvs if it has been built.
pub(crate) fn boot(cluster: &Cluster, nodes: &[Node]) -> Result<()> {
    for node in nodes {
        network::connect(node)?;
        node.boot()?;
    }
    on_each(nodes, |node| {
        node.wait_until_up()?;
        if cluster.proxy == Proxy::KubeIpvs { proxy::load_image(node) } else { Ok(()) }
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
        let (name, directory) = (&node.name, node.directory());
        println!("{name:14} {state:3} {} {} {}", node.ipv4(), node.ipv6(), directory.display());
    }
    println!("{}", state::kubeconfig().display());
    print!("{}", kubectl::output("get nodes,pods --all-namespaces --output=wide")?);
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
        // A scenario may have added one.
        (1..=MOST_NODES + 1).map(node).try_for_each(|node| node.cut_power())?;
        fs::remove_dir_all(&directory).with_context(|| directory.display().to_string())?;
    }
    network::delete()
}

/// What kubeadm finds missing here: User Mode Linux has one processor, and so no cpusets.
const IGNORED: [&str; 2] = ["NumCPU", "SystemVerification"];

/// Nodes are in as many zones: seven nodes are two workers in each, which some of Kubernetes' tests need.
const ZONES: u8 = 3;

/// Makes the first node a control plane.
fn init(cluster: &Cluster, proxy: Proxy) -> Result<()> {
    let node = cluster.control_plane()?;
    let configuration = include_str!("up/init.yaml")
        .replace("IPV4", &node.ipv4().to_string())
        .replace("VERSION", &images::kubernetes_version()?)
        .replace("MODE", proxy.mode());
    run_kubeadm(node, "init", &configuration)
}

/// Makes a node a worker.
pub(crate) fn join(cluster: &Cluster, node: &Node) -> Result<()> {
    let server = cluster.control_plane()?.ipv4().to_string();
    run_kubeadm(node, "join", &include_str!("up/join.yaml").replace("CONTROL-PLANE", &server))
}

/// How a node calls itself; everything else is kubeadm's default.
fn registration(node: &Node) -> Value {
    json!({
        "name": node.name,
        "kubeletExtraArgs": [
            {"name": "node-ip", "value": format!("{},{}", node.ipv4(), node.ipv6())},
            {"name": "node-labels", "value": format!("topology.kubernetes.io/zone=zone-{}", node.number % ZONES)},
        ],
        "ignorePreflightErrors": IGNORED,
    })
}

fn run_kubeadm(node: &Node, verb: &str, configuration: &str) -> Result<()> {
    let path = "/etc/kubernetes/kubeadm.yaml";
    node.write(path, &configuration.replace("REGISTRATION", &registration(node).to_string()))?;
    let log = format!("/var/log/kubeadm-{verb}.log");
    let command = format!("kubeadm {verb} --config {path} >{log} 2>&1 || {{ tail -n 30 {log} >&2; false; }}");
    node.run(&command).map(drop).with_context(|| format!("kubeadm {verb}"))
}
