//! The writer thread: the only one that changes IPVS, our tables and kube-ipvs0.

use std::{
    io, iter, mem,
    ops::ControlFlow,
    sync::mpsc::{Receiver, RecvTimeoutError, Sender},
    thread::{self, JoinHandle},
    time::{Duration, Instant, SystemTime},
};

use service::{Change, Event, ObjectName, State, one_line};
use tracing::{field::Empty, info, trace_span, warn};
use watcher::{Draining, Kernel, Ownership, Plan};

use crate::{
    Callbacks, ChangeEvent, Handle, NodeUsage, Observer, StaleFlowCallback, SyncEvent, SyncReport, SyncState,
    SyncStats, SyncStatus, Timing, Trigger, Unanswered, WantedAnswers,
    follow::TunnelsInUse,
    inbox::{Inbox, Input, Pending, PendingChange},
    report::{
        history::History,
        journal::{Journal, collect::service_changes},
        service_notices::ServiceNotices,
        status::count_problems,
        sync_log::{BusyLog, SyncLog},
    },
    schedule::{Rest, Schedule, SyncEnd},
    sync::{Look, Reconciler, Slice, SyncResult},
};

/// How often the kernel is asked for one of our virtual servers.
const LOOK: Duration = Duration::from_secs(1);

/// How many virtual and real servers are compared before others may go first, which takes milliseconds.
const COMPARED_AT_ONCE: usize = 1_000;

/// How many inputs are handled before the schedule is asked again.
const MAX_INPUTS: usize = 1_000;

/// How many trigger times are kept for the next complete sync at most, should the kernel be unreadable for
/// long.
const MAX_TRIGGER_TIMES: usize = 10_000;

/// Starts the writer thread. It ends on [`Handle::stop`], or when every handle is dropped. The kernel's state
/// then stays as it is, so that traffic goes on.
pub fn start(
    state: State,
    kernel: Kernel,
    ownership: Ownership,
    timing: Timing,
    callbacks: Callbacks,
) -> io::Result<(Handle, JoinHandle<()>)> {
    let (handle, inputs, inbox) = Handle::new();
    let writer = Writer {
        inbox,
        reconciler: Reconciler::new(
            state,
            kernel,
            ownership,
            Draining::new(timing.drain_timeout),
            TunnelsInUse::new(timing.tcp_timeout),
        ),
        schedule: Schedule::new(timing),
        awaiting_report: Vec::new(),
        partly_forced: None,
        busy: BusyLog::default(),
        awaiting_difference: Vec::new(),
        awaiting_node_usage: Vec::new(),
        next_look: Instant::now(),
        history: History::new(Instant::now()),
        journal: Journal::new(node_clock(), Journal::MOST_BYTES),
        sync_log: SyncLog::default(),
        service_notices: ServiceNotices::new(callbacks.notices),
        stale_flows: callbacks.stale_flows,
        observers: callbacks.observers,
        triggered_at: Vec::new(),
    };
    let thread = thread::Builder::new().name("writer".into()).spawn(move || writer.run(&inputs))?;
    Ok((handle, thread))
}

/// The node's clock, for the times in the journal, which people compare with those of other logs.
#[expect(clippy::disallowed_methods, reason = "nothing that the writer does depends on it")]
fn node_clock() -> SystemTime {
    SystemTime::now()
}

/// The state that the writer thread owns.
pub(crate) struct Writer {
    inbox: Inbox,
    pub(crate) reconciler: Reconciler,
    schedule: Schedule,
    /// Callers that wait for the report of a forced sync.
    awaiting_report: Vec<Sender<SyncReport>>,
    /// The report so far of a forced sync that takes several slices of time.
    partly_forced: Option<SyncReport>,
    busy: BusyLog,
    /// Callers that wait for a comparison of everything.
    awaiting_difference: Vec<Sender<Result<Plan, Unanswered>>>,
    /// Callers that asked for the node usage and wait for the first sync.
    awaiting_node_usage: Vec<Sender<NodeUsage>>,
    /// When one of our virtual servers is looked for next.
    next_look: Instant,
    history: History,
    pub(crate) journal: Journal,
    sync_log: SyncLog,
    service_notices: ServiceNotices,
    stale_flows: StaleFlowCallback,
    observers: Vec<Box<dyn Observer>>,
    /// The trigger times of the EndpointSlices that changed something since the last complete sync, with
    /// their Services.
    triggered_at: Vec<(ObjectName, SystemTime)>,
}

