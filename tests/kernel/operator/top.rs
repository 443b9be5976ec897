//! `kube-ipvs top` shows real traffic, with the names of Services and without.

use std::{process::Command, thread, time::Duration};

use anyhow::{Context, ensure};
use serde_json::Value;
use testkit::daemon::{binary, eventually_within};

use crate::support::cluster::{Cluster, NO_PERIOD, Service, V4, V6, at};

/// The kernel counts every two seconds; software emulation is slow.
const PATIENCE: Duration = Duration::from_secs(60);

fn top(cluster: &Cluster, flags: &[&str]) -> Command {
    let mut top = cluster.lab.node.command(&binary().unwrap().to_string_lossy());
    top.args(["top", "-b", "-d2", "-n1"]).args(flags);
    top
}

fn frame(cluster: &Cluster, flags: &[&str]) -> anyhow::Result<Value> {
    let output = top(cluster, &[flags, &["-o", "json"]].concat()).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// The row of a Service, or of the virtual server at an address.
fn row<'a>(frame: &'a Value, name: &str) -> anyhow::Result<&'a Value> {
    let is_it = |row: &&Value| row["service"] == name || row["virtual_servers"][0]["address"]["ip"] == name;
    frame["services"].as_array().context("rows")?.iter().find(is_it).with_context(|| format!("{frame:#}"))
}

