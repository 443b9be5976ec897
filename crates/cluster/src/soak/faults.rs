//! What goes wrong on a node meanwhile: of the faults that `cargo xtask chaos` examines one by one, those that a shell
//! can cause without harm to others (`nft flush ruleset` would take the pods' way out), and that end by themselves.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::{
    kubectl::{self, patiently},
    node::Node,
};

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

/// Injects one after the other until `stop` is set: all of them in some order, and again in another.
pub(super) fn inject(node: &Node, length: Duration, stop: &AtomicBool) -> Injected {
    // The same order each time; what happens when depends on more than that.
    let mut random = fastrand::Rng::with_seed(1);
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
        match node.run(&format!("set -o pipefail; DAEMON={PROCESS}; {script}")) {
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

/// kubeadm's DaemonSet calls it by kube-proxy's name.
pub(super) const PROCESS: &str = "$(pgrep --oldest --exact 'kube-proxy|kube-ipvs')";

/// How its container has fared so far, as the kubelet counts it.
pub(super) struct Restarts {
    /// How often it was started again.
    pub(super) count: u64,
    /// Why it ended the last time.
    pub(super) reason: String,
}

impl Restarts {
    pub(super) fn of_daemon(node: &Node) -> Result<Self> {
        let words = "--namespace=kube-system get pods --selector=k8s-app=kube-proxy";
        let pods = kubectl::json(&format!("{words} --field-selector=spec.nodeName={}", node.name))?;
        let container =
            pods.pointer("/items/0/status/containerStatuses/0").context("no pod of the daemon")?;
        let count = container.pointer("/restartCount").and_then(Value::as_u64).context("no restartCount")?;
        let reason = container.pointer("/lastState/terminated/reason").and_then(Value::as_str);
        Ok(Self { count, reason: reason.unwrap_or_default().to_owned() })
    }
}

/// What a daemon takes.
pub(super) struct Size {
    /// Resident, without pages of files, which the kernel takes back when it likes.
    pub(super) memory_kib: u64,
    /// Open.
    pub(super) descriptors: u64,
}

impl Size {
    pub(super) fn of_daemon(node: &Node) -> Result<Self> {
        let script =
            format!("awk '/^RssAnon/ {{ print $2 }}' /proc/{PROCESS}/status; ls /proc/{PROCESS}/fd | wc -l");
        let printed = node.run(&script)?;
        let mut numbers = printed.lines().map(|line| line.trim().parse());
        let mut number =
            || numbers.next().and_then(Result::ok).with_context(|| format!("{}: {printed}", node.name));
        Ok(Self { memory_kib: number()?, descriptors: number()? })
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} KiB, {} descriptors", self.memory_kib, self.descriptors)
    }
}

/// Virtual and real servers, VIPs, and each line and element of the tables with its set or chain, in no order; before
/// each, how often it is there.
pub(super) type KernelState = BTreeSet<String>;

/// What there is now.
pub(super) fn kernel_state(node: &Node) -> Result<KernelState> {
    let script = "{ ipvsadm -Sn; ip -oneline address show dev kube-ipvs0 | awk '{ print $4 }'; \
                  for family in ip ip6; do nft --stateless list table $family kube-ipvs | awk -v family=$family ' \
                  /^\\t(set|map|chain|flowtable) / { place = $1 \" \" $2 } \
                  { count = split($0, parts, /[,{}]/); \
                    for (i = 1; i <= count; i++) { gsub(/^[ \\t]+|[ \\t]+$/, \"\", parts[i]); \
                    if (parts[i] != \"\") print family, place \": \" parts[i] } }'; done; } | sort | uniq -c";
    Ok(node.run(script)?.lines().map(str::to_owned).collect())
}

/// Ends the daemon, empties the kernel of what it made, and lets the kubelet start another, whatever went wrong.
pub(super) fn start_afresh(node: &Node) -> Result<()> {
    let script = format!(
        "trap 'systemctl start kubelet' EXIT; systemctl stop kubelet && daemon={PROCESS} && kill $daemon && \
         timeout 60 tail --pid=$daemon -f /dev/null && ipvsadm -C && ip link delete kube-ipvs0 && \
         nft delete table ip kube-ipvs && nft delete table ip6 kube-ipvs"
    );
    node.run(&script)?;
    patiently(Duration::from_secs(180), || node.run("curl -sf http://127.0.0.1:10256/readyz")).map(drop)
}
