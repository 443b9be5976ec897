//! The checks of a node whose daemon runs: what they read, when they run, and that each finding is reported
//! once.

use std::{
    collections::BTreeMap,
    mem,
    sync::Weak,
    time::{Duration, Instant},
};

use ipvs::{KernelIpvs, Timeouts};
use netfilter::Policy;
use reconciler::{Handle, NodeUsage, Stopped, SyncStatus};
use service::one_line;
use tokio::{select, sync::watch, task::spawn_blocking, time::sleep};
use tracing::debug;

use super::{facts::Facts, other_programs::RepairLoop, reverse_path::ReversePath, while_running};
use crate::{
    config::{KernelParameters, Settings},
    direct_return::FilteredTunnels,
    events::Outbox,
    finding::{Cause, Finding, Severity},
    node::host_firewall::OurRules,
    takeover::{instance_lock::InstanceLock, leftovers::AnotherProxy},
};

/// The shortest time between two reports of the same finding. A firewall that is reloaded again and again
/// makes findings come and go; each is reported once in this time.
const QUIET: Duration = Duration::from_secs(600);

/// Checks the node, and applies our rules in the host's firewall, from the first sync on. Returns the handle
/// that requests another check, and a future that ends when the rules were applied once.
pub(crate) fn start(
    settings: &Settings,
    policy: Policy,
    handle: Handle,
    elsewhere: FoundElsewhere,
    outbox: Outbox,
    current: CurrentFindings,
) -> (Recheck, impl Future<Output = ()> + use<>) {
    let facts = Facts { masquerade_all: policy.masquerade_all, ..Facts::default() };
    let mut node = WhileRunning {
        facts,
        status: SyncStatus::default(),
        firewall: Vec::new(),
        parameters: settings.kernel_parameters,
        elsewhere,
        repair_loop: RepairLoop::new(settings.timing.sync_period),
        reverse_path: ReversePath::default(),
        last_check: Instant::now(),
    };
    let mut reports = Reports::default();
    let mut our_rules = OurRules::new(policy);
    let our_rules_applied = our_rules.done();
    let (check_loop, recheck) = CheckLoop::new(settings.timing.sync_period);
    tokio::spawn(check_loop.run(move || {
        let (in_use, status) = (handle.node_usage()?, handle.status()?);
        // First: a chain with our rules is not reported.
        node.firewall = our_rules.apply();
        node.read(in_use, status);
        let findings = while_running(&mut node);
        reports.report(&findings, Instant::now(), &outbox);
        current.0.send_replace(findings);
        Ok(())
    }));
    (recheck, our_rules_applied)
}

/// What the checks of a running daemon read.
pub(super) struct WhileRunning {
    pub(super) facts: Facts,
    /// The writer's status.
    pub(super) status: SyncStatus,
    /// What was found when our rules were applied.
    firewall: Vec<Finding>,
    pub(super) parameters: KernelParameters,
    pub(super) elsewhere: FoundElsewhere,
    pub(super) repair_loop: RepairLoop,
    pub(super) reverse_path: ReversePath,
    /// When repairs were counted last.
    pub(super) last_check: Instant,
}

/// What other parts of the program find on the node.
pub(crate) struct FoundElsewhere {
    /// Another proxy that works here.
    pub(crate) another_proxy: AnotherProxy,
    /// The instance lock, which others may keep too.
    pub(crate) instance_lock: Weak<InstanceLock>,
    /// The families of tunnels that the network filters.
    pub(crate) filtered_tunnels: FilteredTunnels,
}

impl WhileRunning {
    fn read(&mut self, in_use: NodeUsage, status: SyncStatus) {
        self.facts.ejects = in_use.ejects;
        self.facts.in_use = in_use;
        self.facts.ipvs_timeouts = ipvs_timeouts();
        self.status = status;
    }
}

fn ipvs_timeouts() -> Option<Timeouts> {
    let timeouts = KernelIpvs::open().and_then(|mut kernel| kernel.timeouts());
    if let Err(error) = &timeouts {
        debug!("the timeouts of IPVS are not known: {}", one_line(error));
    }
    timeouts.ok()
}

/// Chains that drop packets of Services although our rules were applied.
pub(super) fn host_firewall(node: &mut WhileRunning) -> Vec<Finding> {
    mem::take(&mut node.firewall)
}

