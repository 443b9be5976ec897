//! What goes wrong on a node meanwhile: of the faults that `cargo xtask chaos` examines one by one, those that a shell
//! can cause without harm to others (`nft flush ruleset` would take the pods' way out), and that end by themselves.

use std::{
    collections::BTreeMap,
    fmt,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use super::daemon::PROCESS;
use crate::{node::Node, state::Cluster};

/// The time between two of them, in seconds: as long as a sync period, about.
const BETWEEN: std::ops::Range<u64> = 20..50;

/// In shell, with the daemon's process as `$DAEMON`. Each ends by itself.
const FAULTS: &[(&str, &str)] = &[
    ("ipvsadm -C", "ipvsadm -C"),
    (
        "a virtual server deleted",
        "ipvsadm -Sn | grep ^-A | shuf -n 1 | sed 's/^-A/-D/; s/ -s .*//' | grep . | ipvsadm -R",
    ),
    ("a virtual server added", "ipvsadm -A -t 192.0.2.7:80 -s wlc"),
    (
        "a virtual server with another scheduler",
        "ipvsadm -Sn | grep ^-A | shuf -n 1 | sed 's/^-A/-E/; s/ -s .*/ -s wlc/' | grep . | ipvsadm -R",
    ),
    (
        "a real server added",
        "ipvsadm -Sn | grep '^-A -[tu] [0-9]' | shuf -n 1 | \
         sed 's/^-A/-a/; s/ -s .*/ -r 192.0.2.8:80 -m/' | ipvsadm -R",
    ),
    (
        "a real server deleted",
        "ipvsadm -Sn | grep ^-a | shuf -n 1 | sed 's/^-a/-d/; s/ -[mgi] .*//' | grep . | ipvsadm -R",
    ),
    (
        "a real server set to weight 0",
        "ipvsadm -Sn | grep ^-a | shuf -n 1 | sed 's/^-a/-e/; s/ -w .*/ -w 0/' | grep . | ipvsadm -R",
    ),
    ("kube-ipvs0 deleted", "ip link delete kube-ipvs0"),
    ("kube-ipvs0 stripped of its addresses", "ip address flush dev kube-ipvs0"),
    ("an address added to kube-ipvs0", "ip address add 10.96.255.99/32 dev kube-ipvs0"),
    ("our table deleted", "nft delete table ip kube-ipvs"),
    ("a set of ours flushed", "nft flush set ip6 kube-ipvs cluster-ips"),
    ("no way to the API server for ten seconds", API_SERVER_CUT_OFF),
    ("the daemon stopped for five seconds", "kill -STOP $DAEMON; sleep 5; kill -CONT $DAEMON"),
];

const API_SERVER_CUT_OFF: &str = "nft 'table inet fault { chain output { type filter hook output priority 0; \
     tcp dport 6443 drop; }; }'; sleep 10; nft delete table inet fault";

/// It comes this seldom, because the kubelet starts a daemon that has just ended later each time, and only in the first
/// half of the time: the daemon of the second half is then measured.
const KILLED: (&str, &str) = ("the daemon killed", "kill -KILL $DAEMON");
const BETWEEN_KILLS: Duration = Duration::from_secs(700);

/// What was injected.
#[derive(Default)]
pub(super) struct Injected {
    /// How often each fault was tried, and how often it worked.
    faults: BTreeMap<&'static str, (u32, u32)>,
}

impl fmt::Display for Injected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = |(name, (tried, worked)): (&&str, &(u32, u32))| format!("{name} ({worked} of {tried})");
        f.write_str(&self.faults.iter().map(words).collect::<Vec<_>>().join(", "))
    }
}

impl Injected {
    /// How often the daemon was killed.
    pub(super) fn kills(&self) -> u32 {
        self.faults.get(KILLED.0).map_or(0, |(_, worked)| *worked)
    }

    /// What is wrong if a fault that was tried more than once never worked, or most did not. One may meet what the one
    /// before it has left: there is no real server to delete, or no table.
    pub(super) fn complaint(&self) -> Option<String> {
        let never = self.faults.iter().find(|(_, (tried, worked))| *tried > 1 && *worked == 0);
        let (tried, worked) =
            self.faults.values().fold((0, 0), |sum, fault| (sum.0 + fault.0, sum.1 + fault.1));
        match never {
            Some((name, _)) => Some(format!("this fault could never be injected: {name}")),
            None if worked * 2 <= tried => Some(format!("{worked} of {tried} faults could be injected")),
            None => None,
        }
    }
}

/// Injects one after the other until it is told to stop: all of them in some order, and again in another.
pub(super) fn inject(
    cluster: &Cluster,
    node: &Node,
    seed: u64,
    length: Duration,
    stop: &AtomicBool,
) -> Injected {
    let mut random = fastrand::Rng::with_seed(seed);
    let started = Instant::now();
    let (mut injected, mut kills_tried, mut order) = (Injected::default(), 0, Vec::new());
    while !stop.load(Ordering::Relaxed) {
        let due = started.elapsed().as_secs() / BETWEEN_KILLS.as_secs();
        let next = if kills_tried < due && started.elapsed() < length / 2 {
            kills_tried += 1;
            Some(KILLED)
        } else {
            order.pop()
        };
        let Some((name, script)) = next else {
            order = FAULTS.to_vec();
            random.shuffle(&mut order);
            continue;
        };
        let (tried, worked) = injected.faults.entry(name).or_default();
        *tried += 1;
        match node.run(cluster, &format!("set -o pipefail; DAEMON={PROCESS}; {script}")) {
            Ok(_) => *worked += 1,
            Err(error) => println!("not on {}: {name}: {error:#}", node.name),
        }
        let wait = Duration::from_secs(random.u64(BETWEEN));
        let waited = Instant::now();
        while waited.elapsed() < wait && !stop.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(200));
        }
    }
    injected
}
