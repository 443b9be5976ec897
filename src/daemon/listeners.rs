//! Who hears of each sync.

use std::{collections::BTreeSet, sync::Arc, time::SystemTime};

use anyhow::Context;
use ipvs::Family;
use reconciler::Observer;
use tokio::sync::oneshot;

use super::first_write::FirstWrite;
use crate::{
    config::Settings,
    events::{Outbox, Repairs},
    health::Health,
    health_ports::HealthPorts,
    leftovers::FirstSync,
    metrics::{Metrics, MetricsPages, Tidying},
};

/// What is made of what the writer thread tells.
pub(super) struct Listeners {
    /// For the writer thread.
    pub(super) observers: Vec<Box<dyn Observer>>,
    pub(super) health_ports: HealthPorts,
    /// For the conntrack thread.
    pub(super) tidying: Tidying,
    /// Is told when everything is in place.
    pub(super) first_sync: oneshot::Receiver<()>,
    /// For who is told of changes to nf_tables.
    pub(super) first_write: oneshot::Receiver<()>,
}

impl Listeners {
    /// With the pages of the metrics.
    pub(super) fn new(
        settings: &Settings,
        families: &BTreeSet<Family>,
        health: &Health,
        outbox: Option<&Outbox>,
    ) -> anyhow::Result<(Self, MetricsPages)> {
        let (health_ports, ports) = HealthPorts::new(
            &settings.node_name,
            families.clone(),
            &settings.node_port_addresses,
            health.clone(),
            outbox.cloned(),
        );
        let gates = settings.effective.feature_gates();
        let metrics = Arc::new(Metrics::new(families, SystemTime::now(), health.answers(), gates));
        let (first, first_sync) = FirstSync::new();
        let (write, first_write) = FirstWrite::new();
        let mut observers =
            vec![health.observer(), ports, metrics.observer(), Box::new(first), Box::new(write)];
        if let Some(outbox) = outbox {
            observers.push(Box::new(Repairs(outbox.clone())));
        }
        let tidying = metrics.tidying();
        let listeners = Self { observers, health_ports, tidying, first_sync, first_write };
        let pages = MetricsPages::new(metrics, &settings.effective);
        Ok((listeners, pages.context("the configuration cannot be shown")?))
    }
}
