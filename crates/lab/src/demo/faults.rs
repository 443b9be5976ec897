//! What goes wrong on a node, and what kube-ipvs does about it or says of it.

use std::{
    process::Stdio,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use testkit::{
    daemon::{Daemon, binary, ipvsadm_shows},
    lab::Lab,
};

use super::{SECOND_ENDPOINT, WEB, feed::Feed, show, step, who_answers};

/// The time between two connections of the client.
const PAUSE: Duration = Duration::from_millis(200);

/// What lets a pod receive nothing any more, and a node drop the answers of its pods.
const SILENCE: &str = "add table ip silence
add chain ip silence input { type filter hook input priority 0; policy drop; }
";
const FIREWALL: &str = "add table ip firewall
add chain ip firewall guard { type filter hook forward priority 0; }
add rule ip firewall guard ip saddr 10.244.0.0/16 drop
";

/// A pod goes silent, and gets no new connections.
pub(super) fn pod_goes_silent(lab: &Lab, feed: &Feed, daemon: &Daemon) -> Result<()> {
    step(
        5,
        "a pod goes silent, and Kubernetes does not notice; the Service has kube-ipvs.io/eject: \"silent\"",
    );
    let annotations = "  annotations: {kube-ipvs.io/eject: silent}\n";
    feed.put_changed("web.yaml", |text| {
        text.replacen("  name: web\n", &format!("  name: web\n{annotations}"), 1)
    })?;
    ipvsadm_shows(&lab.node, "weights that leave room for shares", |table| table.contains("Masq    100"))?;
    let pod = lab.pods.get(1).context("a second pod")?;
    pod.run("nft", &[SILENCE])?;
    let begun = Instant::now();
    let seconds = while_clients_connect(lab, || {
        ipvsadm_shows(&lab.node, "the silent pod has weight 0", |table| {
            table.lines().any(|line| line.contains(SECOND_ENDPOINT) && line.contains("Masq    0"))
        })?;
        Ok(begun.elapsed().as_secs_f64())
    })?;
    println!("  after {seconds:.1} s it gets no new connections on this node:");
    let explained = ask(lab, daemon, &["explain", "default/web"])?;
    let endpoints: Vec<_> = explained.lines().filter(|line| line.contains(":8080")).map(str::trim).collect();
    ensure!(endpoints.iter().any(|line| line.contains("ejected")), "kube-ipvs explain printed\n{explained}");
    show("kube-ipvs explain default/web", &endpoints.join("\n"));
    println!("  client: only {:?} answer", who_answers(&lab.client, 4)?);
    pod.run("nft", &["flush ruleset"])?;
    feed.put("web.yaml")?;
    ipvsadm_shows(&lab.node, "both pods have weight 1", |table| {
        table.matches(":8080              Masq    1 ").count() == 2
    })?;
    Ok(())
}

/// Another program's rule drops what the pods answer, and `trace` names it.
pub(super) fn rule_drops(lab: &Lab, daemon: &Daemon) -> Result<()> {
    step(6, "another program's firewall drops the answers of the pods; kube-ipvs trace names its rule");
    lab.node.run("nft", &[FIREWALL])?;
    let trace = ["trace", "default/web", "--count", "1"];
    let traced = while_clients_connect(lab, || ask(lab, daemon, &trace))?;
    ensure!(traced.contains("was dropped by ip firewall guard, rule 1"), "kube-ipvs trace printed\n{traced}");
    // The client repeats what is not answered, and the trace shows each packet: the last answer is enough.
    let lines: Vec<_> = traced.trim_end().lines().collect();
    let last = lines.iter().rposition(|line| line.starts_with("answer")).unwrap_or_default();
    let shown = [&["…"][..], lines.get(last..).unwrap_or_default()].concat();
    show(&format!("kube-ipvs {}", trace.join(" ")), &shown.join("\n"));
    lab.node.run("nft", &["delete table ip firewall"])?;
    println!("  the rule is removed: {:?} answer", who_answers(&lab.client, 4)?);
    Ok(())
}

/// What a command of the program prints on the node.
fn ask(lab: &Lab, daemon: &Daemon, arguments: &[&str]) -> Result<String> {
    let mut command = lab.node.command(&binary()?.to_string_lossy());
    command.args(arguments).arg("--control-socket").arg(daemon.socket()).stderr(Stdio::null());
    // `trace` fails if what it followed was dropped.
    Ok(String::from_utf8(command.output()?.stdout)?)
}

/// Does something while the client connects again and again. Whether it is answered does not matter here.
fn while_clients_connect<T>(lab: &Lab, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let ended = &AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                scope.spawn(move || drop(lab.client.ask(WEB)));
                thread::sleep(PAUSE);
            }
        });
        let done = work();
        ended.store(true, Ordering::Relaxed);
        done
    })
}
