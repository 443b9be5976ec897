//! Creates the observers of the writer thread: health, metrics, Events.

use std::{collections::BTreeSet, path::Path, sync::Arc, time::SystemTime};

use anyhow::Context;
use ipvs::Family;
use kubernetes::api::Watches;
use reconciler::Observer;
use tokio::sync::{oneshot, watch};

use super::{kernel::first_sync::FirstSyncEnd, problems::HeldAdvice};
use crate::{
    config::Settings,
    direct_return::{PeersObserver, PeersToAsk, TunnelPackets},
    events::{Outbox, SyncEvents},
    logging::LineLimit,
    serve::{
        health::Health,
        health_check_node_ports::HealthCheckPorts,
        metrics::{CleanupMetrics, KernelCalls, Metrics, MetricsPages, TrafficMetrics},
    },
    source::nodes::NodesNeeded,
    takeover::leftovers::RulesInPlace,
};

/// The observers, and the other ends of what they report.
pub(super) struct Observers {
    /// What the writer thread reports its syncs to.
    pub(super) all: Vec<Box<dyn Observer>>,
    pub(super) health_ports: HealthCheckPorts,
    /// Counts the writer thread's calls of the kernel.
    pub(super) kernel_calls: KernelCalls,
    /// Serves the traffic of Services, once started.
    pub(super) traffic: TrafficMetrics,
    /// Metrics of the conntrack thread.
    pub(super) conntrack_cleanup: CleanupMetrics,
    /// Receives when our rules are in place.
    pub(super) rules_in_place: oneshot::Receiver<()>,
    /// Whether the first sync has ended: then changes to nf_tables and VIPs are subscribed to.
    pub(super) first_sync_ended: watch::Receiver<bool>,
    /// The nodes to ask whether they unpack what is sent to their pods.
    pub(super) peers_to_ask: watch::Receiver<PeersToAsk>,
    /// Whether anything depends on the addresses of the other nodes.
    pub(super) nodes_needed: NodesNeeded,
    /// What goes through tunnels, for the metrics.
    pub(super) tunnel_packets: TunnelPackets,
}

impl Observers {
    /// Creates the observers, and the pages of the metrics.
    pub(super) fn new(
        settings: &Settings,
        families: &BTreeSet<Family>,
        health: &Health,
        outbox: Option<&Outbox>,
        api_server: Option<Watches>,
        advice: &HeldAdvice,
        unlogged: &LineLimit,
    ) -> anyhow::Result<(Self, Arc<MetricsPages>)> {
        let (health_ports, ports) = HealthCheckPorts::new(
            &settings.node_name,
            families.clone(),
            &settings.node_port_addresses,
            health.clone(),
            outbox.cloned(),
        );
        let gates = settings.effective.feature_gates();
        let (started, root) = (SystemTime::now(), Path::new("/"));
        let advice = advice.clone();
        let metrics = Metrics::new(families, started, health, gates, api_server, root);
        let (peers, peers_to_ask) = PeersObserver::new();
        let nodes_needed = NodesNeeded::default();
        let tunnel_packets = TunnelPackets::default();
        let metrics = metrics.with_advice(move || advice.all()).with_log(unlogged.clone());
        let packets = tunnel_packets.clone();
        let metrics = Arc::new(metrics.with_tunnels(families.clone(), move |family| packets.of(family)));
        let (first, rules_in_place) = RulesInPlace::new();
        let (write, first_sync_ended) = FirstSyncEnd::new();
        let mut observers = vec![health.observer(), ports, Box::new(first), Box::new(write), Box::new(peers)];
        observers.push(Box::new(nodes_needed.clone()));
        observers.extend(metrics.observers());
        if let Some(outbox) = outbox {
            observers.push(Box::new(SyncEvents(outbox.clone())));
        }
        let (kernel_calls, traffic, conntrack_cleanup) =
            (metrics.kernel_calls(), TrafficMetrics::default(), metrics.conntrack_cleanup());
        let pages = MetricsPages::new(metrics, traffic.clone(), &settings.effective);
        let listeners = Self {
            all: observers,
            health_ports,
            kernel_calls,
            traffic,
            conntrack_cleanup,
            rules_in_place,
            first_sync_ended,
            peers_to_ask,
            nodes_needed,
            tunnel_packets,
        };
        Ok((listeners, Arc::new(pages.context("the configuration cannot be shown")?)))
    }
}
