//! An application in the cluster, and clients that ask it.

use std::{
    net::{IpAddr, SocketAddr},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use guest::workspace;
use serde_json::{Value, json};

use crate::{
    kubectl::{self, patiently},
    load::Load,
    network,
    node::Node,
    state::Cluster,
};

/// The namespace of what scenarios make.
pub(crate) const NAMESPACE: &str = "scenario";

/// Where agnhost listens.
const PORT: u16 = 8080;

/// How a pod of the application ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// It serves on for ten seconds after it has been told to end, as an application does that lets proxies know.
    Drained,
    /// At once.
    AtOnce,
}

/// A Deployment and its Service of type LoadBalancer.
pub(crate) struct Web<'a> {
    cluster: &'a Cluster,
    replicas: usize,
}

/// Who asks.
#[derive(Clone, Copy)]
pub(crate) enum Client<'a> {
    /// Somebody outside of the cluster.
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
impl<'a> Web<'a> {
    /// Makes it anew, with a pod `client` on each worker, and waits until all is ready.
    pub(crate) fn deploy(cluster: &'a Cluster, replicas: usize, end: End) -> Result<Self> {
        remove()?;
        let clients = cluster.workers().iter().map(client);
        let objects: Vec<Value> =
            [namespace(), deployment(replicas, end), service()].into_iter().chain(clients).collect();
        kubectl::apply(&objects)?;
        let web = Self { cluster, replicas };
        web.wait()?;
        let timeout = ["wait", "--for=condition=Ready", "pod", "--selector=app=client", "--timeout=120s"];
        kubectl::output(&in_namespace(&timeout))?;
        Ok(web)
    }

    /// Starts a roll-out; [`Web::wait`] waits for its end.
    pub(crate) fn restart(&self) -> Result<()> {
        kubectl::output(&in_namespace(&["rollout", "restart", "deployment/web"])).map(drop)
    }

    /// Waits until the pods are what they shall be, and those of before have ended.
    pub(crate) fn wait(&self) -> Result<()> {
        let arguments = ["rollout", "status", "deployment/web", "--timeout=300s"];
        kubectl::output(&in_namespace(&arguments))?;
        patiently(Duration::from_secs(120), || {
            let pods = ["get", "pods", "--selector=app=web", "--output=name"];
            let there = kubectl::output(&in_namespace(&pods))?.lines().count();
            ensure!(there == self.replicas, "there are {there} pods instead of {}", self.replicas);
            Ok(())
        })
    }

    /// How many ready endpoints its EndpointSlices have on a node.
    pub(crate) fn ready_endpoints_on(&self, node: &Node) -> Result<usize> {
        let slices = ["get", "endpointslices", "--selector=kubernetes.io/service-name=web"];
        let list = kubectl::json(&in_namespace(&slices))?;
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
            let service = kubectl::json(&in_namespace(&["get", "service", "web"]))?;
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
            Client::Node(node) => {
                self.install(node)?;
                let mut ssh = node.ssh(self.cluster);
                ssh.arg(format!("{PROGRAM} {words}"));
                ssh
            }
            Client::Pod(node) => {
                self.install(node)?;
                let process = self.process_of_client(node)?;
                let mut ssh = node.ssh(self.cluster);
                ssh.arg(format!("nsenter --target={process} --net {PROGRAM} {words}"));
                ssh
            }
        };
        Load::start(&mut command)
    }

    /// Puts this program on a node.
    fn install(&self, node: &Node) -> Result<()> {
        let myself = workspace::myself()?;
        let file = std::fs::File::open(&myself).with_context(|| myself.display().to_string())?;
        let mut ssh: Command = node.ssh(self.cluster);
        // Under another name first: an older one may run.
        let script = format!("cat >{PROGRAM}.new && chmod +x {PROGRAM}.new && mv {PROGRAM}.new {PROGRAM}");
        ensure!(
            ssh.arg(script).stdin(file).stdout(Stdio::null()).status()?.success(),
            "copying to {}",
            node.name
        );
        Ok(())
    }

    /// The number of a process in the pod `client`, on its node.
    fn process_of_client(&self, node: &Node) -> Result<String> {
        let name = client_name(node);
        let pod = kubectl::json(&in_namespace(&["get", "pod", &name]))?;
        let id = pod.pointer("/status/containerStatuses/0/containerID").and_then(Value::as_str);
        let id = id
            .and_then(|id| id.strip_prefix("containerd://"))
            .with_context(|| format!("{name} has no container"))?;
        let script = format!("ctr --namespace k8s.io task list | awk '$1 == \"{id}\" {{print $2}}'");
        Ok(node.run(self.cluster, &script)?.trim().to_owned())
    }
}

/// Removes what [`Web::deploy`] has made.
pub(crate) fn remove() -> Result<()> {
    let arguments = ["delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait", "--timeout=300s"];
    kubectl::output(&arguments).map(drop)
}

/// This program on a node.
const PROGRAM: &str = "/usr/local/bin/cluster";

/// kubectl's arguments with the namespace.
pub(crate) fn in_namespace<'a>(arguments: &[&'a str]) -> Vec<&'a str> {
    ["--namespace", NAMESPACE].into_iter().chain(arguments.iter().copied()).collect()
}

fn namespace() -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
}

const AGNHOST: &str = "registry.k8s.io/e2e-test-images/agnhost:2.63.0";

fn deployment(replicas: usize, end: End) -> Value {
    let lifecycle = match end {
        End::Drained => json!({"preStop": {"sleep": {"seconds": 10}}}),
        End::AtOnce => json!({}),
    };
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": NAMESPACE},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {
                    "terminationGracePeriodSeconds": 20,
                    // As many on each worker that takes pods.
                    "topologySpreadConstraints": [{
                        "maxSkew": 1,
                        "topologyKey": "kubernetes.io/hostname",
                        "whenUnsatisfiable": "DoNotSchedule",
                        "nodeTaintsPolicy": "Honor",
                        "labelSelector": {"matchLabels": {"app": "web"}},
                        "matchLabelKeys": ["pod-template-hash"],
                    }],
                    "containers": [{
                        "name": "web",
                        "image": AGNHOST,
                        "args": ["netexec", format!("--http-port={PORT}")],
                        "lifecycle": lifecycle,
                        "readinessProbe": {"httpGet": {"path": "/healthz", "port": PORT}, "periodSeconds": 1},
                    }],
                },
            },
        },
    })
}

fn service() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web", "namespace": NAMESPACE},
        "spec": {
            "type": "LoadBalancer",
            "ipFamilyPolicy": "RequireDualStack",
            "ipFamilies": ["IPv4", "IPv6"],
            "selector": {"app": "web"},
            "ports": [{"port": 80, "targetPort": PORT}],
        },
    })
}

/// The name of the client on a node.
pub(crate) fn client_name(node: &Node) -> String {
    format!("client-{}", node.name)
}

fn client(node: &Node) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": client_name(node), "namespace": NAMESPACE, "labels": {"app": "client"}},
        "spec": {
            "nodeName": node.name,
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "client", "image": AGNHOST, "args": ["pause"]}],
        },
    })
}
