//! What is deleted from conntrack's table, and what never is. Entries are made and looked at with the program
//! `conntrack`, in its own words.
use std::{
    collections::BTreeSet,
    io::Write,
    net::SocketAddr,
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use ipvs::{Protocol, RealServerAddress, ServiceAddress};
use netfilter::conntrack::{Conntrack, KernelConntrack, StaleFlows};
use nix::sched::{CloneFlags, unshare};

/// Runs `test` in a network namespace of its own, which goes away with its thread.
fn in_fresh_namespace(test: impl FnOnce() + Send) {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            test();
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

/// Runs `conntrack` in the thread's network namespace and returns what it prints.
fn conntrack(arguments: &[&str], input: &str) -> String {
    let command = Command::new("conntrack")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut running = command.unwrap();
    let mut stdin = running.stdin.take().unwrap();
    let output = thread::scope(|scope| {
        scope.spawn(move || stdin.write_all(input.as_bytes()).unwrap());
        running.wait_with_output().unwrap()
    });
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A flow as conntrack has it: who sent it where, who answers, to whom.
fn entry(protocol: &str, from: &str, to: &str, answered_by: &str, replies_to: &str) -> String {
    let [from, to, answered_by, replies_to] = [from, to, answered_by, replies_to].map(at);
    let ips = format!("-s {} -d {} -r {} -q {}", from.ip(), to.ip(), answered_by.ip(), replies_to.ip());
    let sent = format!("--sport {} --dport {}", from.port(), to.port());
    let replied = format!("--reply-port-src {} --reply-port-dst {}", answered_by.port(), replies_to.port());
    let state = match protocol {
        "tcp" => " --state ESTABLISHED",
        "sctp" => " --state ESTABLISHED --orig-vtag 1 --reply-vtag 2",
        _ => "",
    };
    format!("{ips} -p {protocol} {sent} {replied}{state}")
}

fn udp(from: &str, to: &str, answered_by: &str) -> String {
    entry("udp", from, to, answered_by, from)
}

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// Puts entries into the table.
fn add<'a>(entries: impl IntoIterator<Item = &'a String>) {
    let commands: Vec<_> = entries.into_iter().map(|entry| format!("-I -t 600 {entry}\n")).collect();
    // Not `-`: that stands for /dev/stdin, which a guest may lack.
    conntrack(&["-R", "/proc/self/fd/0"], &commands.concat());
}

/// The entries in the table, in the words of [`entry`], with the zone in front.
fn listed() -> BTreeSet<String> {
    let saved = conntrack(&["-L", "-o", "save"], "");
    let entry = |line: &str| {
        let words: Vec<_> = line.split_whitespace().collect();
        // `-A -t SECONDS`, perhaps `-u STATUS`, and then what was asked for.
        let status = words.iter().position(|word| *word == "-u").map_or(0, |_| 2);
        words[3 + status..].join(" ")
    };
    saved.lines().map(entry).collect()
}

/// The flows to an address, but for those that these answer.
type ButFor<'a> = (&'a str, &'a [&'a str]);

fn flows_to((to, right): &ButFor<'_>) -> (ServiceAddress, BTreeSet<RealServerAddress>) {
    let server = |by: &&str| RealServerAddress { ip: at(by).ip(), port: at(by).port() };
    let to = ServiceAddress { protocol: Protocol::Udp, ip: at(to).ip(), port: at(to).port() };
    (to, right.iter().map(server).collect())
}

