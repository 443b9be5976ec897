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
    let said = "kube-ipvs: the check failed: synced: no, syncs have been failing for 42 s";
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
         the check failed: synced: no, syncs have been failing for 42 s
         failed: add virtual server TCP 10.96.0.10:81 mh: no such scheduler (ENOENT)
node-3   no answer: it takes longer than 30 s
node-7   no answer: its pod kube-ipvs-node-7 is Pending
node-6   in order, 0.1.0
         warning: the host's firewall may drop packets; remedy: --host-firewall=accept
node-4   in order, 0.2.0
3 nodes  in order, 0.1.0
";
    assert_eq!(text(&answers), expected);
    assert!(include_str!("../../../../docs/commands.md").contains(expected), "docs/commands.md shows it");
}

#[test]
fn a_problem_of_an_object_that_all_nodes_have_is_one_row_and_all_are_in_order() {
    let problems: Vec<_> = (1..=7).map(|number| format!("default/web-{number}: it is wrong")).collect();
    let status = with(|status| status["problems"] = json!(problems));
    let nodes = ["a", "b", "c", "d", "e"].map(|node| (node, Canned::answer(0, &status)));
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
    assert_eq!(text(&answers), expected);
    assert!(answers.iter().all(Answered::is_in_order));
}
