use ipvs::{Protocol, RealServer, Scheduler, ServiceAddress, VirtualServer};
use testkit::FakeKernel;
use watcher::{Draining, Observed, RealServerImage, VirtualServerImage};

use super::*;
use crate::{
    Trigger,
    sync::{PlanOutcome, Slice, tests::reconciler},
};

fn applied(plan: &Plan, image: Observed) -> PlanOutcome {
    let slice = Slice::new(&|| false);
    let mut pass = Pass::new(image, true, true, Trigger::Change, &slice);
    reconciler(&FakeKernel::new(), Draining::default()).apply(plan, &mut pass);
    pass.outcome
}

/// Removes a real server with three connections.
fn removal(protocol: Protocol) -> PlanOutcome {
    let of = ServiceAddress { protocol, ip: [10, 96, 0, 1].into(), port: 80 };
    let config = RealServer::masquerade([10, 244, 0, 1].into(), 8080).weight(0);
    let server = RealServerImage { config, connections: 3 };
    let image =
        VirtualServerImage::new(VirtualServer::new(of, Scheduler::RR), [server].into_iter().collect());
    let observed = Observed { virtual_servers: [(of, image)].into_iter().collect(), ..Observed::default() };
    let plan = [Command::DeleteRealServer(of.into(), config.address).into()].into_iter().collect();
    applied(&plan, observed)
}

#[test]
fn connections_that_are_cut_off_are_counted() {
    let outcome = removal(Protocol::Tcp);
    let cut_off: Vec<_> = outcome.cut_off.iter().map(|(what, count)| (what.to_string(), *count)).collect();
    assert_eq!(cut_off, [("delete real server TCP 10.96.0.1:80 -> 10.244.0.1:8080".to_owned(), 3)]);
    assert_eq!(removal(Protocol::Udp).cut_off, [], "UDP has nothing to be cut off");
}

#[test]
fn operations_that_fail_alike_share_the_cause() {
    let of = |port| ServiceAddress { protocol: Protocol::Udp, ip: [10, 96, 0, 1].into(), port };
    let real = |port| RealServer::masquerade([10, 244, 0, 1].into(), port);
    let refused = (1..=100).map(|port| Command::AddRealServer(of(port).into(), real(port)));
    let plan: Plan = refused.map(Operation::from).collect();
    let outcome = applied(&plan, Observed::default());
    assert_eq!(outcome.failures.len(), 100, "no virtual server is there");
    let [(_, first), others @ ..] = &outcome.failures[..] else { panic!("nothing failed") };
    assert!(others.iter().all(|(_, cause)| Arc::ptr_eq(cause, first)));
}
