//! The writer thread: the only one that changes the kernel.

use std::{
    collections::BTreeSet,
    io, iter,
    net::IpAddr,
    sync::mpsc::{Receiver, RecvTimeoutError, Sender},
    thread::{self, JoinHandle},
    time::Instant,
};

use dummy_interface::Changed;
use ipvs::{Command, Id, ServiceAddress, VirtualServer};
use service::{Conflict, State, Touched};
use tracing::debug;
use watcher::{Kernel, Observed, Operation, Ownership, Plan, ReadError, Scope, departing_real_servers, diff};

use crate::{
    Handle, LastSync, Periods, Report, Status, Trigger,
    apply::{Outcome, apply},
    handle::Input,
    journal::Journal,
    schedule::{Ended, Read, Schedule},
};

/// How many inputs are taken in before the schedule is looked at again.
const AT_ONCE: usize = 1_000;

/// Starts the writer thread. It ends when told to, or when every handle is gone; the kernel's state
/// then stays as it is, so that traffic goes on.
pub fn start(
    state: State,
    kernel: Kernel,
    ours: Ownership,
    periods: Periods,
) -> io::Result<(Handle, JoinHandle<()>)> {
    let (handle, inputs) = Handle::new();
    let writer = Writer {
        state,
        kernel,
        ours,
        observed: None,
        touched: Touched::default(),
        draining: BTreeSet::new(),
        schedule: Schedule::new(periods),
        waiting: Vec::new(),
        last: None,
        last_full: None,
        journal: Journal::default(),
    };
    let thread = thread::Builder::new().name("writer".into()).spawn(move || writer.run(&inputs))?;
    Ok((handle, thread))
}

struct Writer {
    state: State,
    kernel: Kernel,
    ours: Ownership,
    /// The kernel as last seen; `None` before the first read and after a doubt.
    observed: Option<Observed>,
    /// What changed since the last sync.
    touched: Touched,
    /// Virtual servers that have draining real servers.
    draining: BTreeSet<ServiceAddress>,
    schedule: Schedule,
    /// Who asked for a forced sync and waits for its report.
    waiting: Vec<Sender<Report>>,
    last: Option<(Report, Instant)>,
    last_full: Option<(Report, Instant)>,
    journal: Journal,
}

