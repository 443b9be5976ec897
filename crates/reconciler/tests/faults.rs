//! Whatever call to the kernel fails, and in whatever way: the next sync makes everything as desired.
//! Nothing that serves before and after is taken away on the way, not even for a moment.
#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on must stop"
)]

mod common;

use std::{collections::BTreeSet, fmt::Write as _};

use common::{AT_ONCE, LONG, Running, active_connections, real, service, slice};
use dummy_interface::Change::Unbind;
use ipvs::{
    Command::{AddRealServer, DeleteRealServer, DeleteVirtualServer, EditRealServer},
    Id,
    Protocol::{self, Tcp, Udp},
    RealServer, RealServerAddress,
};
use netfilter::Change::DeleteElement;
use netlink::Errno;
use proptest::{
    collection::{btree_map, btree_set},
    option,
    prelude::*,
    sample::select,
};
use reconciler::Timing;
use service::{Change, EndpointSlice, Service};
use testkit::{
    FakeKernel,
    fake_kernel::{Fault, State},
};

/// The errors that the kernel may answer with, whether they make sense for the call or not.
const ERRNOS: [Errno; 14] = [
    Errno::ENOBUFS,
    Errno::EINTR,
    Errno::EPERM,
    Errno::ENOMEM,
    Errno::EINVAL,
    Errno::EAGAIN,
    Errno::EBUSY,
    Errno::ENOSPC,
    Errno::ENFILE,
    Errno::EEXIST,
    Errno::ENOENT,
    Errno::ESRCH,
    Errno::ENODEV,
    Errno::EADDRNOTAVAIL,
];

/// Every way in which a call can fail.
fn faults() -> impl Iterator<Item = Fault> {
    ERRNOS.into_iter().map(Fault::Refused).chain([Fault::Unheard, Fault::BrokenOff])
}

/// A Service at a port of the node and at an external address too.
fn web() -> Service {
    let mut web = service("web", "10.96.0.10", Tcp);
    web.external_ips = vec!["203.0.113.7".parse().unwrap()];
    web.ports.iter_mut().for_each(|port| port.node_port = 30080.try_into().ok());
    web
}

fn before() -> Inputs {
    let services = vec![
        service("kubernetes", "10.96.0.1", Tcp),
        service("web", "10.96.0.10", Tcp),
        service("gone", "10.96.0.11", Tcp),
        service("dns", "10.96.0.53", Udp),
    ];
    let slices = vec![
        slice("kubernetes", Tcp, &["192.168.0.1"]),
        slice("web", Tcp, &["10.244.0.1", "10.244.0.2"]),
        slice("gone", Tcp, &["10.244.0.3"]),
        slice("dns", Udp, &["10.244.0.4", "10.244.0.5"]),
    ];
    Inputs { services, slices }
}

fn after() -> Inputs {
    let services = vec![
        service("kubernetes", "10.96.0.1", Tcp),
        web(),
        service("dns", "10.96.0.53", Udp),
        service("new", "fd00::1", Tcp),
    ];
    let slices = vec![
        slice("kubernetes", Tcp, &["192.168.0.1"]),
        slice("web", Tcp, &["10.244.0.2", "10.244.0.6"]),
        slice("dns", Udp, &["10.244.0.5"]),
        slice("new", Tcp, &["fd00::a"]),
    ];
    Inputs { services, slices }
}

/// The objects that the API server tells of.
#[derive(Clone, Debug)]
struct Inputs {
    services: Vec<Service>,
    slices: Vec<EndpointSlice>,
}

/// A change: one set of Services is served, then another.
#[derive(Clone, Debug)]
struct Story {
    before: Inputs,
    after: Inputs,
    /// TCP real servers that have connections when the change comes.
    busy: BTreeSet<(String, String)>,
    /// Whether another daemon hears of the change than the one that served before it.
    restarts: bool,
}

/// The result of a change.
struct Ending {
    /// The state of the kernel, as text.
    picture: String,
    /// All writes on account of the change.
    writes: String,
    /// How many calls to the kernel the change took.
    calls: usize,
}

/// A reconciler that syncs when it is asked to, and not between the two lists: of Services without their
/// slices less is wanted.
fn when_asked(kernel: &FakeKernel) -> Running {
    Running::timed(kernel, Timing { min_sync_period: LONG, ..AT_ONCE })
}

impl Story {
    fn fixed(restarts: bool) -> Self {
        let busy = BTreeSet::from([("10.96.0.11".to_owned(), "10.244.0.3".to_owned())]);
        Self { before: before(), after: after(), busy, restarts }
    }

