//! An application in the cluster, and clients that ask it.

use std::{
    net::{IpAddr, SocketAddr},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use guest::workspace;
use serde_json::{Value, json};

use crate::{
    disk::images::AGNHOST,
    kubectl::{self, patiently},
    load::Load,
    network,
    node::Node,
    state::Cluster,
};

/// The namespace of what scenarios make, and the same for kubectl.
const NAMESPACE: &str = "scenario";
pub(crate) const IN: &str = "--namespace=scenario";

/// How a pod of the application ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// It serves for ten seconds after SIGTERM, as an application does that drains.
    Drained,
    /// At once.
    AtOnce,
}

/// A Deployment and its Service of type LoadBalancer.
pub(crate) struct Web {
    replicas: usize,
}

/// Who asks.
#[derive(Clone, Copy)]
pub(crate) enum Client<'a> {
    /// A process outside of the cluster.
    Outside,
    /// A process on a node.
    Node(&'a Node),
    /// The pod `client` on a node.
    Pod(&'a Node),
}

/// Where it is asked.
#[derive(Clone, Copy)]
pub(crate) enum Address<'a> {
    ClusterIp,
    /// The ClusterIP of IPv6.
    ClusterIpV6,
    /// The port on this node.
    NodePort(&'a Node),
    /// What the cloud's load balancer is reached at.
    LoadBalancer,
}

#[expect(clippy::unused_self, reason = "nothing of it is there before it is deployed")]
impl Web {
    /// Makes it anew, with a pod `client` on each worker, and waits until all is ready.
    pub(crate) fn deploy(cluster: &Cluster, replicas: usize, end: End) -> Result<Self> {
        remove()?;
        let lifecycle = match end {
            End::Drained => "{preStop: {sleep: {seconds: 10}}}",
            End::AtOnce => "{}",
        };
        let mut manifest = include_str!("web/web.yaml").replace("REPLICAS", &replicas.to_string());
        manifest = manifest.replace("LIFECYCLE", lifecycle);
        for worker in cluster.workers() {
            manifest += &include_str!("web/client.yaml").replace("NODE", &worker.name);
        }
        kubectl::apply(&manifest.replace("AGNHOST", AGNHOST))?;
        let web = Self { replicas };
        web.wait()?;
        kubectl::run(&format!("{IN} wait --for=condition=Ready pod --selector=app=client --timeout=120s"))?;
        Ok(web)
    }

    /// Starts a roll-out; [`Web::wait`] waits for its end.
    pub(crate) fn restart(&self) -> Result<()> {
        kubectl::run(&format!("{IN} rollout restart deployment/web"))
    }

    /// Waits until the pods are as they should be, and the earlier ones have ended.
    pub(crate) fn wait(&self) -> Result<()> {
        kubectl::wait_for_rollout(NAMESPACE, "deployment/web")?;
        patiently(Duration::from_secs(120), || {
            let pods = kubectl::output(&format!("{IN} get pods --selector=app=web --output=name"))?;
            let there = pods.lines().count();
            ensure!(there == self.replicas, "there are {there} pods instead of {}", self.replicas);
            Ok(())
        })
    }

    /// How many ready endpoints its EndpointSlices have on a node.
    pub(crate) fn ready_endpoints_on(&self, node: &Node) -> Result<usize> {
        let words = format!("{IN} get endpointslices --selector=kubernetes.io/service-name=web");
        let list = kubectl::json(&words)?;
        let slices = list.pointer("/items").and_then(Value::as_array).context("a list without items")?;
        let endpoints = slices.iter().filter_map(|slice| slice.pointer("/endpoints")?.as_array()).flatten();
        let is_ready_here = |endpoint: &&Value| {
            endpoint.pointer("/nodeName") == Some(&json!(node.name))
                && endpoint.pointer("/conditions/ready") == Some(&json!(true))
        };
        Ok(endpoints.filter(is_ready_here).count())
    }

    /// Where to ask.
    pub(crate) fn address(&self, address: Address<'_>) -> Result<SocketAddr> {
        patiently(Duration::from_secs(30), || {
            let service = kubectl::json(&format!("{IN} get service web"))?;
            let text = |pointer: &str| service.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
            let ip = |pointer: &str| -> Result<IpAddr> {
                Ok(text(pointer).with_context(|| format!("the Service has no {pointer}"))?.parse()?)
            };
            Ok(match address {
                Address::ClusterIp => SocketAddr::new(ip("/spec/clusterIPs/0")?, 80),
                Address::ClusterIpV6 => SocketAddr::new(ip("/spec/clusterIPs/1")?, 80),
                Address::LoadBalancer => SocketAddr::new(ip("/status/loadBalancer/ingress/0/ip")?, 80),
                Address::NodePort(node) => {
                    let port = service.pointer("/spec/ports/0/nodePort").and_then(Value::as_u64);
                    SocketAddr::new(node.ipv4().into(), u16::try_from(port.context("no nodePort")?)?)
                }
            })
        })
    }

    /// Starts asking: so many requests a second, and over so many connections that are held.
    pub(crate) fn ask(&self, client: Client<'_>, address: Address<'_>, rate: u32, held: u32) -> Result<Load> {
        let target = self.address(address)?;
        let words = format!("load {target} --rate={rate} --held={held}");
        let mut command = match client {
            Client::Outside => {
                let mut command = network::outside(workspace::myself()?);
                command.args(words.split(' '));
                command
            }
            Client::Node(node) => on_node(node, &format!("{PROGRAM} {words}"))?,
            Client::Pod(node) => {
                let process = process_of_client(node)?;
                on_node(node, &format!("nsenter --target={process} --net {PROGRAM} {words}"))?
            }
        };
        Load::start(&mut command)
    }
}

/// A command on a node that calls this program, which is copied there.
fn on_node(node: &Node, command: &str) -> Result<Command> {
    // Under another name first: an older one may run.
    let script = format!("cat >{PROGRAM}.new && chmod +x {PROGRAM}.new && mv {PROGRAM}.new {PROGRAM}");
    node.send(&workspace::myself()?, &script)?;
    let mut ssh = node.ssh();
    ssh.arg(command);
    Ok(ssh)
}

/// The number of a process in the pod `client`, on its node.
fn process_of_client(node: &Node) -> Result<String> {
    let name = client_name(node);
    let pod = kubectl::json(&format!("{IN} get pod {name}"))?;
    let id = pod.pointer("/status/containerStatuses/0/containerID").and_then(Value::as_str);
    let id = id.and_then(|id| id.strip_prefix("containerd://"));
    let id = id.with_context(|| format!("{name} has no container"))?;
    let script = format!("ctr --namespace k8s.io task list | awk '$1 == \"{id}\" {{print $2}}'");
    Ok(node.run(&script)?.trim().to_owned())
}

/// Removes what [`Web::deploy`] has made.
pub(crate) fn remove() -> Result<()> {
    kubectl::run(&format!("delete namespace {NAMESPACE} --ignore-not-found --wait --timeout=300s"))
}

/// This program on a node.
const PROGRAM: &str = "/usr/local/bin/cluster";

/// The name of the client on a node.
pub(crate) fn client_name(node: &Node) -> String {
    format!("client-{}", node.name)
}
