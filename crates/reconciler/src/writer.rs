//! The writer thread: the only one that changes the kernel.

use std::{
    io, iter,
    sync::mpsc::{Receiver, RecvTimeoutError, Sender},
    thread::{self, JoinHandle},
    time::{Instant, SystemTime},
};

use service::{Change, State, one_line};
use tracing::{debug_span, field::Empty};
use watcher::{Kernel, Ownership, Plan};

use crate::{
    Callbacks, ChangeEvent, Drain, Handle, NodeUsage, Observer, StaleFlowCallback, SyncEvent, SyncReport,
    SyncStats, SyncStatus, Timing, Trigger, Unanswered, VirtualServerOwner,
    follow::draining::Draining,
    handle::Input,
    mailbox::{Mail, Mailbox},
    report::{history::History, problems::problems, service_notices::ServiceNotices, sync_log::SyncLog},
    schedule::{ReadScope, Schedule, SyncEnd},
    sync::{Reconciler, SyncResult},
    waiting::Piece,
};

/// How many inputs are taken in before the schedule is looked at again.
const AT_ONCE: usize = 1_000;

/// How many EndpointSlices are measured in one sync at most, should the kernel not be readable for long.
const MOST_TRIGGERS: usize = 10_000;

/// Starts the writer thread. It ends when told to, or when every handle is gone; the kernel's state
/// then stays as it is, so that traffic goes on.
pub fn start(
    state: State,
    kernel: Kernel,
    ours: Ownership,
    timing: Timing,
    callbacks: Callbacks,
) -> io::Result<(Handle, JoinHandle<()>)> {
    let (handle, inputs, mailbox) = Handle::new();
    let writer = Writer {
        mailbox,
        reconciler: Reconciler::new(state, kernel, ours, Draining::new(timing.drain_timeout)),
        schedule: Schedule::new(timing),
        awaiting_report: Vec::new(),
        awaiting_difference: Vec::new(),
        awaiting_node_usage: Vec::new(),
        history: History::new(Instant::now()),
        sync_log: SyncLog::default(),
        service_notices: ServiceNotices::new(callbacks.notices),
        stale_flows: callbacks.stale_flows,
        observers: callbacks.observers,
        triggered_at: Vec::new(),
    };
    let thread = thread::Builder::new().name("writer".into()).spawn(move || writer.run(&inputs))?;
    Ok((handle, thread))
}

struct Writer {
    mailbox: Mailbox,
    reconciler: Reconciler,
    schedule: Schedule,
    /// Those who asked for a forced sync and wait for its report.
    awaiting_report: Vec<Sender<SyncReport>>,
    /// Those who asked what differs and wait for one look at everything.
    awaiting_difference: Vec<Sender<Result<Plan, Unanswered>>>,
    /// Those who asked what is in use and wait for the first sync.
    awaiting_node_usage: Vec<Sender<NodeUsage>>,
    history: History,
    sync_log: SyncLog,
    service_notices: ServiceNotices,
    stale_flows: StaleFlowCallback,
    observers: Vec<Box<dyn Observer>>,
    /// The trigger times of the EndpointSlices that the next sync acts on.
    triggered_at: Vec<SystemTime>,
}