fn delete(flows: &[ButFor<'_>]) -> usize {
    delete_all(&flows.iter().map(flows_to).collect())
}

fn delete_all(flows: &StaleFlows) -> usize {
    KernelConntrack::open().unwrap().delete(flows).unwrap().total()
}

/// Puts both kinds of entries into the table, deletes the flows, and looks at what is left.
fn check(flows: &[ButFor<'_>], stale: &[String], kept: &[String]) {
    check_all(&flows.iter().map(flows_to).collect(), stale, kept);
}

fn check_all(flows: &StaleFlows, stale: &[String], kept: &[String]) {
    in_fresh_namespace(|| {
        add(stale.iter().chain(kept));
        assert_eq!(listed(), stale.iter().chain(kept).cloned().collect());
        assert_eq!(delete_all(flows), stale.len());
        assert_eq!(listed(), kept.iter().cloned().collect());
        assert_eq!(delete_all(flows), 0, "the second time");
    });
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn flows_answered_by_no_real_server_go_and_similar_ones_stay() {
    const VIP: &str = "10.96.0.10:53";
    const GONE: &str = "10.244.1.2:8053";
    const SERVES: &str = "10.244.2.2:8053";
    let stale = [
        udp("192.0.2.7:4000", VIP, GONE),
        udp("192.0.2.7:4001", VIP, GONE),
        // Masqueraded.
        entry("udp", "192.0.2.8:4000", VIP, GONE, "10.244.1.1:61000"),
        // The pod itself.
        entry("udp", "10.244.1.2:4000", VIP, GONE, "10.244.1.1:61001"),
        // Another port of a real server that serves; and none: never translated, the address itself
        // answers.
        udp("192.0.2.9:2", VIP, "10.244.2.2:8054"),
        udp("192.0.2.9:3", VIP, VIP),
    ];
    let kept = [
        udp("192.0.2.9:1", VIP, SERVES),
        // Another port of the VIP.
        udp("192.0.2.9:4", "10.96.0.10:54", GONE),
        // The same port of another VIP, of a foreign address, of the real server itself.
        udp("192.0.2.9:5", "10.96.0.11:53", GONE),
        udp("192.0.2.9:6", "198.51.100.53:53", "198.51.100.53:53"),
        udp("192.0.2.9:7", "198.51.100.54:53", GONE),
        udp("192.0.2.9:8", GONE, GONE),
        // The other way round.
        udp(GONE, "192.0.2.9:9", VIP),
        // Other protocols, with the very tuple that is stale by UDP.
        entry("tcp", "192.0.2.7:4000", VIP, GONE, "192.0.2.7:4000"),
        entry("sctp", "192.0.2.7:4000", VIP, GONE, "192.0.2.7:4000"),
    ];
    check(&[(VIP, &[SERVES])], &stale, &kept);
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn ipv6_flows_go_as_exactly() {
    const VIP: &str = "[fd00:96::10]:53";
    const GONE: &str = "[fd00:10:244:1::2]:8053";
    let masqueraded = entry("udp", "[2001:db8::8]:4000", VIP, GONE, "[fd00:10:244:1::1]:61000");
    let stale = [udp("[2001:db8::7]:4000", VIP, GONE), masqueraded];
    let kept = [
        udp("[2001:db8::9]:1", VIP, "[fd00:10:244:2::2]:8053"),
        udp("[2001:db8::9]:2", "[fd00:96::11]:53", GONE),
        udp("[2001:db8::9]:3", "[fd00:96::10]:54", GONE),
        udp("[2001:db8::9]:4", "[2001:db8::53]:53", "[2001:db8::53]:53"),
        entry("tcp", "[2001:db8::7]:4000", VIP, GONE, "[2001:db8::7]:4000"),
        udp("192.0.2.7:4000", "10.96.0.10:53", "10.244.1.2:8053"),
    ];
    check(&[(VIP, &["[fd00:10:244:2::2]:8053"])], &stale, &kept);
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn all_flows_to_an_address_that_is_not_served_are_deleted() {
    const VIP: &str = "10.96.0.10:53";
    let stale = [udp("192.0.2.7:4000", VIP, VIP), udp("192.0.2.8:4000", VIP, "10.244.1.2:8053")];
    let kept = [udp("192.0.2.9:4000", "10.96.0.11:53", VIP)];
    check(&[(VIP, &[])], &stale, &kept);
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn a_flow_goes_in_whatever_zone_it_is() {
    const VIP: &str = "10.96.0.10:53";
    const GONE: &str = "10.244.1.2:8053";
    const OTHER: &str = "10.244.2.2:8053";
    // The same tuples in each zone; then in zones of one direction, where those of the other must differ.
    let everywhere = |from: &str, answered_by: &str| {
        let whole = ["", "-w 7 ", "-w 8 "].map(|zone| format!("{zone}{}", udp(from, VIP, answered_by)));
        let original = format!("--orig-zone 9 {}", entry("udp", from, VIP, answered_by, "192.0.2.1:61000"));
        let reply = format!("--reply-zone 9 {}", udp("192.0.2.8:4000", VIP, answered_by));
        [&whole[..], &[original, reply]].concat()
    };
    let kept = &everywhere("192.0.2.7:4001", OTHER)[..4];
    check(&[(VIP, &[OTHER])], &everywhere("192.0.2.7:4000", GONE), kept);
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn flows_of_several_services_and_both_families_go_at_once() {
    let stale = [
        udp("192.0.2.7:1", "10.96.0.10:53", "10.244.1.2:8053"),
        udp("192.0.2.7:2", "10.96.0.10:53", "10.244.2.2:8053"),
        udp("192.0.2.7:3", "192.0.2.1:30053", "10.244.1.2:8053"),
        udp("[2001:db8::7]:4", "[fd00:96::10]:53", "[fd00:10:244:1::2]:8053"),
    ];
    // What is right for one address is not for another.
    let kept = [
        udp("192.0.2.7:5", "192.0.2.1:30053", "10.244.2.2:8053"),
        udp("192.0.2.7:6", "198.51.100.1:30053", "10.244.1.2:8053"),
    ];
    let flows: [ButFor<'_>; 3] =
        [("10.96.0.10:53", &[]), ("192.0.2.1:30053", &["10.244.2.2:8053"]), ("[fd00:96::10]:53", &[])];
    check(&flows, &stale, &kept);
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn masquerade_all_forgets_every_flow_that_is_not_masqueraded() {
    const VIP: &str = "10.96.0.10:53";
    const OTHER_VIP: &str = "10.96.0.11:53";
    const SERVES: &str = "10.244.1.2:8053";
    const GONE: &str = "10.244.2.2:8053";
    const NODE: &str = "10.244.1.1:61000";
    let stale = [
        udp("192.0.2.7:4000", VIP, SERVES),
        udp("192.0.2.7:4001", VIP, GONE),
        entry("udp", "192.0.2.7:4002", VIP, GONE, "10.244.1.1:61001"),
        udp("192.0.2.7:4003", VIP, VIP),
        // It has another port, and goes back to where it came from all the same.
        entry("udp", "192.0.2.7:4004", VIP, SERVES, "192.0.2.7:61002"),
    ];
    let kept = [entry("udp", "192.0.2.7:4005", VIP, SERVES, NODE), udp("192.0.2.7:4006", OTHER_VIP, SERVES)];
    let flows = StaleFlows::unless_masqueraded([flows_to(&(VIP, &[SERVES]))]);
    check_all(&flows, &stale, &kept);
}

/// Flows of so many clients to one VIP.
fn crowd(number: u16, answered_by: &str) -> Vec<String> {
    (0..number).map(|port| udp(&format!("192.0.2.7:{}", 1000 + port), "10.96.0.10:53", answered_by)).collect()
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn a_thousand_entries_are_deleted_among_two_thousand() {
    let gone = crowd(1000, "10.244.1.2:8053");
    let kept: Vec<_> =
        crowd(1000, "10.244.2.2:8053").into_iter().map(|entry| format!("-w 1 {entry}")).collect();
    check(&[("10.96.0.10:53", &["10.244.2.2:8053"])], &gone, &kept);
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn a_table_that_changes_while_it_is_read_loses_all_stale_entries_and_no_other() {
    in_fresh_namespace(|| {
        let stale = crowd(500, "10.244.1.2:8053");
        let kept = [udp("192.0.2.9:4000", "10.96.0.10:53", "10.244.2.2:8053")];
        add(stale.iter().chain(&kept));
        let (stop, namespace) =
            (AtomicBool::new(false), std::fs::File::open("/proc/thread-self/ns/net").unwrap());
        thread::scope(|scope| {
            scope.spawn(|| {
                nix::sched::setns(namespace, CloneFlags::CLONE_NEWNET).unwrap();
                let come: Vec<_> = (0..200)
                    .map(|port| udp(&format!("192.0.2.8:{port}"), "10.96.0.12:53", "10.244.3.2:1"))
                    .collect();
                while !stop.load(Ordering::Relaxed) {
                    add(&come);
                    conntrack(&["-D", "-d", "10.96.0.12"], "");
                }
            });
            for round in 0..3 {
                let count = delete(&[("10.96.0.10:53", &["10.244.2.2:8053"])]);
                assert_eq!(count, stale.len(), "round {round}");
                add(&stale);
            }
            stop.store(true, Ordering::Relaxed);
        });
        let left: BTreeSet<_> = listed().into_iter().filter(|entry| !entry.contains("10.96.0.12")).collect();
        assert_eq!(left, stale.iter().chain(&kept).cloned().collect());
    });
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn nothing_asked_for_is_nothing_deleted() {
    in_fresh_namespace(|| {
        add(&[udp("192.0.2.7:4000", "10.96.0.10:53", "10.244.1.2:8053")]);
        assert_eq!(delete(&[]), 0);
        assert_eq!(listed().len(), 1);
    });
}
