//! One tenant's costly changes, and a neighbour who changes meanwhile, on a real kernel.
//!
//! How long the neighbour waits is printed (`--nocapture`), and depends on the machine. That it does not wait for the end of
//! what the tenant asks for does not.

use std::{
    net::{IpAddr, Ipv4Addr},
    thread,
    time::{Duration, Instant},
};

use ipvs::{Family, Ipvs as _, KernelIpvs, Protocol, ServiceAddress};
use reconciler::Handle;
use service::{
    Change, Endpoint, EndpointPort, EndpointSlice, Event, ObjectName, Service, ServiceKind, ServicePort,
};
use testkit::{
    lab::{Host, Lab},
    patience::patience,
};

use crate::{
    churn::{Syncs, on},
    common::{service, slice},
};

/// How long the tenant's changes may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// The tenant's Service, with so many ports.
fn large(ports: u16) -> Service {
    let port = |port: u16| ServicePort {
        name: port.to_string().into(),
        protocol: Protocol::Tcp,
        port,
        node_port: None,
    };
    Service {
        ports: (1_000..1_000 + ports).map(port).collect(),
        ..service("large", "10.96.1.1", Protocol::Tcp)
    }
}

/// Its endpoints: other ones in each round.
fn endpoints(ports: u16, count: u16, round: u8) -> EndpointSlice {
    let port = |port: u16| EndpointPort { name: port.to_string().into(), protocol: Protocol::Tcp, port };
    let endpoint = |number: u16| {
        let [high, low] = number.to_be_bytes();
        Endpoint::new(Ipv4Addr::new(10, 128 | round, high, low).into())
    };
    EndpointSlice {
        ports: (1_000..1_000 + ports).map(port).collect(),
        endpoints: (0..count).map(endpoint).collect(),
        ..EndpointSlice::new(
            ObjectName::new("default", "large-1"),
            ObjectName::new("default", "large"),
            Family::V4,
        )
    }
}

/// A load balancer at which so many ranges of clients are allowed: other ones for each number.
fn restricted(name: &str, number: u8, ranges: u16) -> Service {
    let range = |place: u16| {
        let [high, low] = place.to_be_bytes();
        format!("{}.{high}.{low}.0/25", 20 + number).parse().unwrap()
    };
    let [last, ..] = name.as_bytes() else { panic!("no name") };
    Service {
        kind: ServiceKind::LoadBalancer,
        load_balancer_ips: vec![[203, 0, 113, *last].into()],
        load_balancer_source_ranges: Some((0..ranges).map(range).collect()),
        ..service(name, &format!("10.96.3.{last}"), Protocol::Tcp)
    }
}

/// A Service whose endpoint moves again and again.
struct Neighbour {
    moves: u8,
}

impl Neighbour {
    const VIP: &str = "10.96.2.1";

    fn at() -> ServiceAddress {
        ServiceAddress { protocol: Protocol::Tcp, ip: Self::VIP.parse().unwrap(), port: 80 }
    }

    fn pod(&self) -> IpAddr {
        [10, 244, 0, self.moves].into()
    }

    /// Moves the endpoint, and returns how long it takes until the kernel has it.
    fn moves(&mut self, handle: &Handle, kernel: &mut KernelIpvs) -> Duration {
        self.moves = self.moves.wrapping_add(1);
        let begin = Instant::now();
        handle.change(Change::Slices(Event::Apply(slice(
            "small",
            Protocol::Tcp,
            &[&self.pod().to_string()],
        ))));
        let has = |kernel: &mut KernelIpvs| {
            let real = kernel.real_servers(Self::at().into()).unwrap_or_default();
            real.iter().any(|real| real.config.address.ip == self.pod() && real.config.weight > 0)
        };
        while !has(kernel) {
            assert!(begin.elapsed() < patience(PATIENCE), "the neighbour is not served");
            thread::sleep(Duration::from_millis(2));
        }
        begin.elapsed()
    }
}

/// Carries out the tenant's change, while the neighbour's endpoint moves again and again. Returns how often it has moved
/// before the end of the change.
fn moves_during(node: &Host, (handle, syncs): (&Handle, &Syncs), what: &str, change: Change) -> usize {
    let (handle, syncs) = (handle.clone(), syncs.clone());
    let (mut took, whole) = node
        .inside(move || {
            let mut kernel = KernelIpvs::open().unwrap();
            let mut neighbour = Neighbour { moves: 1 };
            handle.change(Change::Services(Event::Apply(service("small", Neighbour::VIP, Protocol::Tcp))));
            neighbour.moves(&handle, &mut kernel);
            let begin = Instant::now();
            handle.change(change);
            let mut took = Vec::new();
            loop {
                let moved = neighbour.moves(&handle, &mut kernel);
                if syncs.left() > 0 {
                    took.push(moved);
                } else if handle.status().unwrap().synced {
                    return (took, begin.elapsed());
                }
                assert!(begin.elapsed() < patience(PATIENCE), "the change of the tenant takes too long");
            }
        })
        .unwrap();
    took.sort_unstable();
    let (median, longest) = (took.get(took.len() / 2), took.last());
    println!("{what}: {} moves, median {median:?}, longest {longest:?}, the whole {whole:?}", took.len());
    took.len()
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_tenant_s_costly_change_keeps_no_neighbour_waiting_for_its_end() {
    let lab = Lab::new(0, 8080).unwrap();
    let syncs = Syncs::default();
    let handle = on(&lab.node, Duration::from_secs(30), syncs.clone());
    let others = [restricted("b", 11, 2_048), restricted("c", 12, 2_048)];
    handle.change(Change::Services(Event::Replace(
        [restricted("a", 10, 1_000)].into_iter().chain(others).collect(),
    )));
    handle.change(Change::Slices(Event::Replace(vec![])));
    let during = |what: &str, change| moves_during(&lab.node, (&handle, &syncs), what, change);
    let moves = during("1,000 ranges of clients", Change::Services(Event::Apply(restricted("a", 13, 1_000))));
    assert!(moves > 0, "it waited for the end");

    // What was removed in one round makes the next one slow.
    handle.change(Change::Services(Event::Apply(large(12))));
    let moves: usize = (0..3)
        .map(|round| during("12,000 real servers", Change::Slices(Event::Apply(endpoints(12, 1_000, round)))))
        .sum();
    assert!(moves > 0, "it waited for the end");
    handle.stop().unwrap();
}
