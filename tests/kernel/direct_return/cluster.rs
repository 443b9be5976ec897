//! A cluster of several nodes with a Service that is answered directly.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::IpAddr,
    ops::Range,
    time::Instant,
};

use anyhow::{Context as _, Result, ensure};
use ipvs::Family;
use serde_json::{Value, json};
use testkit::{
    daemon::{Daemon, eventually},
    lab::{Connection, Fabric, Host},
};

use crate::support::cluster::{POD_PORT, at, page};

/// The load balancer's address in each family.
pub(crate) const EXTERNAL: [&str; 2] = ["203.0.113.20", "2001:db8:113::20"];
pub(crate) const CLUSTER_IP: [&str; 2] = ["10.96.0.20", "fd00:96::20"];

const PROTOCOLS: [&str; 3] = ["tcp", "udp", "sctp"];

/// Nodes, each with its daemon, fed by the same manifests.
pub(crate) struct Cluster {
    pub(crate) fabric: Fabric,
    manifests: tempfile::TempDir,
    daemons: Vec<Option<Daemon>>,
}

impl Cluster {
    /// Nodes with so many pods each, and a Service that all of them serve.
    pub(super) fn start(pods: &[u8], annotations: &Value) -> Self {
        let mut cluster = Self::without_daemons(pods, annotations);
        (0..pods.len()).for_each(|node| cluster.run(node));
        cluster
    }

    pub(crate) fn without_daemons(pods: &[u8], annotations: &Value) -> Self {
        let fabric = Fabric::new(pods, POD_PORT).unwrap();
        let manifests = tempfile::tempdir().unwrap();
        let daemons = pods.iter().map(|_| None).collect();
        let cluster = Self { fabric, manifests, daemons };
        cluster.write("nodes", &cluster.nodes());
        cluster.write("shop", &cluster.service(annotations));
        cluster
    }

    /// Starts the daemon of a node.
    pub(super) fn run(&mut self, node: usize) {
        self.run_with(node, &["--ipvs-sync-period=2s"]);
    }

    /// The same with these flags. Annotations may ask for direct return, unless the flags have that.
    pub(crate) fn run_with(&mut self, node: usize, arguments: &[&str]) {
        let name = format!("--hostname-override=node-{}", node + 1);
        let mut arguments = [arguments, &["--ipvs-min-sync-period=0s", &name]].concat();
        if !arguments.iter().any(|argument| argument.starts_with("--external-forwarding-method")) {
            arguments.push("--external-forwarding-method=by-annotation");
        }
        let daemon = Daemon::with_manifests(&self.fabric.nodes[node], self.manifests.path(), &arguments);
        self.daemons[node] = Some(daemon.unwrap());
    }

    pub(super) fn daemon(&self, node: usize) -> &Daemon {
        self.daemons[node].as_ref().unwrap()
    }

    pub(super) fn has_daemon(&self, node: usize) -> bool {
        self.daemons[node].is_some()
    }

    /// Waits until each of these nodes has ended two full syncs from now on: the second one has read all that is in the
    /// kernel now.
    pub(super) fn sync_in_full(&self, nodes: Range<usize>) {
        for _ in 0..2 {
            let begun = Instant::now();
            for node in nodes.clone() {
                eventually(&format!("node {node} ends a full sync"), || {
                    let so_far = begun.elapsed().as_secs_f64();
                    let status = self.daemon(node).status(&self.fabric.nodes[node])?;
                    let age = status["last_full_sync"]["age"].as_f64().context("no full sync")?;
                    ensure!(age < so_far, "{age} s ago");
                    Ok(())
                })
                .unwrap();
            }
        }
    }

    pub(super) fn kill(&mut self, node: usize) {
        self.daemons[node].take().unwrap().kill().unwrap();
    }

    pub(crate) fn write(&self, name: &str, items: &[Value]) {
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": items });
        let file = self.manifests.path().join(name);
        fs::write(&file, list.to_string()).unwrap();
        fs::rename(&file, file.with_extension("json")).unwrap();
    }

    pub(super) fn nodes(&self) -> Vec<Value> {
        let addresses = |node: &Host| {
            json!([
                { "type": "InternalIP", "address": node.ipv4 },
                { "type": "InternalIP", "address": node.ipv6 },
            ])
        };
        let object = |node: &Host| {
            let status = json!({ "addresses": addresses(node) });
            json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": node.name }, "status": status })
        };
        self.fabric.nodes.iter().map(object).collect()
    }

