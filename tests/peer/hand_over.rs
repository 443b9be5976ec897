//! A node at an API server, with one Service that is reached in every way there is.
//!
//! Node, Service and clients stay the same, whichever proxy runs and whichever takes over.

pub(crate) mod masquerade;
pub(crate) mod successor;

use anyhow::{Result, ensure};
use ipvs::{Ipvs as _, KernelIpvs, Protocol, ServiceAddress};
use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use serde_json::{Value, json};
use testkit::{
    control_plane::ControlPlane,
    daemon::{Daemon, eventually_within},
    kube_proxy::{self, KubeProxy, Mode},
    lab::{Host, Lab, Load},
};

use crate::support::{
    peer::PATIENCE,
    traffic::{self, Addresses},
};

const NAMESPACE: &str = "migration";
const POD_PORT: u16 = 8080;

/// Where the Service is.
pub(crate) const SERVICE: Addresses = Addresses {
    cluster_ips: ["10.96.77.1", "fd00:10:96::4d01"],
    load_balancers: ["203.0.113.77", "2001:db8:77::1"],
    node_port: 30_777,
};

/// How many more Services there are, in both families, where a first sync is to take its time.
const CROWD: u16 = 200;

/// The ClusterIPs of a Service that comes and goes.
const PASSING: [&str; 2] = ["10.96.77.2", "fd00:10:96::4d02"];

/// The node, its pods, a client outside, and the API server. Pods 1 and 2 are the Service's; pod 3 is a
/// client.
pub(crate) struct Stage {
    pub(crate) lab: Lab,
    another_client: Host,
    server: ControlPlane,
    /// The names of the Services that are there.
    services: Vec<String>,
}

impl Stage {
    /// Sets it up. `None`, said as a skip, where something is missing.
    pub(crate) fn new() -> Option<Self> {
        let server = kube_proxy::control_plane().unwrap()?;
        let lab = Lab::new(3, POD_PORT).unwrap();
        // A node knows a way to everywhere. Without one the node's own connections would fail before a rule
        // could send them elsewhere.
        lab.node.ip("route add default via 192.168.50.2\nroute add ::/0 via fd00:50::2").unwrap();
        lab.node.reach(server.address().unwrap()).unwrap();
        server.create_node("node", &[lab.node.ipv4.into(), lab.node.ipv6.into()], None, &[]).unwrap();
        let another_client = traffic::another_client(&lab);
        let stage = Self { lab, another_client, server, services: vec!["web".to_owned()] };
        stage.write_service().unwrap();
        Some(stage)
    }

