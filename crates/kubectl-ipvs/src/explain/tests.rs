use serde_json::{Value, json};

use super::{
    super::tests::canned::{Canned, answers},
    *,
};

/// A node's own address.
fn node_ip(last: u8) -> String {
    format!("192.168.50.{last}")
}

/// What the kernel has at an address: two real servers, each with so many connections.
fn virtual_server(ip: &str, port: u16, connections: u32) -> Value {
    let real_server = |last: u8, weight: u32| {
        json!({
            "config": {
                "address": { "ip": format!("10.244.0.{last}"), "port": 8080 }, "forwarding": "masquerade",
                "weight": weight, "upper_threshold": 0, "lower_threshold": 0,
                "tunnel": { "kind": "ipip", "port": 0, "flags": 0 },
            },
            "active_connections": connections, "inactive_connections": 1, "persistent_connections": 0,
            "stats": {
                "connections": connections, "packets_in": 1, "packets_out": 1, "bytes_in": 1, "bytes_out": 1,
                "connections_per_second": 0, "packets_in_per_second": 0, "packets_out_per_second": 0,
                "bytes_in_per_second": 0, "bytes_out_per_second": 0,
            },
        })
    };
    json!({
        "address": { "protocol": "TCP", "ip": ip, "port": port },
        "scheduler": "rr",
        "real_servers": [real_server(1, 1), real_server(2, 1)],
    })
}

/// What a node answers, with so many connections at each real server of each virtual server.
fn answer(node: u8, connections: u32) -> Value {
    let at = |ip: &str, port: u16, kind: &str, vip: bool| {
        json!({
            "address": { "protocol": "TCP", "ip": ip, "port": port }, "kind": kind, "policy": "Cluster",
            "vip": vip, "held_by": null, "allowed_sources": null,
        })
    };
    let endpoint = |last: u8| {
        json!({
            "address": { "ip": format!("10.244.0.{last}"), "port": 8080 },
            "slice": "default/web-1", "verdict": "used", "weight": 1,
        })
    };
    json!({
        "service": "default/web",
        "not_served": null,
        "balancing": null,
        "parts": [{
            "port": "", "protocol": "TCP", "family": "IPv4",
            "choice": { "use": "ready", "reach": "cluster" },
            "stands_in": false, "zone": format!("zone-{node}"), "hints_ignored": null,
            "addresses": [at("10.96.0.10", 80, "cluster-ip", true), at(&node_ip(node), 30080, "node-port", false)],
            "endpoints": [endpoint(1), endpoint(2)],
            "slices_without_port": [],
        }],
        "unused_slices": [],
        "refused": [],
        "health_check": { "port": 32000, "ready_v4": node, "ready_v6": 0 },
        "problems": [],
        "kernel": [virtual_server("10.96.0.10", 80, connections), virtual_server(&node_ip(node), 30080, 0)],
    })
}

fn canned(node: u8, connections: u32, change: impl FnOnce(&mut Value)) -> Canned {
    let mut answer = answer(node, connections);
    change(&mut answer);
    Canned::answer(0, &answer)
}

#[test]
fn nodes_that_agree_but_for_what_is_their_own_give_one_answer_with_all_connections() {
    let answers = answers::<Answer>(&[
        ("a", canned(1, 3, |_| {})),
        ("b", canned(2, 4, |_| {})),
        (
            "c",
            canned(3, 0, |answer| {
                // It has a second address, and another one drains.
                let addresses = answer["parts"][0]["addresses"].as_array_mut().unwrap();
                let mut second = addresses[1].clone();
                second["address"]["ip"] = json!("192.168.60.3");
                addresses.push(second);
                let kernel = answer["kernel"].as_array_mut().unwrap();
                let mut drains = kernel[0]["real_servers"][0].clone();
                (drains["config"]["address"]["ip"], drains["config"]["weight"]) =
                    (json!("10.244.0.9"), json!(0));
                kernel[0]["real_servers"].as_array_mut().unwrap().push(drains);
                kernel.push(virtual_server("192.168.60.3", 30080, 0));
            }),
        ),
    ]);
    let expected = "\
3 nodes:
default/web

TCP, IPv4: the ready endpoints of the cluster
  TCP 10.96.0.10:80   ClusterIP, internalTrafficPolicy Cluster
  TCP 0.0.0.0:30080   NodePort, externalTrafficPolicy Cluster
  10.244.0.1:8080     used, default/web-1, 7 active and 7 inactive connections
  10.244.0.2:8080     used, default/web-1, 7 active and 7 inactive connections
";
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(words(&text(&answers)), words(expected), "{}", text(&answers));
}

#[test]
fn nodes_differ_by_endpoints_that_fail_and_not_by_how_long_or_by_idle_ones() {
    let does = |liveness: &'static str, seconds: u32| {
        move |answer: &mut Value| {
            answer["parts"][0]["endpoints"][1]["answering"] =
                json!({ "liveness": liveness, "for": seconds, "failed_connections": seconds });
        }
    };
    let answers = answers::<Answer>(&[
        ("a", canned(1, 1, does("answers", 3))),
        ("b", canned(2, 1, does("idle", 9))),
        ("c", canned(3, 1, |_| {})),
        ("d", canned(4, 1, does("silent", 4))),
        ("e", canned(5, 1, does("silent", 7))),
    ]);
    let text = text(&answers);
    assert!(text.starts_with("3 nodes:\n"), "{text}");
    assert!(text.contains("\nd, e:\n"), "{text}");
    let differs = |line: &&str| line.starts_with("+ ");
    assert_eq!(text.lines().filter(differs).count(), 1, "{text}");
    assert!(text.contains("DOES NOT ANSWER for 4 s (4 connections)"), "{text}");
}

