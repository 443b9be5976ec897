//! Where each address leads, and what is known of the nodes.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{Ipv4Addr, SocketAddr},
    time::{Duration, Instant},
};

use anyhow::Result;

use super::{
    TakingPart,
    services::{Balanced, Service},
};
use crate::{network, node::Node, state::Cluster};

/// Where a proxy says whether its node serves.
const PROXY_HEALTH: u16 = 10256;

/// How long a node may leave checks without an answer. Clouds wait about as long (three checks, eight seconds apart,
/// with GKE): a proxy that is replaced does not answer for some seconds.
const PATIENCE: Duration = Duration::from_secs(24);

/// Where the router leads each address.
#[derive(Default)]
pub(super) struct Announced {
    destinations: Destinations,
    /// When a port of a node said last that the node serves.
    served: BTreeMap<SocketAddr, Instant>,
}

/// The nodes that each address leads to.
type Destinations = BTreeMap<Ipv4Addr, Vec<Node>>;

/// What a node answers to a health check.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Health {
    Serves,
    DoesNot,
    Silent,
}

impl Announced {
    /// Leads each address to the nodes that serve it.
    pub(super) fn update(
        &mut self,
        cluster: &Cluster,
        balanced: &Balanced,
        taking_part: &TakingPart,
    ) -> Result<()> {
        let nodes = cluster.workers().iter().filter(|node| taking_part.contains(&node.name));
        let nodes: Vec<Node> = nodes.cloned().collect();
        let ports: BTreeSet<u16> = balanced.values().map(health_port).collect();
        for port in ports {
            for node in &nodes {
                self.ask((node.ipv4(), port).into());
            }
        }
        let mut destinations = Destinations::new();
        for service in balanced.values() {
            let serves = |node: &&Node| self.served.contains_key(&(node.ipv4(), health_port(service)).into());
            let most = if service.is_sticky { 1 } else { nodes.len() };
            destinations.insert(service.address, nodes.iter().filter(serves).take(most).cloned().collect());
        }
        self.lead_to(destinations)
    }

    /// A node that does not answer is given up after a while.
    fn ask(&mut self, node: SocketAddr) {
        match health(node) {
            Health::Serves => drop(self.served.insert(node, Instant::now())),
            // It has no endpoints of the Service. A proxy that says so of itself may have just started.
            Health::DoesNot if node.port() != PROXY_HEALTH => drop(self.served.remove(&node)),
            Health::DoesNot | Health::Silent => {
                let is_given_up = self.served.get(&node).is_some_and(|last| last.elapsed() > PATIENCE);
                if is_given_up {
                    self.served.remove(&node);
                }
            }
        }
    }

    /// Takes back all that was announced.
    pub(super) fn lead_nowhere(&mut self) -> Result<()> {
        self.lead_to(Destinations::new())
    }

    /// Makes the destinations these. What cannot be changed is tried again the next time, with the rest.
    fn lead_to(&mut self, destinations: Destinations) -> Result<()> {
        let is_gone = |address: &&Ipv4Addr| !destinations.contains_key(*address);
        let gone: Vec<_> = self.destinations.keys().filter(is_gone).copied().collect();
        for address in gone {
            network::withdraw(address)?;
            self.destinations.remove(&address);
        }
        for (address, nodes) in destinations {
            if self.destinations.get(&address) != Some(&nodes) {
                network::announce(address, &nodes)?;
                self.destinations.insert(address, nodes);
            }
        }
        Ok(())
    }
}

/// Where a node says whether it serves a Service.
fn health_port(service: &Service) -> u16 {
    service.health_check.unwrap_or(PROXY_HEALTH)
}

/// Asks a node.
fn health(node: SocketAddr) -> Health {
    let mut curl = network::on_router("curl");
    curl.args(["--silent", "--fail", "--max-time", "2", "--output", "/dev/null"]);
    curl.arg(format!("http://{node}/healthz"));
    match curl.status().ok().and_then(|status| status.code()) {
        Some(0) => Health::Serves,
        // An answer that says no.
        Some(22) => Health::DoesNot,
        _ => Health::Silent,
    }
}
