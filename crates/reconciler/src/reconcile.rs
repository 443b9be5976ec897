//! One sync: read what must be read, compare, carry out.

use std::{borrow::Cow, collections::BTreeSet, net::IpAddr, time::Instant};

use dummy_interface::Changed;
use ipvs::{Protocol, ServiceAddress};
use netfilter::{Change::InstallTable, conntrack::StaleFlow};
use service::{Change, Explanation, ObjectName, State, Touched};
use tracing::{Level, debug, debug_span, enabled};
use watcher::{
    Drift, Kernel, Observed, Operation, Ownership, Parts, Plan, ReadError, Scope, VerifyError,
    departing_real_servers, diff, one_line,
};

use crate::{
    Tally, Trigger,
    apply::apply,
    closed::Closed,
    draining::Draining,
    key::{Key, in_doubt},
    outcome::Outcome,
    repairs::Unrepaired,
    rotation::rotate,
    sample::Sample,
    schedulers,
};

/// The desired state, the kernel, and what lies between them.
pub(crate) struct Reconciler {
    state: State,
    kernel: Kernel,
    ours: Ownership,
    /// The kernel as last seen; `None` before the first read and after a doubt.
    image: Option<Observed>,
    /// Which virtual servers the next look at everything reads to the last detail.
    sample: Sample,
    /// What changed since the last sync, and what that one left undone.
    touched: Touched,
    /// Where the image may be wrong since the last sync.
    reread: Reread,
    draining: Draining,
    schedulers: schedulers::Known,
    /// How many virtual servers keep their scheduler for now.
    postponed: usize,
    /// What something else has changed, and is not yet as it should be again.
    unrepaired: Unrepaired,
    /// In how many more syncs a new table waits until all is there that serves what it takes from others.
    patience: u32,
}

/// What so many syncs could not do will not be done by waiting, and must not keep all the rest from its rules.
const PATIENCE: u32 = 2;

/// What the kernel has told of: it is to be read again.
#[derive(Clone, Copy, Debug, Default)]
struct Reread {
    /// These are compared as a whole then.
    parts: Parts,
    /// The node's own addresses.
    node_addresses: bool,
}

/// The kernel as read for a sync.
struct Reading {
    image: Observed,
    depth: Depth,
    /// Where it was not as in the image. That is compared with the desired state, beside what is touched.
    drift: Drift,
}

/// How the kernel was looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Depth {
    /// Everything was read.
    Read,
    /// Everything was compared with the image.
    Verified,
    /// What was asked for was read.
    Part,
}

/// A sync that has ended.
#[derive(Debug, Default)]
pub(crate) struct Synced {
    /// Whether everything was looked at.
    pub(crate) full: bool,
    pub(crate) outcome: Outcome,
    /// UDP flows that conntrack is to forget.
    pub(crate) stale_flows: BTreeSet<StaleFlow>,
    /// The first operations about nothing that is known to have changed: somebody else changed the kernel.
    pub(crate) repairs: Vec<String>,
    pub(crate) tally: Tally,
    /// Something was put off that would succeed now, or the kernel is to be read anew.
    pub(crate) unfinished: bool,
}

impl Reconciler {
    pub(crate) fn new(state: State, kernel: Kernel, ours: Ownership, draining: Draining) -> Self {
        Self {
            state,
            kernel,
            ours,
            image: None,
            sample: Sample::default(),
            touched: Touched::default(),
            reread: Reread::default(),
            draining,
            schedulers: schedulers::Known::default(),
            postponed: 0,
            unrepaired: Unrepaired::default(),
            patience: PATIENCE,
        }
    }

    pub(crate) fn state(&self) -> &State {
        &self.state
    }

    pub(crate) fn ours(&self) -> &Ownership {
        &self.ours
    }

    pub(crate) fn draining(&self) -> &Draining {
        &self.draining
    }

    /// How many virtual servers wait for their new scheduler.
    pub(crate) fn scheduler_changes(&self) -> usize {
        self.postponed
    }

