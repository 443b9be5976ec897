use serde_json::{Value, json};

use super::{
    super::tests::canned::{Canned, answers},
    *,
};

/// A status of this version in which nothing is wrong.
fn well() -> Value {
    // The example is what `kube-ipvs status` prints: a test of it compares them.
    let status = include_str!("../../../../docs/json/status.json");
    let mut status: Value = serde_json::from_str(status).unwrap();
    (status["synced"], status["standing"]) = (json!(true), json!("synced"));
    (status["problems"], status["advice"]) = (json!([]), json!([]));
    status["last_sync"]["report"]["failures"] = json!([]);
    status
}

fn with(change: impl FnOnce(&mut Value)) -> Value {
    let mut status = well();
    change(&mut status);
    status
}

#[test]
fn nodes_with_trouble_come_first_then_those_that_differ_and_the_rest_is_counted() {
    let failing = with(|status| {
        status["last_sync"]["report"]["failures"] =
            json!(["add virtual server TCP 10.96.0.10:81 mh: no such scheduler (ENOENT)"]);
    });
    let said = "kube-ipvs: the check failed: NOT in sync: syncs have been failing for 42 s";
    let firewall = with(|status| {
        status["advice"] = json!([
            { "severity": "warning", "cause": "of tomorrow", "what": "the host's firewall may drop packets", "remedy": "--host-firewall=accept" },
            { "severity": "note", "cause": "timeouts", "what": "it forgets", "remedy": "keepalives" },
        ]);
    });
    let newer = with(|status| {
        (status["daemon"]["version"], status["of_tomorrow"]) = (json!("0.2.0"), json!({ "a": 1 }));
    });
    let answers = answers::<NodeStatus>(&[
        ("node-1", Canned::answer(0, &well())),
        ("node-2", Canned::answer(1, &failing).saying(said).saying("command terminated with exit code 1")),
        ("node-3", Canned::TimesOut),
        ("node-4", Canned::answer(0, &newer)),
        ("node-5", Canned::answer(0, &well())),
        ("node-6", Canned::answer(0, &firewall)),
        ("node-7", Canned::Pod("Pending")),
        ("node-8", Canned::answer(0, &well())),
    ]);
    let expected = "\
NODE     STATUS
node-2   not in order, 0.1.0
         the check failed: NOT in sync: syncs have been failing for 42 s
         failed: add virtual server TCP 10.96.0.10:81 mh: no such scheduler (ENOENT)
node-7   no answer: its pod kube-ipvs-node-7 is Pending
node-3   no answer: timed out after 30 s
node-6   in order, 0.1.0
         warning: the host's firewall may drop packets; remedy: --host-firewall=accept
node-4   in order, 0.2.0
3 nodes  in order, 0.1.0
";
    assert_eq!(status(&answers), expected);
    assert!(include_str!("../../../../docs/commands.md").contains(expected), "docs/commands.md shows it");
}

#[test]
fn a_problem_of_an_object_that_all_nodes_have_is_one_row_and_all_are_in_order() {
    let problems: Vec<_> = (1..=7).map(|number| format!("default/web-{number}: it is wrong")).collect();
    let answer = with(|status| status["problems"] = json!(problems));
    let nodes = ["a", "b", "c", "d", "e"].map(|node| (node, Canned::answer(0, &answer)));
    let answers = answers::<NodeStatus>(&nodes);
    let expected = "\
NODE                STATUS
a, b, c and 2 more  in order, 0.1.0
                    problem: default/web-1: it is wrong
                    problem: default/web-2: it is wrong
                    problem: default/web-3: it is wrong
                    problem: default/web-4: it is wrong
                    problem: default/web-5: it is wrong
                    and 2 more
";
    assert_eq!(status(&answers), expected);
    assert!(answers.iter().all(Answered::is_in_order));
}