    /// Plays the change on a kernel that `disturb` changes just before. The sync after the one that was
    /// disturbed must leave nothing undone.
    fn play(&self, disturb: impl FnOnce(&FakeKernel)) -> Ending {
        let (kernel, running) = self.beginning();
        kernel.heal();
        disturb(&kernel);
        let running = if self.restarts {
            drop(running);
            when_asked(&kernel)
        } else {
            running
        };
        running.tell(Change::ReplaceServices(self.after.services.clone()));
        running.tell(Change::ReplaceSlices(self.after.slices.clone()));
        let mut report = running.handle.resync().unwrap();
        if report.failed > 0 {
            report = running.handle.resync().unwrap();
        }
        let writes = kernel.writes();
        assert_eq!(report.failed, 0, "{report:?}\n{writes}");
        let state = kernel.state();
        Ending { picture: picture(&state), writes, calls: state.calls }
    }

    /// A kernel that serves the first set of Services.
    fn beginning(&self) -> (FakeKernel, Running) {
        let kernel = FakeKernel::new();
        kernel.state().links.node_addresses.insert("192.0.2.1".parse().unwrap());
        let running = when_asked(&kernel);
        running.lists(self.before.services.clone(), self.before.slices.clone());
        for (vip, server) in &self.busy {
            let of: Id = common::at(vip, Tcp).into();
            let is_there =
                |(_, servers): &(_, std::collections::BTreeMap<_, _>)| servers.contains_key(&real(server));
            if kernel.state().virtual_servers.get(&of).is_some_and(is_there) {
                active_connections(&kernel, of, server, 3);
            }
        }
        (kernel, running)
    }

    /// The writes that are forbidden: each would take away, even if only for a moment, what is wanted
    /// before the change, after it, and when the Services have been told of and the slices have not.
    fn forbidden(&self) -> BTreeSet<String> {
        let between = Inputs { services: self.after.services.clone(), slices: self.before.slices.clone() };
        let serving = [&self.before, &between, &self.after]
            .map(|inputs| Self { before: inputs.clone(), ..self.clone() }.beginning().0);
        let [before, between, after] = serving.each_ref().map(FakeKernel::state);
        let mut forbidden = BTreeSet::new();
        for (id, (_, servers)) in &before.virtual_servers {
            let later = [&between, &after].map(|state| state.virtual_servers.get(id));
            let [Some((_, between)), Some((_, after))] = later else { continue };
            forbidden.insert(DeleteVirtualServer(*id).to_string());
            let always =
                |server: &&RealServerAddress| between.contains_key(server) && after.contains_key(server);
            for server in servers.keys().filter(always) {
                let quiet = RealServer { weight: 0, ..RealServer::masquerade(server.ip, server.port) };
                let commands =
                    [DeleteRealServer(*id, *server), EditRealServer(*id, quiet), AddRealServer(*id, quiet)];
                forbidden.extend(commands.map(|command| command.to_string()));
            }
        }
        let vips = before.links.bound.iter();
        let vips = vips.filter(|vip| between.is_bound(**vip) && after.is_bound(**vip));
        forbidden.extend(vips.map(|vip| Unbind(*vip).to_string()));
        let elements = before.elements.iter();
        let elements = elements
            .filter(|element| between.elements.contains(*element) && after.elements.contains(*element));
        forbidden.extend(elements.map(|element| DeleteElement(*element).to_string()));
        forbidden
    }

    /// Plays the change once for each call, which fails in this way, and returns how many calls there
    /// were.
    fn survives(&self, fault: Fault) -> usize {
        let undisturbed = self.play(|_| {});
        let forbidden = self.forbidden();
        for call in 0.. {
            let ending = self.play(|kernel| kernel.inject(call, fault));
            assert_eq!(ending.picture, undisturbed.picture, "call {call}: {fault:?}\n{}", ending.writes);
            let taken_away = ending.writes.lines().find(|write| forbidden.contains(*write));
            assert_eq!(taken_away, None, "call {call}: {fault:?}\n{}", ending.writes);
            if ending.calls <= call {
                return call;
            }
        }
        unreachable!("calls without end")
    }
}

/// The state of the kernel, as text.
fn picture(state: &State) -> String {
    let elements: BTreeSet<_> = state.elements.iter().map(ToString::to_string).collect();
    let mut picture = format!("{:#?}\n{:?}\n{elements:#?}", state.virtual_servers, state.tables);
    write!(picture, "{:#?}", state.links).unwrap();
    picture
}

