//! The wanted answers, and the addresses that give them.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    num::NonZero,
};

use ipvs::Family;
use netfilter::{Element, HealthCheckPort};
use reconciler::{Observer, SyncEvent};
use service::{ObjectName, State};
use tokio::sync::watch;

/// All answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct WantedAnswers {
    checks: Vec<ServiceCheck>,
    addresses: Vec<IpAddr>,
}

/// The answer for a Service in one of its families.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ServiceCheck {
    service: ObjectName,
    family: Family,
    port: NonZero<u16>,
    ready: usize,
}

impl WantedAnswers {
    /// How many endpoints are ready, by Service and address.
    pub(super) fn answers(&self) -> impl Iterator<Item = ((ObjectName, SocketAddr), usize)> {
        self.checks.iter().flat_map(|check| {
            let of_family = self.addresses.iter().filter(|ip| Family::from(**ip) == check.family);
            of_family.map(|ip| ((check.service.clone(), SocketAddr::new(*ip, check.port.get())), check.ready))
        })
    }
}

/// Observes the writer thread, and passes on the wanted answers when they change.
pub(super) struct AnswerObserver {
    families: BTreeSet<Family>,
    wanted: watch::Sender<WantedAnswers>,
}

impl AnswerObserver {
    pub(super) fn new(families: BTreeSet<Family>, wanted: watch::Sender<WantedAnswers>) -> Self {
        Self { families, wanted }
    }

    /// Reads the wanted answers. The cost depends on the Services with health checks, which are few.
    fn read(&self, state: &State) -> WantedAnswers {
        let checks = state.reports().health_checks().flat_map(|(service, check)| {
            let ready = |family| match family {
                Family::V4 => check.ready_v4,
                Family::V6 => check.ready_v6,
            };
            let of = move |family| ServiceCheck {
                service: service.clone(),
                family,
                port: check.port,
                ready: ready(family),
            };
            self.families
                .iter()
                .copied()
                .filter(move |family| is_in(*family, state, service, check.port))
                .map(of)
        });
        // There one socket serves all of the node's addresses: a new address has it at once.
        let is_everywhere = |family: &&Family| state.options().serves_node_ports_everywhere(**family);
        let unspecified = self.families.iter().filter(is_everywhere).map(|family| match family {
            Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
            Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
        });
        let named = state.node_port_addresses().iter().copied();
        let named = named.filter(|ip| !state.options().serves_node_ports_everywhere(Family::from(*ip)));
        WantedAnswers { checks: checks.collect(), addresses: unspecified.chain(named).collect() }
    }
}

/// Whether a Service is served in this family, by a ClusterIP: then the check's port is open at its VIPs.
fn is_in(family: Family, state: &State, service: &ObjectName, port: NonZero<u16>) -> bool {
    let port = Element::HealthCheckPort(HealthCheckPort { family, port: port.get() });
    state.desired(service).is_some_and(|desired| desired.shared_elements().binary_search(&port).is_ok())
}

impl Observer for AnswerObserver {
    /// An incomplete sync is ignored, and so are Services of which something is left: clients must not come before they
    /// can be served.
    fn on_sync(&mut self, sync: &SyncEvent<'_>) {
        if !sync.complete {
            return;
        }
        let mut now = self.read(sync.state);
        let is_left = |check: &ServiceCheck| sync.stats.left.contains(&check.service);
        self.wanted.send_if_modified(|before| {
            if !sync.stats.left.is_empty() {
                now.checks.retain(|check| !is_left(check));
                let taken: BTreeSet<_> = now.checks.iter().map(|check| (check.family, check.port)).collect();
                let is_free = |check: &&ServiceCheck| !taken.contains(&(check.family, check.port));
                now.checks
                    .extend(before.checks.iter().filter(|check| is_left(check)).filter(is_free).cloned());
            }
            let differs = *before != now;
            *before = now;
            differs
        });
    }
}