    /// Whether something is waiting for the next sync; at the first, all of it.
    pub(crate) fn is_behind(&self) -> bool {
        self.state.synced() && !self.unrepaired.has_adopted() || !self.touched.is_empty()
    }

    /// Takes in news. Whether something may have to be different now.
    pub(crate) fn take(&mut self, change: Change) -> bool {
        let touched = self.state.apply(change);
        let any = !touched.is_empty();
        // Before the lists are complete there is no sync, and the first one compares everything.
        if self.state.synced() {
            self.touched.merge(touched);
        }
        any
    }

    /// Takes in what the kernel tells of links and addresses. A reason to sync is what the image does not have
    /// so: the kernel tells of our own changes too. Without an image everything is about to be read anyway.
    pub(crate) fn hear(&mut self, changed: &Changed) -> Option<Trigger> {
        let image = self.image.as_ref()?;
        let differs = |(vip, bound): (&IpAddr, &bool)| image.links.bound.contains(vip) != *bound;
        self.reread.node_addresses |= changed.node_addresses;
        if changed.everything || changed.vips.iter().any(differs) {
            self.reread.parts.links = true;
            Some(Trigger::KernelEvent)
        } else {
            changed.node_addresses.then_some(Trigger::NodeAddresses)
        }
    }

    /// Takes in that somebody else has changed our tables.
    pub(crate) fn hear_of_tables(&mut self) -> Option<Trigger> {
        self.image.as_ref()?;
        self.reread.parts.tables = true;
        Some(Trigger::TablesChanged)
    }

    /// Reads everything and says what differs, and changes nothing. A sync may do it in several steps: a few schedulers
    /// at a time, a real server that drains first.
    pub(crate) fn compare(&mut self) -> Result<Plan, ReadError> {
        let mut observed = Observed::read(&mut self.kernel)?;
        // Of these the kernel tells as well, and a sync follows.
        let touched = self.hear_node_addresses(&observed);
        self.touched.merge(touched);
        for (of, server) in self.draining.expired(Instant::now()) {
            observed.expire(&of, &server);
        }
        Ok(diff(&self.state, &observed, Scope::All, &self.ours))
    }

    /// Why a Service is served as it is: a family that is switched off here is not.
    pub(crate) fn explain(&self, service: &ObjectName) -> Explanation {
        self.ours.explain(&self.state, service)
    }

    /// Reads what must be read, compares, and carries out the plan.
    pub(crate) fn sync(&mut self, trigger: Trigger) -> Synced {
        let begin = Instant::now();
        let mut touched = std::mem::take(&mut self.touched);
        let reread = std::mem::take(&mut self.reread);
        if trigger == Trigger::Forced {
            // Whoever asks may have loaded a module.
            self.schedulers = schedulers::Known::default();
            touched.merge(self.state.apply(self.schedulers.news()));
        }
        // Whatever goes wrong from here on, without an image the next sync reads everything.
        let image = self.image.take().filter(|_| !trigger.reads_everything());
        let looked_at: Vec<_> = match &image {
            Some(_) if trigger != Trigger::Period => self.draining.due(begin).collect(),
            _ => self.draining.virtual_servers().collect(),
        };
        touched.virtual_servers.extend(looked_at);
        let read = debug_span!("read").in_scope(|| self.read(image, trigger, reread, &mut touched));
        let mut synced = match read {
            Ok(mut reading) => {
                for (of, server) in self.draining.expired(begin) {
                    reading.image.expire(&of, &server);
                }
                self.converge(reading, trigger, &touched)
            }
            Err(error) => {
                self.draining.unseen(Instant::now());
                Synced { outcome: Outcome::unread(&error), ..Synced::default() }
            }
        };
        let cut_off = synced.outcome.cut_off.iter().map(|(_, connections)| connections).sum();
        synced.tally.failures = std::mem::take(&mut synced.outcome.failure_counts);
        synced.tally.drains = self.draining.tally(cut_off);
        // What could not be compared is still to be.
        if synced.outcome.unread.is_some() {
            self.touched.merge(touched);
        }
        synced
    }