    pub(crate) fn service(&self, annotations: &Value) -> Vec<Value> {
        let slice = |like: &str| {
            let like: IpAddr = like.parse().unwrap();
            let endpoint = |(node, pod): &(usize, Host)| {
                json!({
                    "addresses": [pod.address(like)],
                    "nodeName": self.fabric.nodes[*node].name,
                    "conditions": { "ready": true },
                })
            };
            let family = if like.is_ipv4() { "IPv4" } else { "IPv6" };
            json!({
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": {
                    "name": format!("shop-{}", family.to_lowercase()),
                    "namespace": "default",
                    "labels": { "kubernetes.io/service-name": "shop" },
                },
                "addressType": family,
                "ports": PROTOCOLS.map(|name| json!({ "name": name, "port": POD_PORT, "protocol": name.to_uppercase() })),
                "endpoints": self.fabric.pods.iter().map(endpoint).collect::<Value>(),
            })
        };
        let service = json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": { "name": "shop", "namespace": "default", "annotations": annotations },
            "spec": {
                "type": "LoadBalancer",
                "clusterIP": CLUSTER_IP[0],
                "clusterIPs": CLUSTER_IP,
                "ipFamilies": ["IPv4", "IPv6"],
                "ports": PROTOCOLS.map(|name| json!({ "name": name, "port": 80, "protocol": name.to_uppercase() })),
            },
            "status": { "loadBalancer": { "ingress": EXTERNAL.map(|ip| json!({ "ip": ip })) } },
        });
        vec![service, slice(CLUSTER_IP[0]), slice(CLUSTER_IP[1])]
    }

    /// Waits until a node tunnels to all pods of others.
    pub(super) fn tunnels(&self, node: usize, address: &str) {
        let method = |(at, _): &(usize, Host)| if *at == node { "Masq" } else { "Tunnel" };
        let wanted: Vec<_> = self.fabric.pods.iter().map(method).collect();
        eventually(&format!("node {node} tunnels to all others"), || {
            let found = self.methods(node, address)?;
            ensure!(found == wanted, "{found:?}");
            Ok(())
        })
        .unwrap();
    }

    /// Waits until a node masquerades to all pods.
    pub(super) fn masquerades(&self, node: usize, address: &str) {
        self.masquerades_to(self.fabric.pods.len(), node, address);
    }

    /// Waits until a node masquerades to so many pods.
    pub(crate) fn masquerades_to(&self, pods: usize, node: usize, address: &str) {
        eventually(&format!("node {node} masquerades to {pods}"), || {
            let found = self.methods(node, address)?;
            ensure!(found == vec!["Masq"; pods], "{found:?}");
            Ok(())
        })
        .unwrap();
    }

    /// Waits until a node sends new connections to all pods but one, which drains there or is gone.
    pub(super) fn leaves_out_one(&self, node: usize, address: &str) {
        eventually(&format!("node {node} sends nothing new to one pod"), || {
            let weights: Vec<_> = self.real_servers(node, address)?.map(|[_, _, weight]| weight).collect();
            let used = weights.iter().filter(|weight| *weight != "0").count();
            ensure!(used == self.fabric.pods.len() - 1, "{weights:?}");
            Ok(())
        })
        .unwrap();
    }

    /// How a node reaches each pod, in the order of their addresses.
    pub(super) fn methods(&self, node: usize, address: &str) -> Result<Vec<String>> {
        Ok(self.real_servers(node, address)?.map(|[_, method, _]| method).collect())
    }

    /// Address, method and weight of each real server, in the order of their addresses.
    fn real_servers(&self, node: usize, address: &str) -> Result<impl Iterator<Item = [String; 3]>> {
        let shown = self.fabric.nodes[node].run("ipvsadm", &["-Ln", "-t", &at(address, 80).to_string()])?;
        let mut servers = BTreeSet::new();
        for line in shown.lines().filter(|line| line.contains(&format!(":{POD_PORT}"))) {
            if let ["->", address, method, weight, ..] = line.split_whitespace().collect::<Vec<_>>()[..] {
                servers.insert([address, method, weight].map(str::to_owned));
            }
        }
        Ok(servers.into_iter())
    }

    /// Waits until the metrics of a node count so many packets that tunnels have carried or refused: `sent`, `received` or
    /// `refused`. The daemon reads the counters every two seconds.
    pub(super) fn counts(&self, node: usize, address: &str, direction: &str, at_least: u32) {
        let family = Family::from(parsed(address));
        let labels = format!("{{ip_family=\"{family}\",direction=\"{direction}\"}}");
        eventually(&format!("node {node} counts what is {direction} ({address})"), || {
            let page = page(&self.fabric.nodes[node], "/metrics")?;
            let packets = testkit::metrics::value(&page, &format!("kube_ipvs_tunnel_packets_total{labels}"))?;
            ensure!(packets >= f64::from(at_least), "{packets}");
            Ok(())
        })
        .unwrap();
    }

    /// Opens so many connections at the load balancer's address.
    pub(super) fn connections(&self, address: &str, count: usize) -> Vec<Connection> {
        (0..count).map(|_| self.fabric.client.connect(at(address, 80)).unwrap()).collect()
    }
}

/// Fails if one of them is broken.
pub(crate) fn all_still_work(connections: &mut [Connection]) {
    for connection in connections {
        connection.still_works().unwrap();
    }
}

/// How many connections each pod has.
pub(super) fn by_pod(connections: &[Connection]) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for connection in connections {
        *counts.entry(connection.answer.from.as_str()).or_default() += 1;
    }
    counts
}

/// The load balancer's address in each family.
pub(super) fn families() -> impl Iterator<Item = &'static str> {
    EXTERNAL.into_iter()
}

pub(super) fn tunnelled() -> Value {
    json!({ "kube-ipvs.io/forwarding-method": "tunnel" })
}

/// The address in its family.
pub(super) fn parsed(address: &str) -> IpAddr {
    address.parse().unwrap()
}
