//! What must neither eject an endpoint nor blame this node.

use super::*;

#[test]
fn a_silence_before_the_trial_does_not_end_it() {
    let mut node = Node::new(3);
    node.answer(&[(1, Silent), (2, Answered)]);
    let asked = node.now;
    node.wait(5);
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