    /// Reads everything, compares everything with the image, or brings the image up to date where the kernel has
    /// told of something. The node's addresses are news as well, and what they touch is touched.
    fn read(
        &mut self,
        image: Option<Observed>,
        trigger: Trigger,
        reread: Reread,
        touched: &mut Touched,
    ) -> Result<Reading, ReadError> {
        let Some(mut image) = image else { return self.read_everything(trigger, touched) };
        let (depth, drift) = if trigger == Trigger::Period {
            let sample = self.sample.next();
            match image.verify(&mut self.kernel, |of| sample.contains(of)) {
                Ok(drift) => (Depth::Verified, drift),
                Err(VerifyError::Unread(error)) => return Err(error),
                Err(error) => {
                    debug!("{}: everything is read", one_line(&error));
                    return self.read_everything(trigger, touched);
                }
            }
        } else {
            if reread.parts.tables {
                image.refresh_tables(&mut self.kernel)?;
            }
            if reread.parts.links {
                image.refresh_links(&mut self.kernel)?;
            } else if reread.node_addresses {
                image.refresh_node_addresses(&mut self.kernel)?;
            }
            (Depth::Part, Drift { parts: reread.parts, ..Drift::default() })
        };
        if depth == Depth::Verified || reread.parts.links || reread.node_addresses {
            // Mostly a lease was renewed, and nothing changed at all.
            touched.merge(self.hear_node_addresses(&image));
        }
        self.count_connections(&mut image, touched.virtual_servers.iter().copied())?;
        Ok(Reading { image, depth, drift })
    }

    fn read_everything(&mut self, trigger: Trigger, touched: &mut Touched) -> Result<Reading, ReadError> {
        let adopted = if trigger == Trigger::Start { self.adopt()? } else { None };
        let in_short = adopted.is_some();
        let mut image = adopted.map_or_else(|| Observed::read(&mut self.kernel), Ok)?;
        // Only with these is it known what NodePorts want, and so which of their real servers leave.
        touched.merge(self.hear_node_addresses(&image));
        if in_short {
            let all: Vec<_> = image.virtual_servers.keys().copied().collect();
            self.count_connections(&mut image, all.iter().copied())?;
            self.read_thresholds(&mut image, all)?;
        }
        Ok(Reading { image, depth: Depth::Read, drift: Drift::default() })
    }

    /// Reads the kernel for the first time, in short if that is possible.
    fn adopt(&mut self) -> Result<Option<Observed>, ReadError> {
        match Observed::adopt(&mut self.kernel) {
            Ok(image) => Ok(Some(image)),
            Err(VerifyError::Unread(error)) => Err(error),
            Err(error) => {
                debug!("{}: everything is read by netlink", one_line(&error));
                Ok(None)
            }
        }
    }

    /// Reads these virtual servers' real servers again, where one leaves: whether it has connections, only the kernel
    /// knows.
    fn count_connections(
        &mut self,
        image: &mut Observed,
        of: impl IntoIterator<Item = ServiceAddress>,
    ) -> Result<(), ReadError> {
        for address in of {
            if departing_real_servers(&self.state, image, &address).next().is_some() {
                image.refresh_real_servers(&mut self.kernel, address)?;
            }
        }
        Ok(())
    }

    /// Reads these virtual servers' real servers again, where thresholds are wanted: in short, none are seen.
    fn read_thresholds(
        &mut self,
        image: &mut Observed,
        of: impl IntoIterator<Item = ServiceAddress>,
    ) -> Result<(), ReadError> {
        for address in of {
            let wanted = self.state.virtual_server(&address);
            if wanted.is_some_and(|it| it.real_servers.iter().any(|real| real.upper_threshold != 0)) {
                image.refresh_real_servers(&mut self.kernel, address)?;
            }
        }
        Ok(())
    }

