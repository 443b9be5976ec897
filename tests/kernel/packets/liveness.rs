//! Whether endpoints answer, as the daemon finds out from IPVS' counters.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Result, ensure};
use ipvs::{Protocol, ServiceAddress};
use serde_json::json;
use testkit::{
    daemon::eventually,
    lab::{Answer, Manner},
};

use super::lost::command;
use crate::support::cluster::{Cluster, NO_PERIOD, Service, V4, V6, page, tcp};

const DNS: u16 = 53;

/// A client asks with little patience: most questions have no answer.
fn ask(cluster: &Cluster, at: ServiceAddress) -> Result<Answer> {
    let manner = Manner { patience: Duration::from_millis(300), ..Manner::default() };
    cluster.lab.client.ask_in(manner, at)
}

/// Clients ask each port of a Service in both families again and again, until the daemon knows what is expected.
fn until_known(cluster: &Cluster, ports: &[(Protocol, u16)], check: impl Fn() -> Result<()>) {
    eventually("it is known which endpoints answer", || {
        for ip in [V4, V6] {
            for (protocol, port) in ports {
                let at = ServiceAddress { protocol: *protocol, ..tcp(ip, *port) };
                for _ in 0..3 {
                    drop(ask(cluster, at));
                }
            }
        }
        check()
    })
    .unwrap();
}

fn printed(cluster: &Cluster, arguments: &[&str]) -> String {
    let output = command(cluster, arguments).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// Expects a line with each endpoint and what it does.
fn expect(text: &str, endpoints: &[(SocketAddr, &str)]) -> Result<()> {
    for (endpoint, does) in endpoints {
        let endpoint = endpoint.to_string();
        let mut lines = text.lines().filter(|line| line.contains(&endpoint));
        ensure!(lines.any(|line| line.contains(does)), "{endpoint} {does}\n{text}");
    }
    Ok(())
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn endpoints_that_refuse_and_that_are_silent_are_named_by_every_command() {
    let cluster = Cluster::start(3, &[NO_PERIOD]);
    let spec = json!({
        "clusterIPs": [V4, V6],
        "ports": [{ "name": "http", "port": 80 }, { "name": "dns", "port": DNS, "protocol": "UDP" }],
    });
    cluster.write(&Service::new("web", &spec).endpoints([1, 2, 3]));
    for ip in [V4, V6] {
        cluster.is_bound(ip.parse().unwrap(), true);
    }
    cluster.answers_by(2, "tcp", "reject with tcp reset");
    cluster.answers_by(2, "udp", "reject");
    cluster.answers_by(3, "tcp", "drop");
    cluster.answers_by(3, "udp", "drop");
    let pod = |number, ip: &str| cluster.pod_address(number, ip.parse().unwrap());
    until_known(&cluster, &[(Protocol::Tcp, 80), (Protocol::Udp, DNS)], || {
        let text = printed(&cluster, &["explain", "default/web"]);
        let parts: Vec<_> = text.split("\n\n").skip(1).collect();
        ensure!(parts.len() == 4, "{text}");
        for part in parts {
            let family = if part.contains("IPv4") { V4 } else { V6 };
            let expected = [
                (pod(1, family), ", answers,"),
                (pod(2, family), ", REFUSES for "),
                (pod(3, family), ", DOES NOT ANSWER for "),
            ];
            expect(part, &expected)?;
        }
        Ok(())
    });
    let text = printed(&cluster, &["status"]);
    assert!(text.contains("endpoints:       4 DO NOT ANSWER, 4 REFUSE; 4 answer"), "{text}");
    let text = page(&cluster.lab.node, "/metrics").unwrap();
    assert!(text.contains("kube_ipvs_endpoints{state=\"refuses\"} 4\n"), "{text}");
    assert!(text.contains("kube_ipvs_endpoints{state=\"silent\"} 4\n"), "{text}");
    assert_eq!(text.matches("\nkube_ipvs_endpoint_failing_seconds{").count(), 8, "{text}");

    until_known(&cluster, &[(Protocol::Tcp, 80), (Protocol::Udp, DNS)], || {
        let log = cluster.daemon().log();
        for family in [V4, V6] {
            expect(&log, &[(pod(2, family), "REFUSES for 1"), (pod(3, family), "DOES NOT ANSWER for 1")])?;
        }
        Ok(())
    });
    for number in [2, 3] {
        cluster.answers_again(number);
    }
    until_known(&cluster, &[(Protocol::Tcp, 80), (Protocol::Udp, DNS)], || {
        let text = page(&cluster.lab.node, "/metrics")?;
        ensure!(text.contains("kube_ipvs_endpoints{state=\"answers\"} 12\n"), "{text}");
        let text = printed(&cluster, &["status"]);
        ensure!(!text.contains("ANSWER"), "{text}");
        Ok(())
    });
    assert!(cluster.daemon().log().contains("no longer fails"), "{}", cluster.daemon().log());
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn connections_without_an_answer_are_not_called_active() {
    let cluster = Cluster::start(1, &[NO_PERIOD]);
    let spec = json!({ "clusterIPs": [V4, V6], "ports": [{ "port": 80 }] });
    cluster.write(&Service::new("web", &spec).endpoints([1]));
    cluster.is_bound(V4.parse().unwrap(), true);
    cluster.answers_by(1, "tcp", "drop");
    for _ in 0..3 {
        ask(&cluster, tcp(V4, 80)).unwrap_err();
    }
    let text = printed(&cluster, &["explain", "default/web"]);
    assert!(text.contains("0 active and 0 inactive connections, 3 without an answer (SYN_RECV)"), "{text}");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn without_estimators_it_is_said_that_nothing_is_known() {
    let cluster = Cluster::start(1, &[NO_PERIOD]);
    cluster.lab.node.run("sysctl", &["-w", "net.ipv4.vs.run_estimation=0"]).unwrap();
    eventually("it is said", || {
        let text = printed(&cluster, &["status"]);
        ensure!(text.contains("not known whether they answer: net.ipv4.vs.run_estimation is 0"), "{text}");
        Ok(())
    })
    .unwrap();
}