fn number(of: &Value, field: &str) -> f64 {
    of[field].as_f64().unwrap_or_default()
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn requests_and_connections_are_shown_at_their_service_and_real_server() {
    let cluster = Cluster::start(2, &[NO_PERIOD]);
    let (busy, idle) = (Service::tcp(V4).endpoints([1]), Service::tcp(V6).endpoints([2]));
    cluster.apply(&busy);
    cluster.apply(&idle);
    let socket = cluster.daemon().socket().to_str().unwrap();
    let mut open = cluster.lab.client.connect(at(V4, 80)).unwrap();
    open.still_works().unwrap();

    let asked = thread::scope(|scope| {
        let top = scope.spawn(|| frame(&cluster, &["--control-socket", socket]));
        while !top.is_finished() {
            cluster.lab.client.ask(at(V4, 80)).unwrap();
        }
        top.join().unwrap().unwrap()
    });
    let shown = row(&asked, &format!("default/{}", busy.name())).unwrap();
    assert!(number(shown, "active_connections") >= 1.0, "{shown:#}");
    for rate in ["connections", "packets_in", "packets_out", "bytes_in", "bytes_out"] {
        assert!(number(shown, &format!("{rate}_per_second")) > 0.0, "{rate}: {shown:#}");
    }
    let [real_server] = &shown["real_servers"].as_array().unwrap()[..] else { panic!("{shown:#}") };
    let pod = cluster.pod_address(1, V4.parse().unwrap());
    assert_eq!(real_server["address"]["ip"], pod.ip().to_string());
    assert!(number(real_server, "bytes_out_per_second") > 0.0, "{real_server:#}");
    let shown = row(&asked, &format!("default/{}", idle.name())).unwrap();
    assert!(number(shown, "packets_in") == 0.0 && number(shown, "bytes_out_per_second") == 0.0, "{shown:#}");
    open.still_works().unwrap();
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn totals_and_connections_are_those_that_ipvsadm_shows() {
    let cluster = Cluster::start(1, &[NO_PERIOD]);
    cluster.apply(&Service::tcp(V4).endpoints([1]));
    let _open = cluster.lab.client.connect(at(V4, 80)).unwrap();
    for _ in 0..5 {
        cluster.lab.client.ask(at(V4, 80)).unwrap();
    }
    let socket = cluster.daemon().socket().to_str().unwrap();
    eventually_within(PATIENCE, "both show the same", || {
        let frame = frame(&cluster, &["--control-socket", socket])?;
        let stats = cluster.lab.node.run("ipvsadm", &["-Ln", "--stats", "--exact"])?;
        let line = stats.lines().find(|line| line.starts_with(&format!("TCP  {V4}:80"))).context("a line")?;
        let theirs: Vec<&str> = line.split_whitespace().skip(2).collect();
        let service = &frame["services"][0];
        let ours = ["connections", "packets_in", "packets_out", "bytes_in", "bytes_out"];
        ensure!(ours.map(|field| service[field].to_string()) == theirs[..], "{theirs:?} and not {service:#}");
        ensure!(service["connections"] == 6, "not counted yet: {service:#}");
        Ok(())
    })
    .unwrap();
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_handshake_that_a_dead_pod_does_not_answer_is_shown_apart() {
    let cluster = Cluster::start(1, &[NO_PERIOD]);
    cluster.apply(&Service::tcp(V4).endpoints([1]));
    let mut open = cluster.lab.client.connect(at(V4, 80)).unwrap();
    open.still_works().unwrap();
    let deaf = "add table inet deaf { chain input { type filter hook input priority 0; policy drop; }; }";
    cluster.lab.pods[0].run("nft", &[deaf]).unwrap();
    cluster.lab.client.connect(at(V4, 80)).unwrap_err();

    let shown = frame(&cluster, &["--control-socket", "/run/none.sock"]).unwrap();
    let row = row(&shown, V4).unwrap();
    for shown in [row, &row["real_servers"][0]] {
        assert_eq!((&shown["active_connections"], &shown["syn_recv_connections"]), (&2.into(), &1.into()));
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn without_the_daemon_there_are_addresses_and_it_says_why() {
    let cluster = Cluster::start(1, &[NO_PERIOD]);
    cluster.apply(&Service::tcp(V4).endpoints([1]));
    let output = top(&cluster, &["--control-socket", "/run/none.sock"]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(
        said,
        "kube-ipvs: showing addresses instead of Services: no daemon answers at /run/none.sock: is kube-ipvs running \
         on this node?\n"
    );
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("SERVICE "), "{text}");
    let names: Vec<_> = text.lines().skip(1).map(|line| line.split("  ").find(|it| !it.is_empty())).collect();
    let pod = cluster.pod_address(1, V4.parse().unwrap());
    assert_eq!(names, [Some(&*format!("TCP {V4}:80")), Some(&*format!("-> {pod}"))], "{text}");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_closed_pipe_ends_top() {
    let cluster = Cluster::start(0, &[NO_PERIOD]);
    let program = binary().unwrap();
    let command = format!("timeout 30 {} top -d 0.1 | head -n 1", program.display());
    let head = cluster.lab.node.run("bash", &["-o", "pipefail", "-c", &command]).unwrap();
    assert!(head.starts_with("SERVICE "), "{head}");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_signal_leaves_the_terminal_as_it_was() {
    let cluster = Cluster::start(0, &[NO_PERIOD]);
    let program = binary().unwrap();
    for (signal, status) in [("TERM", "143"), ("INT", "130"), ("HUP", "129")] {
        let inside = format!(
            "stty rows 24 cols 80; stty -g; timeout --foreground --preserve-status -s {signal} 5 {} top; status=$?; echo; \
             echo $status; stty -g",
            program.display()
        );
        let shown = cluster.lab.node.run("script", &["-qec", &inside, "/dev/null"]).unwrap();
        let (entered, left) = ("\x1b[?1049h", "\x1b[?1049l");
        assert!(shown.contains(entered) && shown.contains(left), "{signal}: the whole terminal:\n{shown}");
        let lines: Vec<_> = shown.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
        let [before, .., ended, after] = &lines[..] else { panic!("{signal}:\n{shown}") };
        assert_eq!((before, *ended), (after, status), "{signal}:\n{shown}");
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn top_prints_as_many_rounds_as_it_is_asked_for() {
    let cluster = Cluster::start(0, &[NO_PERIOD]);
    cluster.apply(&Service::tcp(V4));
    let inside = format!("{} top -d 0.1 -n 1", binary().unwrap().display());
    let shown = cluster.lab.node.run("script", &["-qec", &inside, "/dev/null"]).unwrap();
    assert!(shown.contains("SERVICE ") && shown.contains(V4), "{shown}");
    assert!(!shown.contains('\x1b'), "it is text alone: {shown:?}");
}