    /// Tells the desired state which addresses the node has. The same as before touch nothing.
    fn hear_node_addresses(&mut self, image: &Observed) -> Touched {
        self.state.apply(Change::NodeAddresses(image.links.node_addresses.clone()))
    }

    /// Compares with a fresh image, and makes the kernel as desired.
    fn converge(&mut self, reading: Reading, trigger: Trigger, touched: &Touched) -> Synced {
        let Reading { image, depth, drift } = reading;
        let (mut touched, mut compared) = (Cow::Borrowed(touched), Cow::Borrowed(touched));
        if !drift.virtual_servers.is_empty() {
            compared.to_mut().virtual_servers.extend(drift.virtual_servers);
        }
        // Nothing but a fault in what is kept here could be found by a comparison of everything that was verified; it
        // would stay for ever otherwise.
        let everything = depth == Depth::Read || depth == Depth::Verified && self.sample.begins_anew();
        let parts = drift.parts;
        let differences = |state: &State, compared: &Touched| {
            let scope = if everything { Scope::All } else { Scope::Touched(compared, parts) };
            debug_span!("compare").in_scope(|| diff(state, &image, scope, &self.ours))
        };
        let full = depth != Depth::Part;
        let mut plan = differences(&self.state, &compared);
        let usual = self.state.options().scheduler;
        let look = self.schedulers.look_for_those_of(&plan, &image, usual, &mut *self.kernel.ipvs);
        if look.news {
            let concerned = self.state.apply(self.schedulers.news());
            touched.to_mut().merge(concerned.clone());
            compared.to_mut().merge(concerned);
            plan = differences(&self.state, &compared);
        }
        let postponed = schedulers::put_off(&mut plan, &image, schedulers::AT_ONCE);
        rotate(&mut plan, &self.state.options().node_name);

        debug!(?trigger, operations = plan.len(), "plan");
        let mut outcome = self.carry_out(image, &plan);
        if look.doubtful {
            outcome.doubtful = true;
            self.image = None;
        }
        let repairs = self.unrepaired.settle(&plan, &touched, &outcome.failures);
        if full {
            self.unrepaired.adopted();
        }
        let failed = outcome.failures.iter().filter_map(|(operation, _)| Key::of(operation));
        failed.for_each(|key| key.touch(&mut self.touched));
        // Where something was put off, it must not be made up for without what it waits for.
        let once_more = self.look_again(&(&in_doubt(&plan, full) - &self.touched.virtual_servers));
        let failed = once_more.failures.iter().filter_map(|(operation, _)| Key::of(operation));
        failed.for_each(|key| key.touch(&mut self.touched));
        outcome.extend(once_more);
        if self.schedulers.refused(&outcome.lacking, usual) {
            // What failed is tried again, with the usual one then.
            self.touched.merge(self.state.apply(self.schedulers.news()));
        }
        let lacks_rules = |failed: &Operation| matches!(failed, Operation::Netfilter(InstallTable(_)));
        if outcome.failures.iter().any(|(failed, _)| lacks_rules(failed)) {
            self.patience = self.patience.saturating_sub(1);
        }
        // Where one is refused the others would be too, and without an image everything is in doubt.
        let unfinished = !postponed.is_empty()
            && self.image.as_ref().is_some_and(|image| {
                let refused = |operation: &Operation| match operation {
                    Operation::Ipvs(command) => schedulers::change(command, image).is_some(),
                    _ => false,
                };
                !outcome.failures.iter().any(|(operation, _)| refused(operation))
            });
        // With failures the next sync comes later, by itself.
        let unfinished = unfinished || look.doubtful && outcome.failures.is_empty();
        self.postponed = postponed.len();
        self.touched.virtual_servers.extend(postponed);
        self.note_draining(everything, &compared.virtual_servers);
        let stale_flows = std::mem::take(&mut outcome.stale_flows).finish(self.image.as_ref());
        let tally = Tally { repairs: repairs.counts, ..Tally::default() };
        Synced { full, outcome, stale_flows, repairs: repairs.first, tally, unfinished }
    }