impl Writer {
    fn run(mut self, inputs: &Receiver<Input>) {
        loop {
            // Who holds an address can change although nothing is to be written.
            if self.is_listed() {
                self.service_notices.tell(self.reconciler.state());
            }
            let now = Instant::now();
            self.history.set_behind(self.reconciler.is_behind(), now);
            let next = self.schedule.next(now).filter(|_| self.is_listed());
            let received = match next {
                // No more inputs first: those that never end must not put the sync off for ever.
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
                        let is_mail = matches!(input, Input::Mail);
                        self.take(input);
                        // That was all that has been told. Where more is told than can be taken in, another one
                        // waits already.
                        if is_mail {
                            break;
                        }
                    }
                    self.compare();
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Whether both lists have arrived: nothing is written before.
    fn is_listed(&self) -> bool {
        self.reconciler.state().synced()
    }

    fn take(&mut self, input: Input) {
        match input {
            Input::Mail => self.read(self.mailbox.take()),
            Input::Resync(answer) if self.is_listed() => {
                self.awaiting_report.push(answer);
                self.schedule.want(Trigger::Forced);
            }
            // Whoever asked may have gone; that is no failure of ours.
            Input::Resync(answer) => drop(answer.send(SyncReport::not_ready())),
            Input::Status(answer) => drop(answer.send(self.status())),
            Input::Compare(answer) => self.awaiting_difference.push(answer),
            Input::Explain(service, answer) if self.is_listed() => {
                let explanation = self.reconciler.ours().explain(self.reconciler.state(), &service);
                drop(answer.send(Ok(explanation)));
            }
            Input::Explain(_, answer) => drop(answer.send(Err(Unanswered::NotListed))),
            Input::NodeUsage(answer) if self.history.has_synced() => {
                drop(answer.send(NodeUsage::from_state(self.reconciler.state())));
            }
            Input::NodeUsage(answer) => self.awaiting_node_usage.push(answer),
            Input::VirtualServerOwners(answer) => {
                drop(answer.send(VirtualServerOwner::all(self.reconciler.state())))
            }
            Input::ProbeScheduler(scheduler, answer) => {
                let found = self.reconciler.probe_scheduler(scheduler);
                drop(answer.send(found.map_err(|error| Unanswered::Unread(one_line(&error)))));
            }
            Input::Stop => {}
        }
    }

    fn read(&mut self, Mail { mut news, dummy_interface, tables }: Mail) {
        news.take().into_iter().for_each(|piece| self.change(piece));
        let of_dummy_interface = self.reconciler.hear(&dummy_interface);
        let of_tables = tables.then(|| self.reconciler.hear_of_tables()).flatten();
        of_dummy_interface.into_iter().chain(of_tables).for_each(|trigger| self.schedule.want(trigger));
    }

    fn change(&mut self, Piece { change, subject, objects, pieces }: Piece) {
        let was_listed = self.is_listed();
        let triggered_at = if let Change::ApplySlice(slice) = &change { slice.triggered_at } else { None };
        let touches = self.reconciler.take(change);
        if touches && self.triggered_at.len() < MOST_TRIGGERS {
            self.triggered_at.extend(triggered_at);
        }
        let news =
            ChangeEvent { subject, objects, pieces, waits: self.is_listed() && (touches || !was_listed) };
        self.observers.iter_mut().for_each(|observer| observer.on_change_applied(news));
        if !was_listed && self.is_listed() {
            self.schedule.want(Trigger::Start);
        } else if touches {
            self.schedule.want(Trigger::Change);
        }
    }

    fn sync(&mut self, trigger: Trigger) {
        let start = Instant::now();
        let span = debug_span!("sync", ?trigger, full = Empty, done = Empty, failed = Empty).entered();
        let SyncResult { full, outcome, stale_flows, repairs, stats, unfinished } =
            self.reconciler.sync(trigger);
        if !stale_flows.is_empty() {
            (self.stale_flows)(stale_flows);
        }
        let read = match (&outcome.unread, full) {
            (Some(_), _) => ReadScope::Nothing,
            (None, true) => ReadScope::Everything,
            (None, false) => ReadScope::Part,
        };
        let full = read == ReadScope::Everything;
        let report = SyncReport::new(trigger, full, &outcome, repairs, start.elapsed());
        span.record("full", full).record("done", report.done).record("failed", report.failed);
        self.sync_log.record(&report, &outcome);
        self.observe(&report, &stats, read != ReadScope::Nothing && !outcome.lacks_foundation());
        if read != ReadScope::Nothing {
            self.sync_log.node_ports(self.reconciler.state().node_ports_are_nowhere());
        }
        let look = self.reconciler.next_look();
        self.schedule.ended(Instant::now(), SyncEnd { read, failed: report.failed > 0, unfinished, look });
        for answer in self.awaiting_report.drain(..) {
            drop(answer.send(report.clone()));
        }
        for answer in self.awaiting_node_usage.drain(..) {
            drop(answer.send(NodeUsage::from_state(self.reconciler.state())));
        }
        self.history.add(report, &stats, Instant::now());
    }

    fn observe(&mut self, report: &SyncReport, stats: &SyncStats, complete: bool) {
        let triggered_at = if complete { std::mem::take(&mut self.triggered_at) } else { Vec::new() };
        let state = self.reconciler.state();
        let observation = SyncEvent { report, stats, complete, state, triggered_at: &triggered_at };
        self.observers.iter_mut().for_each(|observer| observer.on_sync(&observation));
    }

    /// Compares once, and answers all who wait for it.
    fn compare(&mut self) {
        if self.awaiting_difference.is_empty() {
            return;
        }
        let answer = if self.is_listed() {
            self.reconciler.compare().map_err(|error| Unanswered::Unread(one_line(&error)))
        } else {
            Err(Unanswered::NotListed)
        };
        for waiting in self.awaiting_difference.drain(..) {
            drop(waiting.send(answer.clone()));
        }
    }

    fn status(&mut self) -> SyncStatus {
        let now = Instant::now();
        // News that came together with the question waits as well.
        self.history.set_behind(self.reconciler.is_behind(), now);
        let (state, draining) = (self.reconciler.state(), self.reconciler.draining());
        let drains = draining.oldest(SyncStatus::MOST_DRAINS, now);
        SyncStatus {
            virtual_servers: state.virtual_servers().count(),
            real_servers: state.virtual_servers().map(|server| server.real_servers.len()).sum(),
            vips: state.vips().count(),
            draining: draining.count(),
            longest_drain: draining.longest(now),
            drains: drains
                .map(|(virtual_server, real_server, age)| Drain {
                    service: state.owner(&virtual_server).cloned(),
                    virtual_server,
                    real_server,
                    age,
                })
                .collect(),
            scheduler_changes: self.reconciler.scheduler_changes(),
            problems: problems(state, self.reconciler.ours(), self.history.has_full_sync()),
            ..self.history.status(now)
        }
    }
}