impl Writer {
    fn run(mut self, inputs: &Receiver<Input>) {
        loop {
            // The owner of an address can change although nothing must be written.
            if self.is_listed() {
                self.service_notices.send_new(&self.reconciler.state);
            }
            let now = Instant::now();
            self.look(now);
            self.history.set_behind(self.reconciler.is_behind(), now);
            let next = self.schedule.next_sync(now).filter(|_| self.is_listed());
            let received = match next {
                Some((due, trigger)) => match self.compare_ahead(trigger, inputs, now) {
                    ControlFlow::Break(arrived) => arrived.ok_or(RecvTimeoutError::Timeout),
                    // A due sync comes before further inputs, which may never end.
                    ControlFlow::Continue(()) if due <= now => {
                        self.sync(trigger);
                        // What has arrived meanwhile is part of the next one, if that is due already.
                        inputs.try_recv().map_err(|_| RecvTimeoutError::Timeout)
                    }
                    ControlFlow::Continue(()) => {
                        inputs.recv_timeout(due.min(self.next_look).saturating_duration_since(Instant::now()))
                    }
                },
                None => inputs.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match received {
                Ok(first) => {
                    if self.take_in(first, inputs).is_break() {
                        return;
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Looks for one of our virtual servers, if it is time. If it is missing, or the kernel does not say, a sync compares
    /// everything. If it is missing the node is not ready until the sync has restored what was lost.
    fn look(&mut self, now: Instant) {
        if now < self.next_look {
            return;
        }
        self.next_look = now + LOOK;
        if self.reconciler.state.is_unsettled() {
            self.change_weights(Change::Time(now));
            self.want_answers();
        }
        let found = self.reconciler.look_for_virtual_server();
        if found != Look::Nothing {
            self.schedule.request(Trigger::VirtualServerLost);
        }
        if found == Look::Lost {
            self.observers.iter_mut().for_each(|observer| observer.on_loss());
        }
    }

    /// Compares the kernel with its image before a periodic sync, until that is done. Breaks as soon as anything else is
    /// to be done, with what has arrived: it goes first, and the comparison continues after it.
    fn compare_ahead(
        &mut self,
        before: Trigger,
        inputs: &Receiver<Input>,
        now: Instant,
    ) -> ControlFlow<Option<Input>> {
        if before != Trigger::Period || !self.schedule.may_interrupt_comparison(now) {
            return ControlFlow::Continue(());
        }
        let other = self.schedule.next_but_periodic(now);
        let (mut compared, mut arrived) = (0, None);
        let is_waited_for = |servers: usize| {
            compared += servers;
            if compared < COMPARED_AT_ONCE {
                return false;
            }
            compared = 0;
            arrived = inputs.try_recv().ok();
            arrived.is_some() || other.is_some_and(|(due, _)| due <= Instant::now())
        };
        if trace_span!("compare ahead").in_scope(|| self.reconciler.compare_ahead(is_waited_for)) {
            return ControlFlow::Continue(());
        }
        self.schedule.postpone_period();
        ControlFlow::Break(arrived)
    }

    /// Handles what has arrived: all of it shares one sync. Breaks if the thread shall stop.
    fn take_in(&mut self, first: Input, inputs: &Receiver<Input>) -> ControlFlow<()> {
        for input in iter::once(first).chain(inputs.try_iter().take(MAX_INPUTS)) {
            match input {
                Input::Stop => return ControlFlow::Break(()),
                Input::Ask(question) => question(self),
                Input::Pending => {
                    self.apply_pending(self.inbox.take());
                    // The inbox is empty now. Where changes come faster than they can be applied, another
                    // such input waits already.
                    break;
                }
            }
        }
        self.answer_comparisons();
        ControlFlow::Continue(())
    }

    /// Whether both lists have arrived. Nothing is written before.
    fn is_listed(&self) -> bool {
        self.reconciler.state.synced()
    }

    /// The reconciler, once both lists have arrived: nothing is known before.
    pub(crate) fn listed(&self) -> Result<&Reconciler, Unanswered> {
        if self.is_listed() { Ok(&self.reconciler) } else { Err(Unanswered::NotListed) }
    }

    /// Requests a forced sync, and answers after it.
    pub(crate) fn resync(&mut self, answer: Sender<SyncReport>) {
        if self.is_listed() {
            self.awaiting_report.push(answer);
            self.schedule.request(Trigger::Forced);
        } else {
            // The caller may have gone.
            drop(answer.send(SyncReport::not_ready()));
        }
    }

    /// Answers after the inputs that came together with this one.
    pub(crate) fn compare(&mut self, answer: Sender<Result<Plan, Unanswered>>) {
        self.awaiting_difference.push(answer);
    }

    /// Answers once the first sync has ended.
    pub(crate) fn node_usage(&mut self, answer: Sender<NodeUsage>) {
        self.awaiting_node_usage.push(answer);
        if self.history.has_synced() {
            self.answer_node_usage();
        }
    }

    fn apply_pending(&mut self, pending: Pending) {
        let Pending { mut changes, dummy_interface, tables, answers, .. } = pending;
        changes.take().into_iter().for_each(|pending| self.apply_change(pending));
        if let Some(answers) = answers {
            self.change_weights(Change::Answers(answers));
        }
        self.want_answers();
        let of_dummy_interface = self.reconciler.on_link_event(&dummy_interface);
        let of_tables = tables.then(|| self.reconciler.on_table_event()).flatten();
        of_dummy_interface.into_iter().chain(of_tables).for_each(|trigger| self.schedule.request(trigger));
    }

    fn apply_change(&mut self, PendingChange { change, kind, objects, changes, .. }: PendingChange) {
        let was_listed = self.is_listed();
        let triggered_at = match &change {
            Change::Slices(Event::Apply(slice)) => slice.triggered_at.map(|at| (slice.service.clone(), at)),
            _ => None,
        };
        let touches = self.reconciler.apply_change(change);
        if touches && self.triggered_at.len() < MAX_TRIGGER_TIMES {
            self.triggered_at.extend(triggered_at);
        }
        let event =
            ChangeEvent { kind, objects, changes, waits: self.is_listed() && (touches || !was_listed) };
        self.observers.iter_mut().for_each(|observer| observer.on_change_applied(event));
        if !was_listed && self.is_listed() {
            self.schedule.request(Trigger::Start);
        } else if touches {
            self.schedule.request(Trigger::Change);
        }
    }

    /// Tells the inbox what the writer has to know of the answers of endpoints.
    fn want_answers(&self) {
        let state = &self.reconciler.state;
        self.inbox.want_answers(match (state.ejects(), state.awaits_answers()) {
            (false, _) => WantedAnswers::None,
            (true, false) => WantedAnswers::OnceOneFails,
            (true, true) => WantedAnswers::All,
        });
    }

    /// Applies a change of what weights depend on beside the objects.
    fn change_weights(&mut self, change: Change) {
        let had_fault = self.reconciler.state.has_fault();
        if self.reconciler.apply_change(change) {
            self.schedule.request(Trigger::Change);
        }
        match (had_fault, self.reconciler.state.has_fault()) {
            (false, true) => warn!(
                "most endpoints that this node's clients use do not answer: the fault is probably this node's, and no \
                 endpoint is ejected"
            ),
            (true, false) => {
                info!("this node has shown no fault for 30 s: ejection resumes");
            }
            _ => {}
        }
    }

    fn sync(&mut self, trigger: Trigger) {
        let start = Instant::now();
        let span = trace_span!("sync", ?trigger, full = Empty, done = Empty, failed = Empty).entered();
        let inbox = self.inbox.clone();
        let is_waited_for = || inbox.has_any();
        let compared_for =
            if trigger == Trigger::Period { self.reconciler.compared_for() } else { Duration::ZERO };
        let synced = self.reconciler.sync(trigger, &Slice::new(&is_waited_for));
        let SyncResult { full, mut outcome, stale_flows, removed_foreign, .. } = synced;
        let mut stats = mem::take(&mut outcome.stats);
        if !stale_flows.is_empty() {
            (self.stale_flows)(stale_flows);
        }
        outcome.name_in_turn(&self.reconciler.state);
        let services = outcome.services(&self.reconciler.state);
        let took = compared_for + start.elapsed();
        let report = SyncReport::new(trigger, full, &outcome, services, removed_foreign, took);
        span.record("full", full).record("done", report.done).record("failed", report.failed);
        let is_new = |failed: &_| !self.sync_log.has_logged(failed);
        self.journal.add(service_changes(&self.reconciler.state, &outcome, is_new), node_clock());
        self.sync_log.log_sync(&report, &stats, &outcome);
        let state = &self.reconciler.state;
        let knows_node = full || self.history.has_full_sync();
        stats.problems = count_problems(state, &self.reconciler.ownership, knows_node);
        let unread = outcome.unread.is_some();
        if !unread {
            self.sync_log.log_node_ports(state.has_unserved_node_ports());
        }
        self.notify_observers(&report, &stats, !unread && !outcome.lacks_foundation());
        let end = SyncEnd {
            full,
            unread,
            idle: synced.idle && matches!(trigger, Trigger::Period | Trigger::Continue),
            failures: synced.failures,
            rest: match synced.busy {
                Some(_) => Rest::Interrupted,
                None if synced.unfinished => Rest::Deferred,
                None => Rest::None,
            },
            next_check: self.reconciler.next_check(),
        };
        let now = Instant::now();
        self.schedule.sync_ended(now, end);
        self.busy.update(synced.busy, now);
        self.answer_resyncs(&report, end.rest == Rest::Interrupted);
        self.answer_node_usage();
        self.history.add(report, &stats, now);
    }

    /// Answers all callers that wait for a forced sync, once all of it was done.
    fn answer_resyncs(&mut self, report: &SyncReport, interrupted: bool) {
        if self.awaiting_report.is_empty() {
            return;
        }
        let mut whole = self.partly_forced.take().unwrap_or_else(|| SyncReport::empty(report.trigger));
        whole.extend(report.clone());
        if interrupted {
            self.partly_forced = Some(whole);
            return;
        }
        for answer in self.awaiting_report.drain(..) {
            drop(answer.send(whole.clone()));
        }
    }

    fn answer_node_usage(&mut self) {
        for answer in self.awaiting_node_usage.drain(..) {
            drop(answer.send(NodeUsage::from_state(&self.reconciler.state)));
        }
    }

    fn notify_observers(&mut self, report: &SyncReport, stats: &SyncStats, complete: bool) {
        let mut triggered_at = Vec::new();
        if complete {
            // The changes of Services of which something is left are not programmed.
            let waits = |(service, _): &(ObjectName, SystemTime)| stats.left.contains(service);
            let (left, programmed): (Vec<_>, Vec<_>) =
                mem::take(&mut self.triggered_at).into_iter().partition(waits);
            self.triggered_at = left;
            triggered_at.extend(programmed.into_iter().map(|(_, at)| at));
        }
        let state = &self.reconciler.state;
        let observation = SyncEvent { report, stats, complete, state, triggered_at: &triggered_at };
        self.observers.iter_mut().for_each(|observer| observer.on_sync(&observation));
    }

    /// Compares once, and answers all callers that wait for it.
    fn answer_comparisons(&mut self) {
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

    /// The status, after a comparison with the kernel unless it is known already that something is not as desired.
    pub(crate) fn checked_status(&mut self) -> Result<SyncStatus, Unanswered> {
        let status = self.status();
        if matches!(status.sync_state, SyncState::NotListed | SyncState::Failing) {
            return Ok(status);
        }
        let difference =
            self.reconciler.difference().map_err(|error| Unanswered::Unread(one_line(&error)))?;
        Ok(SyncStatus { difference: Some(difference), ..status })
    }

    pub(crate) fn status(&mut self) -> SyncStatus {
        let now = Instant::now();
        // Changes that came together with the request wait as well.
        self.history.set_behind(self.reconciler.is_behind(), now);
        let known = SyncStatus { busy: self.busy.current(now), ..self.history.status(now) };
        known.with(&self.reconciler, self.history.has_full_sync(), now)
    }
}