/// Families in which nothing arrives that is tunnelled to other nodes.
pub(super) fn filtered_tunnels(node: &mut WhileRunning) -> Vec<Finding> {
    node.elsewhere.filtered_tunnels.findings()
}

/// Whether so many endpoints are silent that none is ejected.
pub(super) fn most_silent(node: &mut WhileRunning) -> Vec<Finding> {
    let finding = || {
        let what = "most endpoints that this node's clients use do not answer: the fault is probably this node's, and no \
                    endpoint is ejected";
        Finding::warning("endpoints", what)
            .remedy("check this node's network; kube-ipvs status names endpoints")
    };
    node.status.most_are_silent.then(finding).into_iter().collect()
}

/// The findings that hold now, for `kube-ipvs status`. Empty before the first check. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct CurrentFindings(watch::Sender<Vec<Finding>>);

impl CurrentFindings {
    /// All findings of the last check.
    pub(crate) fn all(&self) -> Vec<Finding> {
        self.0.borrow().clone()
    }
}

/// The findings reported so far. What identifies one is its cause and subject, whatever its text.
#[derive(Debug, Default)]
struct Reports(BTreeMap<(Option<Cause>, String), Reported>);

#[derive(Debug)]
struct Reported {
    finding: Finding,
    /// Whether the last report was that it holds, not that it ended.
    holds: bool,
    /// When it was reported that it holds.
    at: Instant,
}

/// A change to report.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Transition {
    /// The finding holds from now on.
    Begins(Finding),
    /// The finding was reported, and does not hold any more.
    Ends(Finding),
}

impl Reports {
    /// Logs what begins and what ends. What begins and is a warning becomes an Event of the Node.
    fn report(&mut self, holds: &[Finding], now: Instant, outbox: &Outbox) {
        for transition in self.update(holds, now) {
            match transition {
                Transition::Begins(finding) => {
                    finding.log_begin();
                    if finding.severity == Severity::Warning {
                        outbox.post_finding(&finding);
                    }
                }
                Transition::Ends(finding) => finding.log_end(),
            }
        }
    }

    /// Compares the findings that hold now with those reported. Returns the difference, and counts it as
    /// reported.
    fn update(&mut self, holds: &[Finding], now: Instant) -> Vec<Transition> {
        let mut transitions = Vec::new();
        for finding in holds {
            if !self.0.get(&key(finding)).is_some_and(|reported| reported.is_fresh(now)) {
                self.0.insert(key(finding), Reported { finding: finding.clone(), holds: true, at: now });
                transitions.push(Transition::Begins(finding.clone()));
            }
        }
        self.0.retain(|reported_key, reported| {
            let over = !holds.iter().any(|finding| key(finding) == *reported_key);
            if over && reported.holds {
                reported.holds = false;
                transitions.push(Transition::Ends(reported.finding.clone()));
            }
            reported.is_fresh(now)
        });
        transitions
    }
}

impl Reported {
    /// Whether it is too soon for another report.
    fn is_fresh(&self, now: Instant) -> bool {
        self.holds || now.duration_since(self.at) < QUIET
    }
}

fn key(finding: &Finding) -> (Option<Cause>, String) {
    (finding.cause, finding.subject.clone())
}

/// The pause after a request: a firewall is mostly loaded in several steps.
const PAUSE: Duration = Duration::from_secs(2);

/// Runs checks periodically, and soon after each [`Recheck`], on a thread for blocking work.
#[derive(Debug)]
pub(crate) struct CheckLoop {
    period: Duration,
    requested: watch::Receiver<()>,
}

/// Requests another check soon. Clones request the same.
#[derive(Clone, Debug)]
pub(crate) struct Recheck(watch::Sender<()>);

impl Recheck {
    /// Requests a check, because something changed what it reads. Never blocks; many requests cause one
    /// check.
    pub(crate) fn request(&self) {
        self.0.send_replace(());
    }
}

impl CheckLoop {
    /// Checks at once, then after each `period` and soon after each request.
    pub(crate) fn new(period: Duration) -> (Self, Recheck) {
        let (recheck, requested) = watch::channel(());
        (Self { period, requested }, Recheck(recheck))
    }

