use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use operator::output::json;
use serde_json::json;
use testkit::documented::assert_explained;

use super::{
    super::tests::canned::{Canned, answers, pod},
    *,
};

fn garbage(stdout: &str) -> Canned {
    Canned::Answers { code: 0, stdout: stdout.to_owned(), stderr: String::new() }
}

fn why(canned: Canned) -> String {
    let answers = answers::<Vec<u8>>(&[("a", canned)]);
    one_line(answers[0].answer.as_ref().unwrap_err())
}

#[test]
fn a_node_without_an_answer_says_why() {
    assert_eq!(why(Canned::TimesOut), "timed out after 30 s");
    assert_eq!(why(Canned::Pod("Failed")), "its pod kube-ipvs-a is Failed");
    let sense = "cannot read its answer, perhaps of another version: ";
    assert_eq!(why(garbage("<html>")), format!("{sense}expected value at line 1 column 1"));
    assert!(why(garbage("[1, 2")).starts_with(sense), "half of an answer");
    assert!(why(garbage("{}")).starts_with(sense), "of another question");
    assert_eq!(why(garbage("")), "exit status: 0");
    let code = "command terminated with exit code 1";
    let failed =
        |words: &str| why(Canned::Answers { code: 1, stdout: String::new(), stderr: words.to_owned() });
    let no_daemon = "no daemon answers at /run/kube-ipvs/control.sock: is kube-ipvs running on this node?";
    assert_eq!(failed(&format!("kube-ipvs: {no_daemon}\n{code}\n")), no_daemon);
    let no_program = "error: exec: \"kube-ipvs\": executable file not found in $PATH";
    assert_eq!(failed(&format!("{no_program}\n")), no_program);
    assert_eq!(failed("\u{1b}[2Jerror:\nnone\n"), r"\u{1b}[2Jerror: none");
}

#[test]
fn an_exit_code_other_than_0_is_an_answer_that_is_not_in_order() {
    let said = "kube-ipvs: the check failed: it fails";
    let answers = answers::<Vec<u8>>(&[
        ("a", Canned::answer(1, &json!([1])).saying(said).saying("command terminated with exit code 1")),
        ("b", Canned::answer(0, &json!([2]))),
        ("c", Canned::TimesOut),
    ]);
    let in_order: Vec<_> = answers.iter().map(Answered::is_in_order).collect();
    assert_eq!(in_order, [false, true, false]);
    let first = answers[0].answer.as_ref().unwrap();
    assert_eq!((&first.read[..], first.complaint.as_deref()), (&[1][..], Some("the check failed: it fails")));
}

#[test]
fn only_the_named_nodes_are_asked_and_one_without_a_pod_is_none() {
    let pods = vec![pod("a", "Running"), pod("b", "Running"), pod("c", "Running")];
    let answer = |_: &Pod| Err(NoAnswer::TimedOut { seconds: 1 });
    let answers = ask::<Vec<u8>>(pods, &["c".to_owned(), "z".to_owned(), "a".to_owned()], answer);
    let nodes: Vec<_> = answers.iter().map(|answered| answered.node.as_str()).collect();
    assert_eq!(nodes, ["a", "c", "z"]);
    assert!(matches!(answers[2].answer, Err(NoAnswer::NoPod)));
}

#[test]
fn so_many_nodes_are_asked_at_a_time_and_no_more() {
    let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let pods = (0..50).map(|number| pod(&format!("node-{number:02}"), "Running")).collect();
    let answers = ask::<Vec<u8>>(pods, &[], |_| {
        most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        thread::sleep(Duration::from_millis(20));
        now.fetch_sub(1, Ordering::SeqCst);
        Err(NoAnswer::NoPod)
    });
    assert_eq!(answers.len(), 50);
    assert!(answers.is_sorted_by_key(|answered| &answered.node));
    let most = most.into_inner();
    assert!((2..=AT_A_TIME).contains(&most), "{most}");
}

#[test]
fn its_json_is_documented() {
    let nothing = json!({ "operations": [], "troubles": [] });
    let answers = answers::<Value>(&[("node-1", Canned::answer(0, &nothing)), ("node-2", Canned::TimesOut)]);
    assert_explained("`kubectl ipvs`", "kubectl-ipvs", &json(&FleetJson::new(&answers)).unwrap());
}

#[test]
fn a_node_that_was_broken_into_speaks_for_no_other_and_to_no_terminal() {
    let answers = answers::<Vec<String>>(&[(
        "a",
        Canned::answer(0, &json!(["1.0\nnode-b  in order\u{1b}]0;owned\u{7}"]))
            .saying("kube-ipvs: \u{9b}2J\u{202e}"),
    )]);
    let Answer { read, json, .. } = answers[0].answer.as_ref().unwrap();
    assert_eq!(read[0], r"1.0\nnode-b  in order\u{1b}]0;owned\u{7}");
    assert_eq!(json[0], read[0]);
    assert_eq!(answers[0].answer.as_ref().unwrap().complaint.as_deref(), Some(r"\u{9b}2J\u{202e}"));
}