    fn write_service(&self) -> Result<()> {
        self.server
            .apply(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}))?;
        let ports: Value = ["TCP", "UDP"]
            .map(|protocol| {
                json!({
                    "name": protocol.to_lowercase(),
                    "protocol": protocol,
                    "port": 80,
                    "targetPort": POD_PORT,
                    "nodePort": SERVICE.node_port,
                })
            })
            .into_iter()
            .collect();
        self.server.apply(&json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"namespace": NAMESPACE, "name": "web"},
            "spec": {
                "type": "LoadBalancer",
                "clusterIP": SERVICE.cluster_ips[0],
                "clusterIPs": SERVICE.cluster_ips,
                "ipFamilyPolicy": "RequireDualStack",
                "ports": ports,
            },
            "status": {"loadBalancer": {"ingress": SERVICE.load_balancers.map(|ip| json!({"ip": ip}))}},
        }))?;
        self.write_slices("web")
    }

    /// The slices of a Service: its endpoints are the pods 1 and 2.
    fn write_slices(&self, service: &str) -> Result<()> {
        for (family, like) in [("IPv4", SERVICE.cluster_ips[0]), ("IPv6", SERVICE.cluster_ips[1])] {
            let endpoints = traffic::servers(&self.lab).iter().map(|pod| {
                json!({
                    "addresses": [pod.address(like.parse().unwrap())],
                    "conditions": {"ready": true},
                    "nodeName": "node",
                })
            });
            let ports = ["TCP", "UDP"].map(
                |protocol| json!({"name": protocol.to_lowercase(), "protocol": protocol, "port": POD_PORT}),
            );
            self.server.apply(&json!({
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": {
                    "namespace": NAMESPACE,
                    "name": format!("{service}-{}", family.to_lowercase()),
                    "labels": {"kubernetes.io/service-name": service},
                },
                "addressType": family,
                "ports": ports,
                "endpoints": endpoints.collect::<Value>(),
            }))?;
        }
        Ok(())
    }

    /// More Services like many a cluster has, whose endpoints are the same pods: a first sync takes its time.
    pub(crate) fn write_crowd(&mut self) {
        for number in 1..=CROWD {
            let name = format!("crowd-{number}");
            let cluster_ips = [
                format!("10.96.{}.{}", 80 + number / 250, number % 250),
                format!("fd00:10:96::{:x}", 0x5000 + number),
            ];
            self.server
                .apply(&json!({
                    "apiVersion": "v1",
                    "kind": "Service",
                    "metadata": {"namespace": NAMESPACE, "name": name},
                    "spec": {
                        "clusterIP": cluster_ips[0],
                        "clusterIPs": cluster_ips,
                        "ipFamilyPolicy": "RequireDualStack",
                        "ports": [{"name": "tcp", "port": 80, "targetPort": POD_PORT}],
                    },
                }))
                .unwrap();
            self.write_slices(&name).unwrap();
            self.services.push(name);
        }
    }

    /// Starts the traffic, once everything answers.
    pub(crate) fn load(&self) -> Load {
        traffic::start(&traffic::targets(&self.lab, &self.another_client, SERVICE))
    }

    /// Starts kube-proxy.
    pub(crate) fn kube_proxy(&self, mode: Mode) -> KubeProxy {
        let kubeconfig = self.server.proxy_kubeconfig();
        let arguments = ["--kubeconfig", &*kubeconfig.to_string_lossy()];
        KubeProxy::start_in_mode(mode, &self.lab.node, &arguments).unwrap()
    }

    /// Starts kube-ipvs with these arguments, and waits for the end of its first sync.
    pub(crate) fn kube_ipvs(&self, arguments: &[&str]) -> Daemon {
        let kubeconfig = self.server.proxy_kubeconfig();
        let kubeconfig = kubeconfig.to_string_lossy();
        let arguments = [&["--kubeconfig", &*kubeconfig], arguments].concat();
        let daemon = Daemon::start(&self.lab.node, &arguments).unwrap();
        eventually_within(PATIENCE, "kube-ipvs has synced", || {
            let status = daemon.ask(&self.lab.node, "status")?;
            ensure!(status.contains("synced:          yes"), "{status}");
            Ok(())
        })
        .unwrap();
        daemon
    }

    /// Waits until kube-proxy, in ipvs mode, has carried out a whole sync in each family: it has added a virtual
    /// server for one Service, and removed it, for which it had to begin another one.
    pub(crate) fn kube_proxy_has_synced(&self) {
        self.server
            .apply(&json!({
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"namespace": NAMESPACE, "name": "passing"},
                "spec": {
                    "clusterIP": PASSING[0],
                    "clusterIPs": PASSING,
                    "ipFamilyPolicy": "RequireDualStack",
                    "ports": [{"port": 80}],
                },
            }))
            .unwrap();
        self.has_passing(true);
        self.server.delete::<Service>(NAMESPACE, "passing").unwrap();
        self.has_passing(false);
    }

    /// Waits until no chain, set or table of kube-proxy is on the node. The chain KUBE-FIREWALL is the kubelet's too
    /// and stays.
    pub(crate) fn nothing_of_kube_proxy_is_left(&self) {
        let node = &self.lab.node;
        let list =
            "iptables-save; ip6tables-save; ipset list -name; nft list tables | grep -w kube-proxy || true";
        eventually_within(PATIENCE, "kube-proxy's rules are gone", || {
            let listed = node.run("sh", &["-c", list])?;
            let of_kube_proxy = |line: &&str| {
                (line.contains("KUBE-") && !line.contains("KUBE-FIREWALL")) || line.contains("kube-proxy")
            };
            let left: Vec<_> = listed.lines().filter(of_kube_proxy).collect();
            ensure!(left.is_empty(), "{left:#?}");
            Ok(())
        })
        .unwrap();
    }

    /// Removes what kube-ipvs has and kube-proxy does not know.
    pub(crate) fn clean_up_and_keep_ipvs(&self) {
        let binary = testkit::daemon::binary().unwrap();
        let said = self.lab.node.run(&binary.to_string_lossy(), &["cleanup", "--keep-ipvs"]).unwrap();
        println!("{}", said.trim_end());
        let tables = self.lab.node.run("nft", &["list", "tables"]).unwrap();
        assert!(!tables.contains("kube-ipvs"), "{tables}");
    }

    fn has_passing(&self, wanted: bool) {
        let mut kernel = self.lab.node.inside(KernelIpvs::open).unwrap().unwrap();
        eventually_within(PATIENCE, "kube-proxy syncs", || {
            for ip in PASSING {
                let address = ServiceAddress { protocol: Protocol::Tcp, ip: ip.parse()?, port: 80 };
                let found = kernel.virtual_server(address.into())?.is_some();
                ensure!(found == wanted, "a virtual server at {address}: {found}");
            }
            Ok(())
        })
        .unwrap();
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // Others may use the same API server.
        for name in &self.services {
            let _ = self.server.delete::<Service>(NAMESPACE, name);
            for family in ["ipv4", "ipv6"] {
                let _ = self.server.delete::<EndpointSlice>(NAMESPACE, &format!("{name}-{family}"));
            }
        }
    }
}
