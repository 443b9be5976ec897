//! The second half of a sync: comparing, and making the kernel as desired.

use std::{collections::BTreeSet, mem, time::Instant};

use ipvs::{Protocol, ServiceAddress};
use netfilter::{Operation::InstallTable, conntrack::StaleFlows};
use service::Touched;
use tracing::{Level, debug, debug_span, enabled};
use watcher::{Observed, Operation, Plan, Scope, Whole, departing_real_servers, diff};

use super::{
    PATIENCE, Reconciler,
    apply::apply,
    blocked::Blocked,
    diff_key::{DiffKey, in_doubt},
    outcome::PlanOutcome,
    reading::Snapshot,
    rotation::rotate,
};
use crate::{
    SyncStats, Trigger,
    follow::schedulers::{self, ProbeResult},
};

/// A sync that has ended.
#[derive(Debug, Default)]
pub(crate) struct SyncResult {
    /// Whether all of the kernel was looked at.
    pub(crate) full: bool,
    pub(crate) outcome: PlanOutcome,
    /// UDP flows that conntrack is to forget.
    pub(crate) stale_flows: StaleFlows,
    /// The first operations on keys that are not known to have changed: somebody else changed the kernel. In
    /// words.
    pub(crate) repairs: Vec<String>,
    pub(crate) stats: SyncStats,
    /// Whether something was put off that would succeed now, or the kernel is to be read anew.
    pub(crate) unfinished: bool,
}

/// What a sync is about to do.
struct Planned {
    plan: Plan,
    /// Virtual servers that keep their scheduler for now.
    postponed: BTreeSet<ServiceAddress>,
    /// What came of the attempts at schedulers.
    look: ProbeResult,
}

impl Reconciler {
    /// Compares with a fresh image, and makes the kernel as desired.
    pub(super) fn converge(
        &mut self,
        reading: Snapshot,
        trigger: Trigger,
        touched: &mut Touched,
    ) -> SyncResult {
        let Planned { plan, postponed, look } = self.plan(&reading, touched);
        debug!(?trigger, operations = plan.len(), "plan");
        let compared = reading.compared(touched);
        let Snapshot { image, full, everything, .. } = reading;

        let mut outcome = self.carry_out(image, &plan);
        if look.doubtful {
            self.image = None;
        }
        let repairs = self.unrepaired.settle(&plan, touched, &outcome.failures);
        if full {
            self.unrepaired.adopted();
        }
        // Not where something was put off: it must not be done before what it waits for.
        outcome.extend(self.look_again(&(&in_doubt(&plan, full) - &self.touched.virtual_servers)));
        self.learn_from(&outcome);
        // After a failure the next sync comes by itself, though later.
        let unfinished = self.can_go_on(&postponed, &outcome) || look.doubtful && outcome.failures.is_empty();
        self.postponed = postponed.len();
        self.touched.virtual_servers.extend(postponed);
        self.note_draining(everything, &compared.virtual_servers);
        self.rerouted.extend(mem::take(&mut outcome.rerouted));
        let stale_flows = self.rerouted.stale_flows(self.image.as_ref());
        let stats = SyncStats { repairs: repairs.counts, ..SyncStats::default() };
        SyncResult { full, outcome, stale_flows, repairs: repairs.first, stats, unfinished }
    }

    /// Plans this sync. If a scheduler turns out to be missing, the desired state changes, and the keys that
    /// change are added to `touched`.
    fn plan(&mut self, reading: &Snapshot, touched: &mut Touched) -> Planned {
        let mut plan = self.differences(reading, touched);
        let usual = self.state.options().scheduler;
        let look = self.schedulers.look_for_those_of(&plan, &reading.image, usual, &mut *self.kernel.ipvs);
        if look.news {
            touched.merge(self.state.apply(self.schedulers.news()));
            plan = self.differences(reading, touched);
        }
        let postponed = schedulers::put_off(&mut plan, &reading.image, schedulers::AT_ONCE);
        rotate(&mut plan, &self.state.options().node_name);
        Planned { plan, postponed, look }
    }

    fn differences(&self, reading: &Snapshot, touched: &Touched) -> Plan {
        let compared = reading.compared(touched);
        let scope =
            if reading.everything { Scope::All } else { Scope::Touched(&compared, reading.drift.whole) };
        debug_span!("compare").in_scope(|| diff(&self.state, &reading.image, scope, &self.ours))
    }