#[test]
fn whatever_call_fails_in_whatever_way_the_next_sync_heals_it_and_nothing_live_is_taken_away() {
    let live = [
        "delete real server TCP 10.96.0.10:80 -> 10.244.0.2:8080",
        "delete virtual server UDP 10.96.0.53:80",
    ];
    assert!(live.iter().all(|live| Story::fixed(false).forbidden().contains(*live)));
    for (fault, restarts) in faults().flat_map(|fault| [(fault, false), (fault, true)]) {
        let calls = Story::fixed(restarts).survives(fault);
        assert!(calls > 20, "{fault:?}: only {calls} calls were disturbed");
    }
}

// Few addresses and pods, so that they meet often.

const VIPS: &[&str] = &["10.96.0.1", "10.96.0.2", "10.96.0.3", "fd00::1"];

/// One Service with its endpoints.
#[derive(Clone, Debug)]
struct Wish {
    vip: &'static str,
    protocol: Protocol,
    external: Option<&'static str>,
    node_port: bool,
    affinity: Option<u32>,
    pods: BTreeSet<u8>,
}

fn any_wish() -> impl Strategy<Value = Wish> {
    let external = option::weighted(0.3, select(&["203.0.113.7", "203.0.113.8"][..]));
    let affinity = option::weighted(0.2, Just(60));
    (select(VIPS), select(vec![Tcp, Tcp, Udp]), external, any::<bool>(), affinity, btree_set(1..4_u8, 0..4))
        .prop_map(|(vip, protocol, external, node_port, affinity, pods)| Wish {
            vip,
            protocol,
            external,
            node_port,
            affinity,
            pods,
        })
}

fn any_inputs() -> impl Strategy<Value = Inputs> {
    btree_map(select(&["a", "b", "c"][..]), any_wish(), 0..4).prop_map(|wishes| {
        let mut inputs = Inputs { services: Vec::new(), slices: Vec::new() };
        for (number, (name, wish)) in wishes.into_iter().enumerate() {
            let mut service = service(name, wish.vip, wish.protocol);
            service.external_ips = wish.external.into_iter().map(|ip| ip.parse().unwrap()).collect();
            service.session_affinity = wish.affinity;
            let node_port = wish.node_port.then(|| 30000 + u16::try_from(number).unwrap());
            service
                .ports
                .iter_mut()
                .for_each(|port| port.node_port = node_port.and_then(|port| port.try_into().ok()));
            inputs.services.push(service);
            let prefix = if wish.vip.contains(':') { "fd01::" } else { "10.244.0." };
            let pods: Vec<_> = wish.pods.iter().map(|pod| format!("{prefix}{pod}")).collect();
            if !pods.is_empty() {
                inputs.slices.push(slice(
                    name,
                    wish.protocol,
                    &pods.iter().map(String::as_str).collect::<Vec<_>>(),
                ));
            }
        }
        inputs
    })
}

fn any_story() -> impl Strategy<Value = Story> {
    let pods = select(&["10.244.0.1", "10.244.0.2", "10.244.0.3"][..]);
    let busy =
        btree_set((select(&VIPS[..3]), pods).prop_map(|(vip, pod)| (vip.to_owned(), pod.to_owned())), 0..4);
    (any_inputs(), any_inputs(), busy, any::<bool>()).prop_map(|(before, after, busy, restarts)| Story {
        before,
        after,
        busy,
        restarts,
    })
}

proptest! {
    // Each is told as often as there are calls.
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn so_it_is_whatever_is_wanted_before_and_after(
        story in any_story(), fault in select(faults().collect::<Vec<_>>())
    ) {
        story.survives(fault);
    }
}

#[test]
fn a_kernel_that_was_cleared_behind_our_back_is_restored_by_a_forced_sync() {
    let kernel = FakeKernel::new();
    let running = Running::on(&kernel);
    let Inputs { services, slices } = after();
    running.lists(services, slices);
    let expected = picture(&kernel.state());
    {
        let mut state = kernel.state();
        state.virtual_servers.clear();
        state.links.bound.clear();
        state.links.device = false;
        state.tables.clear();
        state.elements.clear();
    }
    let report = running.handle.resync().unwrap();
    assert_eq!((report.failed, picture(&kernel.state())), (0, expected));
}

#[test]
fn a_full_read_that_fails_is_made_good_by_the_retry() {
    let kernel = FakeKernel::new();
    let running = Running::on(&kernel);
    let Inputs { services, slices } = after();
    running.lists(services, slices);
    let expected = picture(&kernel.state());
    kernel.state().virtual_servers.clear();
    // The first call of a full read.
    kernel.fail_call(0, Errno::ENOMEM);
    let report = running.handle.resync().unwrap();
    assert_eq!((report.failed, report.full), (1, false), "{report:?}");
    running.settled();
    assert_eq!(picture(&kernel.state()), expected);
}
