//! The steps of the demo, inside the test kernel: each checks what it shows.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
};

use anyhow::{Context as _, Result, ensure};
use testkit::{
    daemon::{Daemon, ipvsadm_shows},
    lab::{Host, Lab},
};

use super::Feed;

const WEB: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::new(10, 96, 0, 10)), 80);
const DNS: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::new(10, 96, 0, 53)), 53);

/// The line of `manifests/demo/web.yaml` that is taken out.
const SECOND_ENDPOINT: &str = "10.244.2.2";

/// Runs every step; the error names the one that failed.
pub(super) fn tell(api: bool) -> Result<()> {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease")?;
    say(&format!("Linux {}: a node, two pods and a client outside, each a network namespace", kernel.trim()));
    let lab = Lab::new(2, 8080).context("step 0: network namespaces")?;
    let feed = if api { Feed::api() } else { Feed::directory() }.context("step 0: the source of Services")?;
    feed.reach_from(&lab.node).context("step 0: the source of Services")?;
    feed.put("node.yaml", None).context("step 0: the Node")?;

    let daemon = first_service(&lab, &feed).context("step 1: a Service in the kernel")?;
    requests(&lab, WEB).context("step 2: requests")?;
    endpoint_goes(&lab, &feed).context("step 3: an endpoint goes")?;
    resync(&lab, &daemon).context("step 4: resync after ipvsadm -C")?;
    daemon.kill().context("step 5: stopping the daemon")?;
    schedulers(&lab, &feed).context("step 5: other schedulers")?;
    println!("demo: ok");
    Ok(())
}

fn first_service(lab: &Lab, feed: &Feed) -> Result<Daemon> {
    step(1, "the daemon runs; a Service with two endpoints is applied");
    feed.put("web.yaml", None)?;
    let daemon = feed.daemon(&lab.node, &[])?;
    let table = ipvsadm_shows(&lab.node, "the Service with both endpoints", |table| {
        table.contains("TCP  10.96.0.10:80 rr") && table.matches("-> 10.244").count() == 2
    })
    .with_context(|| format!("kube-ipvs said:\n{}", daemon.log()))?;
    show("ipvsadm -Ln", &table);
    Ok(daemon)
}

fn requests(lab: &Lab, service: SocketAddr) -> Result<()> {
    step(2, &format!("requests to {service}, from the client and from the node itself"));
    for host in [&lab.client, &lab.node] {
        let mut previous = String::new();
        let mut line = format!("  {}:", host.name);
        for _ in 0..4 {
            let answer = host.ask(service)?;
            ensure!(answer.from != previous, "{} answered twice in a row: not round robin", answer.from);
            line.extend([" ", &answer.from, " (saw ", &answer.seen_as.to_string(), ")"]);
            previous = answer.from;
        }
        println!("{line}");
    }
    Ok(())
}

fn endpoint_goes(lab: &Lab, feed: &Feed) -> Result<()> {
    step(3, &format!("the endpoint {SECOND_ENDPOINT} is taken out of the slice"));
    feed.put("web.yaml", Some(SECOND_ENDPOINT))?;
    // The connections of step 2 are closing: until the last has ended its endpoint has weight 0.
    let table = ipvsadm_shows(&lab.node, "no new connection for the endpoint", |table| {
        !table.contains(SECOND_ENDPOINT)
            || table.contains(&format!("{SECOND_ENDPOINT}:8080              Masq    0"))
    })?;
    show("ipvsadm -Ln", &table);
    let answers = who_answers(&lab.client, 4)?;
    ensure!(answers == BTreeSet::from(["pod-1".to_owned()]), "these answered: {answers:?}");
    println!("  client: only pod-1 answers; waiting for the last connection to end");
    let table = testkit::daemon::eventually_within(
        std::time::Duration::from_secs(150),
        "the endpoint gone from the kernel",
        || {
            let table = lab.node.run("ipvsadm", &["-Ln"])?;
            ensure!(!table.contains(SECOND_ENDPOINT), "ipvsadm -Ln shows:\n{table}");
            Ok(table)
        },
    )?;
    show("ipvsadm -Ln", &table);
    feed.put("web.yaml", None)?;
    ipvsadm_shows(&lab.node, "the endpoint back", |table| table.contains("10.244.2.2:8080"))?;
    println!("  the endpoint is put back: it is there again");
    Ok(())
}

fn resync(lab: &Lab, daemon: &Daemon) -> Result<()> {
    step(4, "ipvsadm -C clears the table behind the daemon's back; kube-ipvs resync restores it");
    let before = lab.node.run("ipvsadm", &["-Sn"])?;
    lab.node.run("ipvsadm", &["-C"])?;
    print!("{}", daemon.ask(&lab.node, "resync")?);
    let after = lab.node.run("ipvsadm", &["-Sn"])?;
    ensure!(sorted(&before) == sorted(&after), "before:\n{before}after:\n{after}");
    show("ipvsadm -Ln", &lab.node.run("ipvsadm", &["-Ln"])?);
    who_answers(&lab.client, 2)?;
    Ok(())
}

fn schedulers(lab: &Lab, feed: &Feed) -> Result<()> {
    step(5, "a second Service, and other schedulers: changed in place, nothing is deleted");
    feed.put("dns.yaml", None)?;
    for scheduler in ["wrr", "lc", "sh"] {
        let daemon = feed.daemon(&lab.node, &["--ipvs-scheduler", scheduler])?;
        let table = ipvsadm_shows(&lab.node, "both Services with the scheduler", |table| {
            let listed = |prefix: &str| table.contains(&format!("{prefix} {scheduler}"));
            listed("TCP  10.96.0.10:80") && listed("UDP  10.96.0.53:53") && listed("TCP  10.96.0.53:53")
        })
        .with_context(|| format!("kube-ipvs --ipvs-scheduler={scheduler} said:\n{}", daemon.log()))?;
        show(&format!("--ipvs-scheduler={scheduler}: ipvsadm -Ln"), &table);
        let answer = lab.client.ask_udp(DNS)?;
        println!("  client: {DNS} by UDP is answered by {}", answer.from);
        daemon.kill()?;
    }
    Ok(())
}

/// Asks the web Service several times, and says who answered.
fn who_answers(host: &Host, times: usize) -> Result<BTreeSet<String>> {
    (0..times).map(|_| Ok(host.ask(WEB)?.from)).collect()
}

fn sorted(lines: &str) -> Vec<&str> {
    let mut lines: Vec<_> = lines.lines().collect();
    lines.sort_unstable();
    lines
}

fn step(number: u8, what: &str) {
    say(&format!("{number}. {what}"));
}

fn say(what: &str) {
    println!("\n== {what}");
}

fn show(what: &str, text: &str) {
    println!("  $ {what}");
    for line in text.lines() {
        println!("  {line}");
    }
}
