//! What health checks and metrics show, and what the other parts of the daemon learn from each sync.

use std::{collections::BTreeSet, path::Path, sync::Arc, time::SystemTime};

use anyhow::Context;
use ipvs::Family;
use reconciler::Observer;
use tokio::sync::{oneshot, watch};

use super::{Daemon, kernel::notifications::FirstSyncEnd};
use crate::{
    direct_return::{PeersObserver, PeersToAsk},
    events::{Outbox, SyncEvents},
    serve::{
        health::Health,
        health_check_node_ports::HealthCheckPorts,
        liveness::EndpointAnswers,
        metrics::{Metrics, MetricsPages, TrafficMetrics},
    },
    source::{Source, nodes::NodesNeeded},
    takeover::leftovers::RulesInPlace,
};

/// What is shown by HTTP.
pub(super) struct Shown {
    pub(super) health: Health,
    pub(super) metrics: Arc<Metrics>,
    /// The traffic of Services, once started.
    pub(super) traffic: TrafficMetrics,
    /// Whether endpoints answer.
    pub(super) answers: EndpointAnswers,
    /// The pages of all metrics.
    pub(super) pages: Arc<MetricsPages>,
}

impl Shown {
    /// A daemon that starts now, on a node with these families.
    pub(super) fn new(daemon: &Daemon<'_>, families: &BTreeSet<Family>) -> anyhow::Result<Self> {
        let Daemon { settings, source, packets, advice, problems, log_level, .. } = daemon;
        let health = Health::new(families.clone(), settings.timing.sync_period, source.unknown_node());
        let traffic = TrafficMetrics::default();
        let answers = EndpointAnswers::default();
        let gates = settings.effective.feature_gates();
        let api_server = matches!(source, Source::Api(_)).then(|| problems.watches.clone());
        let (advice, counted) = ((*advice).clone(), packets.clone());
        let metrics = Metrics::new(families, SystemTime::now(), &health, gates, api_server, Path::new("/"))
            .with_advice(move || advice.all())
            .with_answers(answers.clone())
            .with_log(log_level.limit().clone())
            .with_packets(families.clone(), move || counted.counts());
        let metrics = Arc::new(metrics);
        let pages = MetricsPages::new(Arc::clone(&metrics), traffic.clone(), &settings.effective)
            .context("the configuration cannot be shown")?;
        Ok(Self { health, metrics, traffic, answers, pages: Arc::new(pages) })
    }
}

/// What follows from the syncs.
pub(super) struct Reported {
    pub(super) health_ports: HealthCheckPorts,
    /// Receives when our rules are in place.
    pub(super) rules_in_place: oneshot::Receiver<()>,
    /// Whether the first sync has ended: then changes to nf_tables and VIPs are subscribed to.
    pub(super) first_sync_ended: watch::Receiver<bool>,
    /// The nodes to ask whether they unpack what is sent to their pods.
    pub(super) peers_to_ask: watch::Receiver<PeersToAsk>,
    /// Whether anything depends on the addresses of the other nodes.
    pub(super) nodes_needed: NodesNeeded,
}

/// The observers of the writer thread, in the order in which they are called: health, metrics, Events. The other end of
/// each is in [`Shown`] or [`Reported`].
pub(super) fn observers(
    Daemon { settings, outbox, .. }: &Daemon<'_>,
    families: &BTreeSet<Family>,
    Shown { health, metrics, .. }: &Shown,
) -> (Vec<Box<dyn Observer>>, Reported) {
    let (health_ports, port_answers) = HealthCheckPorts::new(
        &settings.services.node_name,
        families.clone(),
        health.clone(),
        Outbox::clone(outbox),
    );
    let (in_place, rules_in_place) = RulesInPlace::new();
    let (first_sync, first_sync_ended) = FirstSyncEnd::new();
    let (peers, peers_to_ask) = PeersObserver::new();
    let nodes_needed = NodesNeeded::default();
    let mut observers: Vec<Box<dyn Observer>> = vec![
        Box::new(health.clone()),
        port_answers,
        Box::new(in_place),
        Box::new(first_sync),
        Box::new(peers),
        Box::new(nodes_needed.clone()),
    ];
    observers.extend(metrics.observers());
    observers.push(Box::new(SyncEvents(Outbox::clone(outbox))));
    let reported = Reported { health_ports, rules_in_place, first_sync_ended, peers_to_ask, nodes_needed };
    (observers, reported)
}