    /// Carries out a plan. The keys of operations that failed are touched, so that the next sync compares
    /// them again.
    fn carry_out(&mut self, mut image: Observed, plan: &Plan) -> PlanOutcome {
        if enabled!(Level::DEBUG) {
            plan.operations().for_each(|operation| debug!("plan: {operation}"));
        }
        let outcome = apply(plan, &mut self.kernel, &mut image, Blocked::new(self.patience > 0));
        // Without an image the next sync reads everything.
        self.image = (!outcome.doubtful).then_some(image);
        let failed = outcome.failures.iter().filter_map(|(operation, _)| DiffKey::of(operation));
        failed.for_each(|key| key.touch(&mut self.touched));
        outcome
    }

    /// Reads these virtual servers' real servers and compares once more.
    fn look_again(&mut self, at: &BTreeSet<ServiceAddress>) -> PlanOutcome {
        if at.is_empty() {
            return PlanOutcome::default();
        }
        let Some(mut image) = self.image.take() else { return PlanOutcome::default() };
        let _span = debug_span!("look-again", virtual_servers = at.len()).entered();
        for address in at {
            if let Err(error) = image.refresh_real_servers(&mut self.kernel, *address) {
                return PlanOutcome::unread(&error);
            }
        }
        let touched = Touched { virtual_servers: at.clone(), ..Touched::default() };
        let mut plan = diff(&self.state, &image, Scope::Touched(&touched, Whole::NONE), &self.ours);
        // The changes of schedulers that belong to this sync have been made, or refused.
        schedulers::put_off(&mut plan, &image, 0);
        self.carry_out(image, &plan)
    }

    /// Remembers which schedulers the kernel refused, and for how much longer new tables wait for their
    /// rules.
    fn learn_from(&mut self, outcome: &PlanOutcome) {
        if self.schedulers.refused(&outcome.lacking, self.state.options().scheduler) {
            // What failed is tried again, with the usual scheduler then.
            self.touched.merge(self.state.apply(self.schedulers.news()));
        }
        let lacks_rules = |failed: &Operation| matches!(failed, Operation::Netfilter(InstallTable(_)));
        let waits = outcome.failures.iter().any(|(failed, _)| lacks_rules(failed));
        self.patience = if waits { self.patience.saturating_sub(1) } else { PATIENCE };
    }

    /// Whether a sync that follows soon could change the schedulers of those that were postponed. Where one
    /// change was refused the others would be too, and without an image everything is in doubt.
    fn can_go_on(&self, postponed: &BTreeSet<ServiceAddress>, outcome: &PlanOutcome) -> bool {
        let Some(image) = &self.image else { return false };
        let refused = |operation: &Operation| match operation {
            Operation::Ipvs(command) => schedulers::change(command, image).is_some(),
            Operation::Netfilter(_) | Operation::DummyInterface(_) => false,
        };
        !postponed.is_empty() && !outcome.failures.iter().any(|(operation, _)| refused(operation))
    }