    fn carry_out(&mut self, mut image: Observed, plan: &Plan) -> Outcome {
        if enabled!(Level::DEBUG) {
            plan.operations().for_each(|operation| debug!("plan: {operation}"));
        }
        let outcome = apply(plan, &mut self.kernel, &mut image, Closed::new(self.patience > 0));
        // Without an image the next sync reads everything.
        self.image = (!outcome.doubtful).then_some(image);
        outcome
    }

    /// Reads these virtual servers' real servers and compares once more.
    fn look_again(&mut self, at: &BTreeSet<ServiceAddress>) -> Outcome {
        if at.is_empty() {
            return Outcome::default();
        }
        let Some(mut image) = self.image.take() else { return Outcome::default() };
        let _span = debug_span!("look-again", virtual_servers = at.len()).entered();
        for address in at {
            if let Err(error) = image.refresh_real_servers(&mut self.kernel, *address) {
                return Outcome::unread(&error);
            }
        }
        let touched = Touched { virtual_servers: at.clone(), ..Touched::default() };
        let mut plan = diff(&self.state, &image, Scope::Touched(&touched, Parts::NONE), &self.ours);
        // Those of this sync have been made, or refused.
        schedulers::put_off(&mut plan, &image, 0);
        self.carry_out(image, &plan)
    }

    /// Remembers which real servers drain: of all virtual servers if everything was compared, else of those that
    /// were.
    fn note_draining(&mut self, everything: bool, compared: &BTreeSet<ServiceAddress>) {
        let now = Instant::now();
        let Some(image) = &self.image else { return self.draining.unseen(now) };
        let every = || image.virtual_servers.keys().copied().chain(self.draining.virtual_servers());
        let seen: Vec<_> = if everything { every().collect() } else { compared.iter().copied().collect() };
        for of in seen {
            // One that has its weight yet could not be given weight 0, which is a failure.
            let draining = departing_real_servers(&self.state, image, &of)
                .filter(|server| of.protocol == Protocol::Tcp && server.config.weight == 0);
            self.draining.seen(of, draining.map(|server| server.config.address), now);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{net::Ipv4Addr, time::Duration};

    use ipvs::{Family, RealServerAddress};
    use service::{Endpoint, EndpointPort, EndpointSlice, Options, Service, ServicePort};
    use testkit::FakeKernel;

    use super::*;

    const VIP: ServiceAddress =
        ServiceAddress { protocol: Protocol::Tcp, ip: IpAddr::V4(Ipv4Addr::new(10, 96, 0, 10)), port: 80 };

    fn real_server(pod: u8) -> RealServerAddress {
        RealServerAddress { ip: [10, 244, 0, pod].into(), port: 8080 }
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
        let endpoint = |pod: &u8| Endpoint {
            address: real_server(*pod).ip,
            ready: true,
            serving: true,
            terminating: false,
            node: None,
            zone: None,
            zone_hints: Box::default(),
            node_hints: Box::default(),
        };
        EndpointSlice {
            name: ObjectName::new("default", "web-1"),
            service: ObjectName::new("default", "web"),
            family: Family::V4,
            ports: vec![EndpointPort { name: "".into(), protocol: Protocol::Tcp, port: 8080 }],
            endpoints: pods.iter().map(endpoint).collect(),
            weight: None,
            triggered_at: None,
            problems: Vec::new(),
        }
    }

    #[test]
    fn what_only_the_rare_comparison_of_everything_finds_to_drain_is_looked_at_until_it_is_gone() {
        let fake = FakeKernel::new();
        let (ipvs, netfilter, links) = fake.seams();
        let ours = Ownership { families: BTreeSet::from(Family::BOTH), exclude: Vec::new() };
        let state = State::new(Options::new("node"));
        let draining = Draining::new(Some(Duration::ZERO));
        let mut reconciler = Reconciler::new(state, Kernel { ipvs, netfilter, links }, ours, draining);
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