fn operations(texts: &[&str]) -> Value {
    let operations: Vec<_> =
        texts.iter().map(|text| json!({ "operation": "add-virtual-server", "text": text })).collect();
    json!({ "operations": operations, "troubles": [] })
}

#[test]
fn each_node_has_its_operations_and_those_without_are_counted() {
    let lost = ["add virtual server TCP 10.96.0.10:80 rr", "bind 10.96.0.10"];
    let many: Vec<_> = (1..=12).map(|last| format!("bind 10.96.0.{last}")).collect();
    let many: Vec<_> = many.iter().map(String::as_str).collect();
    let doubt = json!({ "operations": [], "troubles": ["API server: nodes not watched for 3 s"] });
    let answers = answers::<Difference>(&[
        ("a", Canned::answer(0, &operations(&[]))),
        ("b", Canned::answer(1, &operations(&lost))),
        ("c", Canned::answer(0, &operations(&[]))),
        ("d", Canned::answer(1, &operations(&many))),
        ("e", Canned::TimesOut),
        ("f", Canned::answer(0, &doubt)),
        ("g", Canned::answer(1, &operations(&lost))),
    ]);
    let expected = "\
NODE     DIFFERENCE
d        12 operations
         bind 10.96.0.1
         bind 10.96.0.2
         bind 10.96.0.3
         bind 10.96.0.4
         bind 10.96.0.5
         bind 10.96.0.6
         bind 10.96.0.7
         bind 10.96.0.8
         bind 10.96.0.9
         bind 10.96.0.10
         and 2 more
b, g     2 operations
         add virtual server TCP 10.96.0.10:80 rr
         bind 10.96.0.10
e        no answer: timed out after 30 s
f        nothing differs
         the desired state may be out of date: API server: nodes not watched for 3 s
2 nodes  nothing differs
";
    assert_eq!(diff(&answers), expected);
    assert!(!answers.iter().all(Answered::is_in_order));
}

/// A frame with these Services, each with so many connections and packets in a second.
fn traffic(services: &[(&str, u64)]) -> Value {
    let row = |(service, packets): &(&str, u64)| {
        json!({
            "service": service,
            "virtual_servers": [{ "address": { "protocol": "TCP", "ip": "10.96.0.10", "port": 80 } }],
            "active_connections": packets, "syn_recv_connections": 2, "inactive_connections": 1,
            "connections": 1, "packets_in": 1, "packets_out": 1, "bytes_in": 1, "bytes_out": 1,
            "connections_per_second": 0.5,
            "packets_in_per_second": packets, "packets_out_per_second": packets,
            "bytes_in_per_second": 100 * packets, "bytes_out_per_second": 1000 * packets,
            "real_servers": [],
            "of_tomorrow": 1,
        })
    };
    json!({ "interval": 2.0, "services": services.iter().map(row).collect::<Vec<_>>() })
}

#[test]
fn the_traffic_of_a_service_is_that_of_all_nodes_and_the_most_comes_first() {
    let nodes = [
        ("a", Canned::answer(0, &traffic(&[("default/web", 10), ("default/dns", 15)]))),
        ("b", Canned::answer(0, &traffic(&[("default/web", 20)]))),
        ("c", Canned::answer(0, &traffic(&[]))),
    ];
    let expected = "\
SERVICE      ACTIVE    SYN   INACT  CONN/S PKT/S IN     OUT   B/S IN     OUT  ANSWER
default/web      30      4       2     1.0       30      30     3000   30.0k       -
default/dns      15      2       1     0.5       15      15     1500   15.0k       -
";
    assert_eq!(top(&answers(&nodes)), expected);
    let [a, b, c] = nodes;
    let with_silence = [a, b, c, ("d", Canned::TimesOut)];
    let nodes = "\
NODE     TRAFFIC
d        no answer: timed out after 30 s
3 nodes  added up below

";
    assert_eq!(top(&answers(&with_silence)), format!("{nodes}{expected}"));
}