    /// Runs `check` until the writer thread has stopped. `check` may block: it runs on a thread for blocking
    /// work.
    pub(crate) async fn run(mut self, mut check: impl FnMut() -> Result<(), Stopped> + Send + 'static) {
        loop {
            self.requested.mark_unchanged();
            check = match spawn_blocking(move || check().map(|()| check)).await {
                Ok(Ok(check)) => check,
                Ok(Err(Stopped)) | Err(_) => return,
            };
            select! {
                () = sleep(self.period) => {}
                Ok(()) = self.requested.changed() => sleep(PAUSE).await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use super::{
        Transition::{Begins, Ends},
        *,
    };

    fn finding(subject: &str, what: &str) -> Finding {
        Finding::warning(subject, what).cause(Cause::HostFirewall).remedy("mend it")
    }

    #[test]
    fn a_finding_is_reported_once_and_its_end_once() {
        let (mut dedup, now) = (Reports::default(), Instant::now());
        let (input, forward) = (finding("INPUT", "drops"), finding("FORWARD", "drops"));
        assert_eq!(dedup.update(std::slice::from_ref(&input), now), [Begins(input.clone())]);
        let both = [input.clone(), forward.clone()];
        assert_eq!(dedup.update(&both, now), [Begins(forward.clone())]);
        assert_eq!(dedup.update(&both, now + QUIET * 9), [], "nothing new, however long");
        assert_eq!(dedup.update(&[input], now + QUIET * 9), [Ends(forward)]);
    }

    #[test]
    fn another_text_about_the_same_subject_is_not_reported() {
        let (mut dedup, now) = (Reports::default(), Instant::now());
        let first = finding("NodePorts", "31000");
        dedup.update(std::slice::from_ref(&first), now);
        assert_eq!(dedup.update(&[finding("NodePorts", "31000 and 31001")], now + QUIET * 2), []);
        assert_eq!(dedup.update(&[], now + QUIET * 2), [Ends(first)]);
    }

    #[test]
    fn a_finding_that_comes_and_goes_is_reported_once_in_ten_minutes() {
        let (mut dedup, begin) = (Reports::default(), Instant::now());
        let input = finding("INPUT", "drops");
        let mut transitions = Vec::new();
        for second in 0..599 {
            let holds = if second % 2 == 0 { vec![input.clone()] } else { Vec::new() };
            transitions.extend(dedup.update(&holds, begin + Duration::from_secs(second)));
        }
        assert_eq!(transitions, [Begins(input.clone()), Ends(input.clone())]);
        assert_eq!(dedup.update(std::slice::from_ref(&input), begin + QUIET), [Begins(input)]);
    }

    const PERIOD: Duration = Duration::from_secs(30);
    const MOMENT: Duration = Duration::from_millis(1);

    /// A loop that counts its checks.
    fn counted() -> (Recheck, Arc<AtomicUsize>) {
        let (check_loop, recheck) = CheckLoop::new(PERIOD);
        let checks = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&checks);
        tokio::spawn(check_loop.run(move || {
            count.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }));
        (recheck, checks)
    }

    async fn after(time: Duration, checks: &AtomicUsize) -> usize {
        sleep(time).await;
        checks.load(Ordering::Relaxed)
    }

    #[tokio::test(start_paused = true)]
    async fn the_node_is_checked_at_once_and_then_every_period() {
        let (_recheck, checks) = counted();
        assert_eq!(after(MOMENT, &checks).await, 1);
        assert_eq!(after(PERIOD / 2, &checks).await, 1);
        assert_eq!(after(PERIOD / 2, &checks).await, 2);
        assert_eq!(after(PERIOD * 3, &checks).await, 5);
    }

    #[tokio::test(start_paused = true)]
    async fn many_requests_are_one_check_soon() {
        let (recheck, checks) = counted();
        sleep(MOMENT).await;
        for _ in 0..10 {
            recheck.request();
            sleep(PAUSE / 20).await;
        }
        assert_eq!(after(PAUSE / 4, &checks).await, 1, "not before the pause is over");
        assert_eq!(after(PAUSE / 2, &checks).await, 2);
        assert_eq!(after(PERIOD / 2, &checks).await, 2, "no request is left");
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_recheck_does_not_end_the_loop() {
        let (recheck, checks) = counted();
        drop(recheck);
        assert_eq!(after(PERIOD + MOMENT, &checks).await, 2);
    }

    #[tokio::test]
    async fn the_loop_ends_with_the_writer_thread() {
        let (check_loop, _recheck) = CheckLoop::new(PERIOD);
        check_loop.run(|| Err(Stopped)).await;
    }
}