#[test]
fn nodes_that_have_ejected_an_endpoint_at_different_times_give_one_answer() {
    let ejected_for = |seconds: u32| {
        move |answer: &mut Value| {
            answer["parts"][0]["endpoints"][1]["weight_parts"] = json!({
                "base": 1, "distance": null, "scale": 100,
                "share": { "is": "ejected", "cause": "silent", "for": seconds },
            });
        }
    };
    let answers =
        answers::<Answer>(&[("a", canned(1, 1, ejected_for(3))), ("b", canned(2, 1, ejected_for(8)))]);
    let text = text(&answers);
    assert!(text.starts_with("2 nodes:\n"), "{text}");
    assert!(!text.lines().any(|line| line.starts_with("+ ")), "{text}");
}

#[test]
fn nodes_that_differ_say_how_and_those_without_an_answer_why() {
    let not_ready = |answer: &mut Value| {
        answer["parts"][0]["endpoints"][1]["verdict"] = json!("not-ready");
        for server in answer["kernel"].as_array_mut().unwrap() {
            server["real_servers"].as_array_mut().unwrap().pop();
        }
    };
    let lost = |answer: &mut Value| {
        let server = &mut answer["kernel"][0];
        (server["scheduler"], server["real_servers"]) = (Value::Null, Value::Null);
    };
    let word_of_tomorrow = |answer: &mut Value| {
        answer["parts"][0]["endpoints"][1]["verdict"] = json!("of-tomorrow");
    };
    let answers = answers::<Answer>(&[
        ("a", canned(1, 1, |_| {})),
        ("b", canned(2, 1, not_ready)),
        ("c", canned(3, 1, |_| {})),
        ("d", canned(4, 1, lost)),
        ("e", Canned::TimesOut),
        ("f", canned(5, 1, word_of_tomorrow)),
    ]);
    let text = text(&answers);
    let expected = "\
b:
- 10.244.0.2:8080    used, default/web-1, 2 active and 4 inactive connections
+ 10.244.0.2:8080    not used: conditions.ready is false, default/web-1

d:
- TCP 10.96.0.10:80  ClusterIP, internalTrafficPolicy Cluster
+ TCP 10.96.0.10:80  ClusterIP, internalTrafficPolicy Cluster, MISSING in the kernel

";
    assert!(text.starts_with("2 nodes:\ndefault/web\n"), "{text}");
    let (_, differing) = text.split_once("\n\nb:").unwrap();
    let (differing, silent) = differing.split_once("NODE").unwrap();
    assert_eq!(format!("b:{differing}"), expected, "{text}");
    let silent: Vec<_> = silent.lines().skip(1).map(|line| line.split_once(' ').unwrap().0).collect();
    assert_eq!(silent, ["f", "e", "4"], "{text}");
}

/// A node's answer about an address, or about a port at which these Services are served.
fn address(vip: bool, port: Option<u16>, served: &[Value]) -> Canned {
    let explanation = json!({
        "ip": "10.96.0.10", "owner": "nobody", "vip": vip, "uses": [], "refused": [], "port": port, "served": served,
        "endpoint_of": [], "asked_by": [], "node_port_of": [], "node_port_addresses": [], "kernel": [],
    });
    Canned::answer(0, &explanation)
}

#[test]
fn an_address_is_explained_once_by_the_nodes_that_agree_and_by_each_other_one() {
    let answers = answers::<AddressAnswer>(&[
        ("a", address(true, None, &[])),
        ("b", address(false, None, &[])),
        ("c", address(true, None, &[])),
        ("d", Canned::TimesOut),
    ]);
    let text = address_text(&answers);
    let (agree, rest) = text.split_once("\n\nb:\n").unwrap();
    assert!(
        agree.starts_with("2 nodes:\n10.96.0.10: ") && agree.ends_with("bound to this node as a VIP"),
        "{text}"
    );
    assert!(rest.contains("not bound as a VIP") && rest.contains("timed out"), "{text}");
}

#[test]
fn nodes_give_one_answer_about_an_address_for_however_long_its_endpoints_fail() {
    let silent = |node: u8, seconds: u32| {
        let mut served = answer(node, 0);
        served.as_object_mut().unwrap().remove("kernel");
        served["parts"][0]["endpoints"][1]["answering"] =
            json!({ "liveness": "silent", "for": seconds, "failed_connections": seconds });
        address(true, Some(80), &[served])
    };
    let text = address_text(&answers::<AddressAnswer>(&[("a", silent(1, 4)), ("b", silent(1, 7))]));
    assert!(text.starts_with("2 nodes:\n") && text.contains("DOES NOT ANSWER for 4 s"), "{text}");
}
