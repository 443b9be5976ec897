//! Two nodes of one API server, and the Services that they serve.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Result;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use testkit::control_plane::ControlPlane;
use testkit::daemon::Daemon;
use testkit::lab::Lab;

use crate::control_plane;
use crate::stage;
use crate::stage::objects::{self, Condition, Endpoint};

/// Pods of each node. Those of one number have the same address on both, so each node reaches all endpoints.
const PODS: u8 = 7;
const ARGUMENTS: [&str; 3] = ["--service-metrics=endpoint", "--ipvs-sync-period=10s", "--drain-timeout=20s"];
/// What `shop/web` is reached at from outside, and what another Service claims too.
const EXTERNAL: &str = "203.0.113.10";

/// A node with its daemon.
pub(super) struct Node {
    pub(super) name: &'static str,
    pub(super) lab: Lab,
    pub(super) daemon: Daemon,
}

/// The nodes and their API server.
pub(super) struct Cluster {
    pub(super) server: ControlPlane,
    pub(super) a: Node,
    pub(super) b: Node,
}

/// A Service, and how it is used.
pub(super) struct Service {
    /// The last number of its ClusterIP.
    number: u8,
    namespace: &'static str,
    name: &'static str,
    /// By way of one node: connections that stay, milliseconds between two short ones, and the bytes that each of these
    /// sends and gets back.
    pub(super) stay: usize,
    pub(super) every: u64,
    pub(super) bytes: usize,
}

const fn service(
    number: u8,
    namespace: &'static str,
    name: &'static str,
    use_of_it: (usize, u64, usize),
) -> Service {
    let (stay, every, bytes) = use_of_it;
    Service { number, namespace, name, stay, every, bytes }
}

const WEB: Service = service(11, "shop", "web", (10, 120, 1500));
/// Those with traffic.
pub(super) const USED: [Service; 6] = [
    WEB,
    service(12, "shop", "cart", (6, 250, 600)),
    service(13, "shop", "images", (1, 300, 6000)),
    service(14, "shop", "payment", (1, 600, 400)),
    service(15, "login", "accounts", (8, 200, 300)),
    service(16, "dns", "resolver", (1, 150, 80)),
];
pub(super) const OFFERS: Service = service(31, "campaign", "offers", UNUSED);
/// Those of a campaign, whose endpoints do not change.
pub(super) const CAMPAIGN: [Service; 3] =
    [OFFERS, service(32, "campaign", "letters", UNUSED), service(33, "campaign", "winners", UNUSED)];
/// One that claims the external address of [`WEB`].
pub(super) const RIVAL: [Service; 1] = [service(20, "shop", "web-next", UNUSED)];
const UNUSED: (usize, u64, usize) = (0, 0, 0);

impl Cluster {
    /// Starts the daemons, and waits until all is programmed.
    pub(super) fn start() -> Result<Self> {
        let server = control_plane::inside()?;
        for namespace in ["shop", "login", "dns", "campaign"] {
            server
                .apply(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}))?;
        }
        let [a, b] = ["node-a", "node-b"].map(|name| Node::start(&server, name));
        let cluster = Self { server, a: a?, b: b? };
        cluster.add(&USED)?;
        for node in [&cluster.a, &cluster.b] {
            stage::has_synced(&node.daemon, &node.lab)?;
        }
        Ok(cluster)
    }

    /// Gives a Service these endpoints.
    pub(super) fn endpoints(&self, service: &Service, pods: impl Iterator<Item = u8>) -> Result<()> {
        self.server.apply(&service.slice(pods))
    }

    /// Makes Services, with endpoints.
    pub(super) fn add(&self, services: &[Service]) -> Result<()> {
        services.iter().try_for_each(|service| {
            let is_web = service.name.starts_with(WEB.name);
            let external = if is_web { json!([EXTERNAL]) } else { json!([]) };
            self.server.apply(&objects::with(service.object(), "/spec", "externalIPs", external))?;
            self.endpoints(service, 1..=3)
        })
    }

    pub(super) fn remove(&self, services: &[Service]) -> Result<()> {
        services.iter().try_for_each(|service| {
            self.server.delete::<k8s_openapi::api::core::v1::Service>(service.namespace, service.name)
        })
    }
}

impl Node {
    fn start(server: &ControlPlane, name: &'static str) -> Result<Self> {
        let lab = stage::connected_lab(server, PODS)?;
        server.create_node(name, &[lab.node.ipv4.into(), lab.node.ipv6.into()], None, &[])?;
        let name_of_node = format!("--hostname-override={name}");
        let daemon = stage::start(&lab, server, &[&[&*name_of_node], &ARGUMENTS[..]].concat())?;
        Ok(Self { name, lab, daemon })
    }

    /// Runs a program on it, given with its arguments.
    pub(super) fn run(&self, command: &str) -> Result<()> {
        let mut words = command.split_whitespace();
        let program = words.next().unwrap_or_default();
        self.lab.node.run(program, &words.collect::<Vec<_>>()).map(drop)
    }
}

impl Service {
    pub(super) fn address(&self) -> SocketAddr {
        SocketAddr::new(self.ip().into(), objects::PORTS[0])
    }

    fn ip(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 96, 1, self.number)
    }

    /// Of both families, so that there are VIPs of both.
    fn object(&self) -> Value {
        let service = objects::with(
            objects::service(self.name, &objects::PORTS[..1], true),
            "/metadata",
            "namespace",
            json!(self.namespace),
        );
        objects::with(service, "/spec", "clusterIP", json!(self.ip()))
    }

    /// Written because its pods have just changed.
    fn slice(&self, pods: impl Iterator<Item = u8>) -> Value {
        let endpoints: Vec<_> = pods.map(|number| Endpoint { number, condition: Condition::Ready }).collect();
        let slice = objects::slice(self.name, self.name, &endpoints);
        let slice = objects::with(slice, "/metadata", "namespace", json!(self.namespace));
        let changed =
            json!({"endpoints.kubernetes.io/last-change-trigger-time": Timestamp::now().to_string()});
        objects::with(slice, "/metadata", "annotations", changed)
    }
}
