//! Removes what kube-proxy left behind, as soon as our own rules are in place and not before. Rules that a
//! kube-proxy writes later are reported and stay.

use std::{
    convert::Infallible,
    future::{self, Future},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use host_rules::{
    host_firewall::{Accepts, ClosedChain, FirewallChains as _, Hook, HostChains, TableFamily},
    leftovers::{Error, Leftovers, Outcome, Scope},
};
use ipvs::Family;
use netfilter::Policy;
use reconciler::{Observer, SyncEvent};
use service::one_line;
use tokio::{sync::oneshot, task::spawn_blocking};
use tracing::{debug, info, warn};

use crate::checks::CheckLoop;

/// The sync periods between two checks for later rules. A running kube-proxy restores its rules after its own
/// period, which is ours if both have the same configuration.
const PERIODS: u32 = 3;

/// After so many full syncs, rules are removed even if some operations failed: more waiting would not help.
/// Otherwise kube-proxy's rules would stay for one address that the kernel refuses, and reject what is new at
/// the others.
const SYNCS: u32 = 3;

/// Signals once that everything is in place, or all that can be.
#[derive(Debug)]
pub struct RulesInPlace {
    sender: Option<oneshot::Sender<()>>,
    /// Full syncs so far in which the tables and kube-ipvs0 were there.
    syncs: u32,
    /// Whether anything failed in the last one.
    failed: bool,
}

impl RulesInPlace {
    /// The observer, and the receiver of its signal.
    pub fn new() -> (Self, oneshot::Receiver<()>) {
        let (sender, receiver) = oneshot::channel();
        (Self { sender: Some(sender), syncs: 0, failed: false }, receiver)
    }
}

impl Observer for RulesInPlace {
    fn on_sync(&mut self, sync: &SyncEvent<'_>) {
        if sync.report.full && sync.complete {
            self.syncs += 1;
            self.failed = false;
        }
        // A full sync that takes long is continued by others.
        self.failed |= sync.report.failed > 0;
        if self.syncs > 0
            && sync.complete
            && sync.report.left == 0
            && (!self.failed || self.syncs >= SYNCS)
            && let Some(sender) = self.sender.take()
        {
            // It is not received while the daemon ends.
            _ = sender.send(());
        }
    }
}

/// Whether the last check found kube-proxy's rules, though ours are in place. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct AnotherProxy(Arc<AtomicBool>);

impl AnotherProxy {
    /// Records the result of a check.
    pub fn set_seen(&self, there: bool) {
        self.0.store(there, Ordering::Relaxed);
    }

    /// Whether the last check found rules.
    pub fn is_seen(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Finds and removes kube-proxy's rules. Both methods block.
pub trait RuleSource: Send + 'static {
    /// Finds rules, and writes nothing.
    fn find(&mut self) -> Result<Outcome, Error>;
    /// Removes rules.
    fn remove(&mut self) -> Result<Outcome, Error>;
}

/// Removes kube-proxy's rules once, when [`RulesInPlace`] has signalled. From then on only checks
/// periodically for later ones.
///
/// Waits for `our_rules_applied`, the end of the attempt to put our own rules into the host's firewall: with
/// them KUBE-FORWARD can go.
pub async fn remove(
    synced: oneshot::Receiver<()>,
    our_rules_applied: impl Future<Output = ()>,
    mut source: impl RuleSource,
    sync_period: Duration,
    another_proxy: AnotherProxy,
) -> Infallible {
    if synced.await.is_err() {
        return future::pending().await;
    }
    our_rules_applied.await;
    let removed = spawn_blocking(move || {
        remove_and_log(&mut source);
        source
    });
    if let Ok(mut source) = removed.await {
        let (check_loop, _recheck) = CheckLoop::new(sync_period.saturating_mul(PERIODS));
        let check_once = move || {
            check(&mut source, &another_proxy);
            Ok(())
        };
        check_loop.run(check_once).await;
    }
    future::pending().await
}

fn remove_and_log(source: &mut impl RuleSource) {
    let outcome = match source.remove() {
        Ok(outcome) => outcome,
        Err(error) => {
            warn!("cannot determine whether kube-proxy has left anything: {}", one_line(&error));
            return;
        }
    };
    for leftover in &outcome.leftovers {
        info!("removed what kube-proxy had left: {leftover}");
    }
    for stayed in &outcome.stayed {
        warn!("left by kube-proxy and not removed: {stayed}: {}", one_line(&stayed.why));
    }
    // A set in use shows that rules exist. Otherwise such tables mostly belong to other programs.
    let is_certain = outcome.stayed.iter().any(|stayed| matches!(stayed.why, Error::InUse));
    for unknown in &outcome.unknown {
        let why = one_line(&unknown.why);
        if is_certain {
            warn!("kube-proxy's rules are most likely in {unknown}: {why}");
        } else {
            info!("{unknown} not checked: {why}");
        }
    }
}

fn check(source: &mut impl RuleSource, another_proxy: &AnotherProxy) {
    match source.find() {
        Ok(outcome) => another_proxy.set_seen(outcome.shows_a_proxy()),
        Err(error) => {
            debug!("cannot determine whether another proxy has written rules: {}", one_line(&error));
        }
    }
}

/// The rules of this node, in the network namespace of the process.
#[derive(Debug)]
pub struct NodeRules {
    policy: Policy,
}

impl NodeRules {
    /// Uses our own policy, which says what becomes of a host that forwards nothing by itself.
    pub fn new(policy: Policy) -> Self {
        Self { policy }
    }

    fn open(&self) -> Result<Leftovers, Error> {
        let closed = HostChains::open().and_then(|mut chains| chains.closed_chains(&self.policy));
        let forwarding_needed_in = Some(forwarding_needed_in(&closed.map_err(Error::HostFirewall)?));
        // Those of the nftables mode too, as kube-proxy itself does when it starts in ipvs mode.
        Leftovers::open(Scope { nftables_tables: true, forwarding_needed_in })
    }
}

impl RuleSource for NodeRules {
    fn find(&mut self) -> Result<Outcome, Error> {
        Ok(self.open()?.find())
    }

    fn remove(&mut self) -> Result<Outcome, Error> {
        Ok(self.open()?.remove())
    }
}

/// The families in which iptables' chain FORWARD drops what pods answer unless kube-proxy's rule accepts it.
fn forwarding_needed_in(closed: &[ClosedChain]) -> Vec<Family> {
    let drops_answers = |closed: &&ClosedChain| {
        closed.chain.hook == Hook::Forward
            && closed.chain.belongs_to_iptables()
            && closed.accepts == Accepts::Nothing
    };
    let family = |closed: &ClosedChain| match closed.chain.family {
        TableFamily::Ip => Some(Family::V4),
        TableFamily::Ip6 => Some(Family::V6),
        TableFamily::Inet => None,
    };
    closed.iter().filter(drops_answers).filter_map(family).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, atomic::AtomicUsize};

    use host_rules::{
        Backend,
        host_firewall::{HostChain, How},
        leftovers::{Leftover, Rules},
    };
    use reconciler::{SyncReport, SyncStats, Trigger};
    use service::{Options, State};
    use testkit::log::logged;
    use tokio::time::sleep;

    use super::*;

    /// A node on which this is found until something else is, and how often it was read.
    #[derive(Clone)]
    struct FakeRules {
        chains: Arc<Mutex<&'static [&'static str]>>,
        removals: Arc<AtomicUsize>,
        reads: Arc<AtomicUsize>,
    }

    impl FakeRules {
        fn new(chains: &'static [&'static str]) -> Self {
            Self { chains: Arc::new(Mutex::new(chains)), removals: Arc::default(), reads: Arc::default() }
        }

        fn outcome(&self) -> Outcome {
            let chains: Vec<_> = self.chains.lock().unwrap().iter().map(|&chain| chain.into()).collect();
            let is_empty = chains.is_empty();
            let rules = Rules { backend: Backend::Nft, family: Family::V4, table: "nat", jumps: 1, chains };
            let leftovers = if is_empty { vec![] } else { vec![Leftover::Rules(rules)] };
            Outcome { leftovers, ..Outcome::default() }
        }

        /// How often something was removed, and how often rules were only read.
        fn seen(&self) -> [usize; 2] {
            [&self.removals, &self.reads].map(|count| count.load(Ordering::SeqCst))
        }
    }

    impl RuleSource for FakeRules {
        fn find(&mut self) -> Result<Outcome, Error> {
            self.reads.fetch_add(1, Ordering::SeqCst);
            Ok(self.outcome())
        }

        fn remove(&mut self) -> Result<Outcome, Error> {
            self.removals.fetch_add(1, Ordering::SeqCst);
            Ok(self.outcome())
        }
    }

    const PERIOD: Duration = Duration::from_secs(30);

    /// Lets the node be checked for a time after the first sync.
    async fn after(time: Duration, fake: &FakeRules, synced: oneshot::Receiver<()>) {
        let work = remove(synced, future::ready(()), fake.clone(), PERIOD, AnotherProxy::default());
        tokio::select! {
            never = work => match never {},
            () = sleep(time) => {}
        }
    }

    fn said() -> oneshot::Receiver<()> {
        let (said, word) = oneshot::channel();
        said.send(()).unwrap();
        word
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_looked_at_before_a_sync_went_well() {
        let fake = FakeRules::new(&["KUBE-SERVICES"]);
        let (_said, word) = oneshot::channel();
        after(PERIOD * 10, &fake, word).await;
        assert_eq!(fake.seen(), [0, 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_removed_before_our_rules_can_be_in_the_host_s_firewall() {
        let fake = FakeRules::new(&["KUBE-SERVICES"]);
        let work = remove(said(), future::pending(), fake.clone(), PERIOD, AnotherProxy::default());
        tokio::select! {
            never = work => match never {},
            () = sleep(PERIOD * 10) => {}
        }
        assert_eq!(fake.seen(), [0, 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_left_is_removed_once_and_looked_for_again_and_again() {
        for chains in [&["KUBE-SERVICES"][..], &[]] {
            let fake = FakeRules::new(chains);
            after(PERIOD * 10, &fake, said()).await;
            assert_eq!(fake.seen(), [1, 4]);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn rules_that_come_later_show_another_proxy_and_are_not_removed() {
        let fake = FakeRules::new(&[]);
        let another_proxy = AnotherProxy::default();
        let work = remove(said(), future::ready(()), fake.clone(), PERIOD, another_proxy.clone());
        tokio::spawn(work);
        let is_seen = async |chains| {
            *fake.chains.lock().unwrap() = chains;
            sleep(PERIOD * (PERIODS + 1)).await;
            another_proxy.is_seen()
        };
        assert!(!is_seen(&[]).await);
        assert!(is_seen(&["KUBE-SERVICES"]).await);
        assert!(!is_seen(&["KUBE-POSTROUTING", "KUBE-MARK-MASQ"]).await, "a kubelet 1.26 writes these");
        assert!(is_seen(&["KUBE-SERVICES", "KUBE-MARK-MASQ"]).await);
        assert!(!is_seen(&[]).await);
        let [removals, _] = fake.seen();
        assert_eq!(removals, 1);
    }

    #[test]
    fn what_was_removed_is_logged() {
        let lines = logged(|| remove_and_log(&mut FakeRules::new(&["KUBE-SERVICES"]))).unwrap();
        let [line] = lines.as_slice() else { panic!("{lines:?}") };
        assert!(
            line.starts_with("INFO ") && line.contains("iptables table nat: 1 jump, 1 chain: KUBE-SERVICES"),
            "{line}"
        );
        assert_eq!(logged(|| remove_and_log(&mut FakeRules::new(&[]))).unwrap(), [""; 0]);
    }

    #[test]
    fn a_full_sync_without_failure_counts_or_the_third_with_failures() {
        let state = State::new(Options::new("node"));
        let report = |full, failed| SyncReport { full, failed, ..SyncReport::empty(Trigger::Start) };
        let follows = |syncs: &[(SyncReport, bool)]| {
            let (mut first, mut word) = RulesInPlace::new();
            for (report, complete) in syncs {
                first.on_sync(&SyncEvent {
                    report,
                    stats: &SyncStats::default(),
                    complete: *complete,
                    state: &state,
                    triggered_at: &[],
                });
            }
            word.try_recv().is_ok()
        };
        assert!(!follows(&[(report(true, 1), true), (report(false, 0), true)]));
        assert!(follows(&[(report(true, 1), true), (report(true, 0), true)]));
        let in_parts = |full, left| (SyncReport { left, ..report(full, 0) }, true);
        assert!(!follows(&[in_parts(true, 9), in_parts(false, 5)]), "not all is there");
        assert!(follows(&[in_parts(true, 9), in_parts(false, 0)]));
        let without_table = || (report(true, 9), false);
        assert!(!follows(&[without_table(), without_table(), without_table(), (report(true, 1), true)]));
        assert!(follows(&[(report(true, 1), true), (report(true, 1), true), (report(true, 1), true)]));
    }

    #[test]
    fn kube_forward_is_needed_where_only_it_accepts_what_pods_answer() {
        let forward = |family, accepts| {
            let (table, name) = ("filter".into(), "FORWARD".into());
            let chain =
                HostChain { backend: Backend::Nft, family, table, name, hook: Hook::Forward, priority: 0 };
            ClosedChain { chain, how: How::Policy, accepts }
        };
        assert_eq!(forwarding_needed_in(&[forward(TableFamily::Ip, Accepts::Nothing)]), [Family::V4]);
        assert_eq!(forwarding_needed_in(&[forward(TableFamily::Ip6, Accepts::Nothing)]), [Family::V6]);
        for accepts in [Accepts::ByHand, Accepts::ByOurRules] {
            assert_eq!(forwarding_needed_in(&[forward(TableFamily::Ip, accepts)]), []);
        }
        let mut input = forward(TableFamily::Ip, Accepts::Nothing);
        input.chain.hook = Hook::Input;
        let mut of_nft = forward(TableFamily::Ip, Accepts::Nothing);
        of_nft.chain.name = "forward".into();
        let inet = forward(TableFamily::Inet, Accepts::Nothing);
        assert_eq!(forwarding_needed_in(&[input, of_nft, inet]), [], "KUBE-FORWARD is not there");
    }
}