    /// Remembers which real servers drain: of all virtual servers if everything was compared, else of those
    /// that were.
    fn note_draining(&mut self, everything: bool, compared: &BTreeSet<ServiceAddress>) {
        let now = Instant::now();
        let Some(image) = &self.image else { return self.draining.unseen(now) };
        let every = || image.virtual_servers.keys().copied().chain(self.draining.virtual_servers());
        let seen: Vec<_> = if everything { every().collect() } else { compared.iter().copied().collect() };
        for of in seen {
            // One that still has its weight could not be given weight 0, which is a failure.
            let draining = departing_real_servers(&self.state, image, &of)
                .filter(|server| of.protocol == Protocol::Tcp && server.config.weight == 0);
            self.draining.seen(of, draining.map(|server| server.config.address), now);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        net::{IpAddr, Ipv4Addr},
        time::Duration,
    };

    use dummy_interface::Changed;
    use ipvs::{Family, RealServerAddress};
    use service::{
        Change, Endpoint, EndpointPort, EndpointSlice, ObjectName, Options, Service, ServiceKind,
        ServicePort, State,
    };
    use testkit::FakeKernel;
    use watcher::{Kernel, Ownership};

    use super::*;
    use crate::follow::{draining::Draining, lost_addresses::LostAddresses};

    const VIP: ServiceAddress =
        ServiceAddress { protocol: Protocol::Tcp, ip: IpAddr::V4(Ipv4Addr::new(10, 96, 0, 10)), port: 80 };

    fn real_server(pod: u8) -> RealServerAddress {
        RealServerAddress { ip: [10, 244, 0, pod].into(), port: 8080 }
    }

    fn reconciler(fake: &FakeKernel, draining: Draining) -> Reconciler {
        let (ipvs, netfilter, dummy_interface) = fake.seams();
        let ours = Ownership { families: BTreeSet::from(Family::BOTH), exclude: Vec::new() };
        Reconciler::new(
            State::new(Options::new("node")),
            Kernel { ipvs, netfilter, dummy_interface },
            ours,
            draining,
        )
    }

    fn web() -> Service {
        Service {
            cluster_ips: vec![VIP.ip],
            ports: vec![ServicePort {
                name: "".into(),
                protocol: VIP.protocol,
                port: VIP.port,
                node_port: None,
            }],
            ..Service::new(ObjectName::new("default", "web"))
        }
    }

    fn slice(pods: &[u8]) -> EndpointSlice {
        let endpoint = |pod: &u8| Endpoint::new(real_server(*pod).ip);
        EndpointSlice {
            ports: vec![EndpointPort { name: "".into(), protocol: Protocol::Tcp, port: 8080 }],
            endpoints: pods.iter().map(endpoint).collect(),
            ..EndpointSlice::new(
                ObjectName::new("default", "web-1"),
                ObjectName::new("default", "web"),
                Family::V4,
            )
        }
    }

    #[test]
    fn a_node_port_stays_at_an_address_that_comes_again_and_goes_in_time_from_one_that_does_not() {
        let fake = FakeKernel::new();
        let mut reconciler = reconciler(&fake, Draining::new(None));
        let mut node_port = web();
        node_port.ports.iter_mut().for_each(|port| port.node_port = 30080.try_into().ok());
        reconciler.take(Change::ReplaceServices(vec![Service { kind: ServiceKind::NodePort, ..node_port }]));
        reconciler.take(Change::ReplaceSlices(vec![slice(&[1])]));
        let address: IpAddr = [192, 0, 2, 1].into();
        fake.state().dummy_interface.node_addresses.insert(address);
        reconciler.sync(Trigger::Start);
        fake.heal();

        let change = Changed { node_addresses: true, ..Changed::default() };
        let hear = |reconciler: &mut Reconciler| {
            reconciler.hear(&change);
            reconciler.sync(Trigger::NodeAddresses);
            assert!(reconciler.compare().unwrap().is_empty(), "and nobody wants anything else");
            fake.writes()
        };
        fake.state().dummy_interface.node_addresses.clear();
        assert_eq!(hear(&mut reconciler), "");
        fake.state().dummy_interface.node_addresses.insert(address);
        assert_eq!(hear(&mut reconciler), "");
        assert_eq!(reconciler.next_look(), None);

        // The time is over as soon as it has begun.
        reconciler.lost_addresses = LostAddresses::new(Duration::ZERO);
        assert_eq!(hear(&mut reconciler), "");
        fake.state().dummy_interface.node_addresses.clear();
        assert_eq!(hear(&mut reconciler), "");
        let (due, trigger) = reconciler.next_look().unwrap();
        assert!(due <= Instant::now());
        reconciler.sync(trigger);
        assert_eq!(
            fake.writes(),
            "delete virtual server TCP 192.0.2.1:30080\n\
             delete element external TCP 192.0.2.1:30080\n"
        );
        assert_eq!(reconciler.next_look(), None);
    }

    #[test]
    fn what_only_the_rare_comparison_of_everything_finds_to_drain_is_looked_at_until_it_is_gone() {
        let fake = FakeKernel::new();
        let mut reconciler = reconciler(&fake, Draining::new(Some(Duration::ZERO)));
        reconciler.take(Change::ReplaceServices(vec![web()]));
        reconciler.take(Change::ReplaceSlices(vec![slice(&[1, 2])]));
        assert!(reconciler.sync(Trigger::Start).outcome.failures.is_empty());
        let id = VIP.into();
        let real_servers = |count: u32| {
            let mut state = fake.state();
            let (_, servers) = state.virtual_servers.get_mut(&id).unwrap();
            for server in servers.values_mut() {
                server.active_connections = count;
            }
            servers.len()
        };
        assert_eq!(real_servers(3), 2);

        // A fault in what is kept: nobody knows that a real server is not wanted any more.
        reconciler.take(Change::ApplySlice(slice(&[1])));
        reconciler.touched = Touched::default();
        let mut next = reconciler.sample;
        while !next.next().begins_anew() {
            reconciler.sample = next;
        }
        assert!(!next.contains(&VIP), "it is found although it is not its turn");
        reconciler.sync(Trigger::Period);
        assert_eq!(
            fake.writes().lines().last(),
            Some("edit real server TCP 10.96.0.10:80 -> 10.244.0.2:8080 weight 0")
        );
        assert_eq!(reconciler.draining().virtual_servers().collect::<Vec<_>>(), [VIP]);
        // The timeout is over at once, so the next look at what drains removes it.
        reconciler.sync(Trigger::Period);
        assert_eq!(real_servers(3), 1);
        assert_eq!(reconciler.draining().count(), 0);
    }
}
