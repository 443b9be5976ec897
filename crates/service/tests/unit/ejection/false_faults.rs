//! What must neither eject an endpoint nor blame this node.

use super::*;

#[test]
fn a_silence_before_the_trial_does_not_end_it() {
    let mut node = Node::new(3);
    node.answer(&[(1, Silent), (2, Answered)]);
    let asked = node.now;
    node.wait(20);
    assert_eq!(node.weights(), [10, 100, 100]);
    let old =
        EndpointAnswer { virtual_server: tcp(AT), endpoint: real("10.1.0.1:8080"), answer: Silent, asked };
    node.state.apply(Change::Answers(Answers { at: node.now, endpoints: vec![old] }));
    assert_eq!(node.weights(), [10, 100, 100], "no client has asked since");
}

#[test]
fn an_ejected_node_does_not_mean_a_fault_of_this_node() {
    let on_dead = |number| on("dead", &format!("10.1.1.{number}"));
    let web = slice(
        "web-1",
        "web",
        &[on("dead", "10.1.0.1"), on("dead", "10.1.0.2"), alone("10.1.0.3"), alone("10.1.0.4")],
    );
    let other = slice("other-1", "other", &[on_dead(1), on_dead(2), alone("10.1.1.3"), alone("10.1.1.4")]);
    let services = [service("web", "10.96.0.1"), service("other", "10.96.0.2")];
    let mut node = Node::with(ejecting(Ejection::SILENT), &services, &[web, other]);
    node.answer(&[(1, Silent), (2, Silent), (3, Answered), (4, Answered)]);
    assert_eq!(node.weights_at(tcp(OTHER)), [0, 0, 100, 100]);
    node.wait(2);
    node.answer(&[(3, Answered), (4, Answered)]);
    assert!(!node.state.has_fault(), "two of four that were asked are silent");
    assert_eq!(node.weights(), [0, 0, 100, 100]);
}

#[test]
fn a_quiet_moment_after_ejections_does_not_mean_a_fault_here() {
    let mut node = Node::new(7);
    node.answer(&[
        (1, Silent),
        (2, Silent),
        (3, Silent),
        (4, Answered),
        (5, Answered),
        (6, Answered),
        (7, Answered),
    ]);
    assert_eq!(node.weights(), [0, 0, 0, 100, 100, 100, 100]);
    node.wait(2);
    node.answer(&[]);
    assert!(!node.state.has_fault(), "nothing new is known");
    assert_eq!(node.weights(), [0, 0, 0, 100, 100, 100, 100]);
}

#[test]
fn a_silent_node_does_not_keep_those_out_that_show_what_they_do() {
    let web = slice("web-1", "web", &["10.1.0.1", "10.1.0.2", "10.1.0.3"].map(|it| on("dead", it)));
    let other = slice("other-1", "other", &[on("dead", "10.1.1.1"), alone("10.1.1.2")]);
    let services = [service("web", "10.96.0.1"), service("other", "10.96.0.2")];
    let mut node = Node::with(ejecting(Ejection::SILENT), &services, &[web, other]);
    let answered = [(tcp(OTHER), "10.1.1.2".to_owned(), Answered)];
    node.answer(&[(1, Silent), (2, Silent)]);
    assert_eq!(node.weights_at(tcp(OTHER)), [0, 100]);
    node.wait(20);
    assert_eq!(node.weights_at(tcp(OTHER)), [10, 100], "on trial");
    // Two stay silent: one of them is kept.
    node.answer(&[(1, Silent), (2, Silent)]);
    assert_eq!(node.weights_at(tcp(OTHER)), [10, 100], "the trial goes on");
    node.answer_at(&answered);
    node.answer_at(&[(tcp(OTHER), "10.1.1.1".to_owned(), Answered)]);
    assert_eq!(node.weights_at(tcp(OTHER)), [100, 100]);
}

#[test]
fn this_node_is_alive_whatever_slices_say() {
    let here = |it| Endpoint { node: Some(NODE.into()), ..ready(it) };
    let web = slice("web-1", "web", &["10.1.0.1", "10.1.0.2", "10.1.0.3", "10.1.0.4"].map(here));
    let mut node = Node::with(ejecting(Ejection::SILENT), &[service("web", "10.96.0.1")], &[web]);
    node.answer(&[(1, Silent), (2, Silent)]);
    assert_eq!(node.weights(), [0, 0, 100, 100]);
}

#[test]
fn one_namespace_neither_blames_this_node_nor_condemns_another_for_all() {
    let evil = |number: u8| on("another", &format!("10.9.0.{number}"));
    let theirs: Vec<_> = (1..=9).map(evil).collect();
    let theirs = EndpointSlice {
        name: ObjectName::new("evil", "evil-1"),
        service: ObjectName::new("evil", "evil"),
        ..slice("evil-1", "evil", &theirs)
    };
    let evil = Service { name: ObjectName::new("evil", "evil"), ..service("evil", "10.96.0.9") };
    let web = slice("web-1", "web", &["10.1.0.1", "10.1.0.2", "10.1.0.3"].map(|it| on("another", it)));
    let services = [service("web", "10.96.0.1"), service("other", "10.96.0.2"), evil];
    let other = slice("other-1", "other", &[alone("10.1.1.1")]);
    let mut node = Node::with(ejecting(Ejection::SILENT), &services, &[web, other, theirs]);
    let theirs: Vec<_> =
        (1..=9).map(|number| (tcp("10.96.0.9:80"), format!("10.9.0.{number}"), Silent)).collect();
    let asked_before = [(tcp(AT), "10.1.0.1".to_owned(), Answered)];
    node.answer_at(&[&theirs[..], &asked_before].concat());
    assert!(!node.state.has_fault());
    assert_eq!(node.weights(), [100; 3], "the endpoint of another namespace answers there");
    node.wait(7);
    let mut later: Vec<_> = theirs;
    later.push((tcp(OTHER), "10.1.1.1".to_owned(), Answered));
    node.answer_at(&later);
    assert_eq!(node.weights(), [100; 3], "silence in one namespace is its own");
}
