//! A lab with the daemon on its node, fed by a directory of manifests.
#![allow(
    dead_code,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "each test file uses a part of this; a test that cannot go on must stop"
)]

use std::{collections::BTreeSet, fs, net::SocketAddr};

use serde_json::{Value, json};
use testkit::{
    daemon::{Daemon, eventually, ipvsadm_shows},
    lab::Lab,
};

/// A VIP in each family.
pub(crate) const V4: &str = "10.96.0.10";
pub(crate) const V6: &str = "fd00:96::10";

pub(crate) struct Cluster {
    pub(crate) lab: Lab,
    pub(crate) manifests: tempfile::TempDir,
    daemon: Option<Daemon>,
}

impl Cluster {
    /// Makes the lab and starts the daemon on it.
    pub(crate) fn start(pods: u8, arguments: &[&str]) -> Self {
        let mut cluster = Self {
            lab: Lab::new(pods, 8080).unwrap(),
            manifests: tempfile::tempdir().unwrap(),
            daemon: None,
        };
        cluster.restart(arguments);
        cluster
    }

    /// Kills the daemon, if it runs, and starts it anew.
    pub(crate) fn restart(&mut self, arguments: &[&str]) {
        if let Some(daemon) = self.daemon.take() {
            daemon.kill().unwrap();
        }
        let daemon = Daemon::with_manifests(&self.lab.node, self.manifests.path(), arguments).unwrap();
        eventually("the daemon answers", || daemon.ask(&self.lab.node, "status")).unwrap();
        self.daemon = Some(daemon);
    }

    pub(crate) fn daemon(&self) -> &Daemon {
        self.daemon.as_ref().unwrap()
    }

    /// Writes the Service and its slice, and waits until the kernel has both and the VIP answers.
    pub(crate) fn apply(&self, service: &Service) {
        let file = self.manifests.path().join(&service.name);
        fs::write(&file, service.manifest()).unwrap();
        fs::rename(&file, file.with_extension("json")).unwrap();
        let node = &self.lab.node;
        eventually("the Service is in the kernel", || {
            let bound = node.run("ip", &["route", "get", &service.vip])?;
            anyhow::ensure!(bound.starts_with("local"), "{bound}");
            let list = node.run("ipvsadm", &["-Ln"])?;
            let missing = service.addresses.iter().find(|address| !list.contains(*address));
            anyhow::ensure!(missing.is_none(), "{missing:?} is missing:\n{list}");
            Ok(())
        })
        .unwrap();
    }

    pub(crate) fn delete(&self, service: &Service) {
        fs::remove_file(self.manifests.path().join(&service.name).with_extension("json")).unwrap();
    }

    /// Waits until `ipvsadm -Ln` satisfies `check`.
    pub(crate) fn ipvsadm(&self, what: &str, check: impl Fn(&str) -> bool) -> String {
        ipvsadm_shows(&self.lab.node, what, check).unwrap()
    }

    /// The names of pods by number, from 1.
    pub(crate) fn names(&self, pods: &[usize]) -> BTreeSet<String> {
        pods.iter().map(|number| self.lab.pods[number - 1].name.clone()).collect()
    }
}

/// A Service with one ClusterIP on port 80, and its one slice.
#[derive(Clone)]
pub(crate) struct Service {
    name: String,
    vip: String,
    ports: Vec<(String, String)>,
    addresses: Vec<String>,
    affinity: Option<u32>,
}

impl Service {
    pub(crate) fn tcp(vip: &str) -> Self {
        let name = if vip.contains(':') { "web6" } else { "web4" };
        Self::named(name, vip).port("http", "TCP")
    }

    pub(crate) fn named(name: &str, vip: &str) -> Self {
        let (name, vip) = (name.to_owned(), vip.to_owned());
        Self { name, vip, ports: Vec::new(), addresses: Vec::new(), affinity: None }
    }

    pub(crate) fn port(mut self, name: &str, protocol: &str) -> Self {
        self.ports.push((name.to_owned(), protocol.to_owned()));
        self
    }

    pub(crate) fn endpoints(mut self, cluster: &Cluster, pods: &[usize]) -> Self {
        let vip = self.vip.parse().unwrap();
        self.addresses =
            pods.iter().map(|number| cluster.lab.pods[number - 1].address(vip).to_string()).collect();
        self
    }

    pub(crate) fn affinity(mut self, seconds: u32) -> Self {
        self.affinity = Some(seconds);
        self
    }

    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::new(self.vip.parse().unwrap(), 80)
    }

    fn manifest(&self) -> String {
        let port = |(name, protocol): &(String, String), port: u16| json!({ "name": name, "protocol": protocol, "port": port });
        let family = if self.vip.contains(':') { "IPv6" } else { "IPv4" };
        let mut spec = json!({
            "clusterIP": self.vip,
            "clusterIPs": [self.vip],
            "ipFamilies": [family],
            "ports": self.ports.iter().map(|named| port(named, 80)).collect::<Vec<_>>(),
        });
        if let Some(seconds) = self.affinity {
            spec["sessionAffinity"] = json!("ClientIP");
            spec["sessionAffinityConfig"] = json!({ "clientIP": { "timeoutSeconds": seconds } });
        }
        let endpoint = |address: &String| json!({ "addresses": [address], "conditions": { "ready": true }, "nodeName": "node" });
        let items: [Value; 2] = [
            json!({
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": { "name": self.name, "namespace": "default" },
                "spec": spec,
            }),
            json!({
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": {
                    "name": format!("{}-1", self.name),
                    "namespace": "default",
                    "labels": { "kubernetes.io/service-name": self.name },
                },
                "addressType": family,
                "ports": self.ports.iter().map(|named| port(named, 8080)).collect::<Vec<_>>(),
                "endpoints": self.addresses.iter().map(endpoint).collect::<Vec<_>>(),
            }),
        ];
        json!({ "apiVersion": "v1", "kind": "List", "items": items }).to_string()
    }
}