impl Writer {
    fn run(mut self, inputs: &Receiver<Input>) {
        loop {
            let now = Instant::now();
            let next = self.schedule.next(now).filter(|_| self.state.synced());
            let received = match next {
                // Not after more inputs: those that never end must not put it off for ever.
                Some((due, trigger)) if due <= now => {
                    self.sync(trigger);
                    continue;
                }
                Some((due, _)) => inputs.recv_timeout(due - now),
                None => inputs.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match received {
                // Whatever else has arrived meanwhile is served by the same sync.
                Ok(first) => {
                    for input in iter::once(first).chain(inputs.try_iter().take(AT_ONCE)) {
                        if matches!(input, Input::Stop) {
                            return;
                        }
                        self.take(input);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn take(&mut self, input: Input) {
        match input {
            Input::Change(change) => {
                let was_synced = self.state.synced();
                self.touched.merge(self.state.apply(change));
                if !was_synced && self.state.synced() {
                    self.schedule.want(Trigger::Start);
                } else if !self.touched.is_empty() {
                    self.schedule.want(Trigger::Change);
                }
            }
            Input::KernelChanged(changed) => {
                if self.contradicts(&changed) {
                    self.schedule.want(Trigger::KernelEvent);
                }
            }
            Input::Resync(answer) if self.state.synced() => {
                self.waiting.push(answer);
                self.schedule.want(Trigger::Forced);
            }
            // Whoever asked may have gone; that is no failure of ours.
            Input::Resync(answer) => drop(answer.send(Report::not_ready())),
            Input::Status(answer) => drop(answer.send(self.status())),
            Input::Stop => {}
        }
    }

    /// Whether the kernel tells of something that the image does not have so: the kernel tells of our
    /// own changes too. Without an image everything is about to be read anyway.
    fn contradicts(&self, changed: &Changed) -> bool {
        self.observed.as_ref().is_some_and(|image| {
            let differs = |(vip, bound): (&IpAddr, &bool)| image.links.bound.contains(vip) != *bound;
            changed.everything || changed.vips.iter().any(differs)
        })
    }

    fn sync(&mut self, trigger: Trigger) {
        let start = Instant::now();
        let mut touched = std::mem::take(&mut self.touched);
        // Whatever goes wrong from here on, without an image the next sync reads everything.
        let image = self.observed.take().filter(|_| !trigger.reads_everything());
        let full = image.is_none();
        if full || trigger == Trigger::Drain {
            touched.virtual_servers.extend(&self.draining);
        }
        let planned = match image {
            None => self.full_plan(),
            Some(image) => self.partial_plan(image, trigger, &touched),
        };
        let (mut outcome, mut repairs) = (Outcome::default(), Vec::new());
        match planned {
            Ok((image, plan)) => {
                repairs = self.repairs(&plan, &touched);
                outcome = self.carry_out(trigger, image, &plan);
                outcome.extend(self.look_again(&in_doubt(&plan, full)));
                self.note_draining(full, &touched.virtual_servers);
            }
            Err(error) => {
                outcome.extend(Outcome::unread(&error));
                self.touched.merge(touched);
            }
        }
        outcome.failures.iter().for_each(|(operation, _)| touch(&mut self.touched, operation));
        self.end(trigger, full, &outcome, repairs, start);
    }

    /// Tells everybody that a sync has ended.
    fn end(&mut self, trigger: Trigger, full: bool, outcome: &Outcome, repairs: Vec<String>, start: Instant) {
        let read = match (&outcome.unread, full) {
            (Some(_), _) => Read::Nothing,
            (None, true) => Read::Everything,
            (None, false) => Read::Part,
        };
        let full = read == Read::Everything;
        let report = Report::new(trigger, full, outcome, repairs, start.elapsed());
        self.journal.record(&report, outcome);
        self.journal.conflicts(self.conflicts().collect());
        let (failed, draining) = (report.failed > 0, !self.draining.is_empty());
        self.schedule.ended(Instant::now(), Ended { read, failed, draining });
        for answer in self.waiting.drain(..) {
            drop(answer.send(report.clone()));
        }
        let ended = (report, Instant::now());
        if full {
            self.last_full = Some(ended.clone());
        }
        self.last = Some(ended);
    }

    /// The operations about nothing that is known to have changed: somebody else changed the kernel. The
    /// first sync finds whatever an earlier daemon left, and repairs nothing.
    fn repairs(&self, plan: &Plan, touched: &Touched) -> Vec<String> {
        let unexpected = plan.operations.iter().filter(|operation| !is_about(operation, touched));
        let count = if self.last_full.is_some() { Report::MOST_REPAIRS } else { 0 };
        unexpected.take(count).map(ToString::to_string).collect()
    }

    /// Reads the whole kernel and compares everything.
    fn full_plan(&mut self) -> Result<(Observed, Plan), ReadError> {
        let image = Observed::read(&mut self.kernel)?;
        let plan = diff(&self.state, &image, Scope::All, &self.ours);
        Ok((image, plan))
    }

    /// Brings the image up to date where the reason for the sync asks for it, and compares that.
    fn partial_plan(
        &mut self,
        mut image: Observed,
        trigger: Trigger,
        touched: &Touched,
    ) -> Result<(Observed, Plan), ReadError> {
        for address in &touched.virtual_servers {
            // Whether a real server that leaves has connections, only the kernel knows.
            if departing_real_servers(&self.state, &image, address) > 0 {
                image.refresh_real_servers(&mut self.kernel, *address)?;
            }
        }
        let scope = if trigger == Trigger::KernelEvent {
            image.refresh_links_and_tables(&mut self.kernel)?;
            Scope::LinksAndTables(&touched.virtual_servers)
        } else {
            Scope::Touched(touched)
        };
        let plan = diff(&self.state, &image, scope, &self.ours);
        Ok((image, plan))
    }

    fn carry_out(&mut self, trigger: Trigger, mut image: Observed, plan: &Plan) -> Outcome {
        if !plan.is_empty() {
            debug!(?trigger, operations = plan.len(), "plan");
            plan.operations.iter().for_each(|operation| debug!("plan: {operation}"));
        }
        let outcome = apply(plan, &mut self.kernel, &mut image);
        // Without an image the next sync reads everything.
        self.observed = (!outcome.doubtful).then_some(image);
        outcome
    }

    /// Reads these virtual servers' real servers and compares once more.
    fn look_again(&mut self, at: &BTreeSet<ServiceAddress>) -> Outcome {
        if at.is_empty() {
            return Outcome::default();
        }
        let Some(mut image) = self.observed.take() else { return Outcome::default() };
        for address in at {
            if let Err(error) = image.refresh_real_servers(&mut self.kernel, *address) {
                return Outcome::unread(&error);
            }
        }
        let touched = Touched { virtual_servers: at.clone(), ..Touched::default() };
        let plan = diff(&self.state, &image, Scope::Touched(&touched), &self.ours);
        self.carry_out(Trigger::Drain, image, &plan)
    }

    /// Remembers which virtual servers have draining real servers: among all of them after a full
    /// sync, else the compared ones anew.
    fn note_draining(&mut self, full: bool, compared: &BTreeSet<ServiceAddress>) {
        let Some(image) = &self.observed else { return };
        let drains = |address: &ServiceAddress| departing_real_servers(&self.state, image, address) > 0;
        if full {
            self.draining = image.virtual_servers.keys().copied().filter(drains).collect();
        } else {
            self.draining.retain(|address| !compared.contains(address));
            self.draining.extend(compared.iter().copied().filter(drains));
        }
    }

    fn status(&self) -> Status {
        let last = self.last.as_ref();
        Status {
            synced: self.state.synced()
                && self.touched.is_empty()
                && last.is_some_and(|(report, _)| report.failed == 0),
            virtual_servers: self.state.virtual_servers().count(),
            real_servers: self.state.virtual_servers().map(|server| server.real_servers.len()).sum(),
            vips: self.state.vips().count(),
            draining: self.observed.as_ref().map_or(0, |image| {
                self.draining.iter().map(|address| departing_real_servers(&self.state, image, address)).sum()
            }),
            problems: self.problems(),
            last_sync: last.map(last_sync),
            last_full_sync: self.last_full.as_ref().map(last_sync),
        }
    }

    fn problems(&self) -> Vec<String> {
        let in_objects = self
            .state
            .problems()
            .flat_map(|(name, problems)| problems.iter().map(move |problem| format!("{name}: {problem}")));
        self.conflicts().chain(in_objects).take(Status::MOST_PROBLEMS).collect()
    }

    fn conflicts(&self) -> impl Iterator<Item = String> {
        self.state.conflicts().map(|Conflict { address, holder, waiting }| {
            let waiting: Vec<_> = waiting.iter().map(ToString::to_string).collect();
            let waiting = waiting.join(", ");
            format!("{address} belongs to {holder}, first by age and name; {waiting} cannot have it")
        })
    }
}

fn last_sync((report, ended): &(Report, Instant)) -> LastSync {
    LastSync { report: report.clone(), age: ended.elapsed() }
}

/// The virtual servers that must be looked at once more after the plan: those with real servers that have
/// just got weight 0 and may turn out to have no connection; and, unless everything was read just before,
/// those that were edited, since an edit creates what is missing, without its real servers.
fn in_doubt(plan: &Plan, all_read: bool) -> BTreeSet<ServiceAddress> {
    let doubt = |operation: &Operation| match operation {
        Operation::Ipvs(Command::EditRealServer(Id::Address(of), server)) if server.weight == 0 => Some(*of),
        Operation::Ipvs(Command::EditVirtualServer(VirtualServer { id: Id::Address(of), .. }))
            if !all_read =>
        {
            Some(*of)
        }
        _ => None,
    };
    plan.operations.iter().filter_map(doubt).collect()
}

/// Whether an operation is about something that is known to have changed.
fn is_about(operation: &Operation, touched: &Touched) -> bool {
    match operation {
        Operation::Ipvs(command) => match command.virtual_server() {
            Id::Address(address) => touched.virtual_servers.contains(&address),
            Id::Mark { .. } => false,
        },
        Operation::Netfilter(
            netfilter::Change::AddElement(element) | netfilter::Change::DeleteElement(element),
        ) => touched.elements.contains(element),
        Operation::Link(dummy_interface::Change::Bind(vip) | dummy_interface::Change::Unbind(vip)) => {
            touched.vips.contains(vip)
        }
        Operation::Netfilter(netfilter::Change::InstallTable(_))
        | Operation::Link(dummy_interface::Change::EnsureDevice) => false,
    }
}

/// Marks what a failed operation was about, so that the next sync compares it again.
fn touch(touched: &mut Touched, operation: &Operation) {
    match operation {
        Operation::Ipvs(command) => {
            if let Id::Address(address) = command.virtual_server() {
                touched.virtual_servers.insert(address);
            }
        }
        Operation::Netfilter(
            netfilter::Change::AddElement(element) | netfilter::Change::DeleteElement(element),
        ) => {
            touched.elements.insert(*element);
        }
        Operation::Link(dummy_interface::Change::Bind(vip) | dummy_interface::Change::Unbind(vip)) => {
            touched.vips.insert(*vip);
        }
        // A device or table that is missing is found missing by a full read.
        Operation::Netfilter(netfilter::Change::InstallTable(_))
        | Operation::Link(dummy_interface::Change::EnsureDevice) => {}
    }
}
