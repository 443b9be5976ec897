//! What is wanted, and then something else; how calls to the kernel can fail meanwhile, and what must not happen.
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use dummy_interface::Operation::Unbind;
use ipvs::{
    Command::{AddRealServer, DeleteRealServer, DeleteVirtualServer, EditRealServer},
    Protocol::{self, Tcp, Udp},
    RealServer, RealServerAddress, VirtualServerId,
};
use netfilter::Operation::DeleteElement;
use netlink::Errno;
use proptest::{
    collection::{btree_map, btree_set},
    option,
    prelude::*,
    sample::select,
};
use service::{EndpointSlice, Service};
use testkit::{
    FakeKernel,
    fake_kernel::{Fault, State},
};

use super::objects::{active_connections, at, real, service, slice};

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
pub(crate) fn faults() -> impl Iterator<Item = Fault> {
    ERRNOS.into_iter().map(Fault::Refused).chain([Fault::Unheard, Fault::BrokenOff])
}

/// A Service at a port of the node and at an external address too.
fn web() -> Service {
    let mut web = service("web", "10.96.0.10", Tcp);
    web.external_ips = vec!["203.0.113.7".parse().unwrap()];
    web.ports.iter_mut().for_each(|port| port.node_port = 30080.try_into().ok());
    web
}

/// What [`Story::fixed`] begins with.
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

/// What [`Story::fixed`] ends with.
pub(crate) fn after() -> Inputs {
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

/// The objects of the API server.
#[derive(Clone, Debug)]
pub(crate) struct Inputs {
    pub(crate) services: Vec<Service>,
    pub(crate) slices: Vec<EndpointSlice>,
}

/// A change: one set of Services is served, then another.
#[derive(Clone, Debug)]
pub(crate) struct Story {
    pub(crate) before: Inputs,
    pub(crate) after: Inputs,
    /// TCP real servers that have connections when the change comes.
    busy: BTreeSet<(String, String)>,
}

/// The result of a change.
pub(crate) struct Ending {
    /// The state of the kernel, as text.
    pub(crate) picture: String,
    /// All writes on account of the change.
    pub(crate) writes: String,
    /// How many calls to the kernel the change took.
    pub(crate) calls: usize,
}

impl Story {
    pub(crate) fn fixed() -> Self {
        let busy = BTreeSet::from([("10.96.0.11".to_owned(), "10.244.0.3".to_owned())]);
        Self { before: before(), after: after(), busy }
    }

    /// Gives those real servers their connections that are in the kernel.
    pub(crate) fn connect(&self, kernel: &FakeKernel) {
        for (vip, server) in &self.busy {
            let of: VirtualServerId = at(vip, Tcp).into();
            let is_there = |(_, servers): &(_, BTreeMap<_, _>)| servers.contains_key(&real(server));
            if kernel.state().virtual_servers.get(&of).is_some_and(is_there) {
                active_connections(kernel, of, server, 3);
            }
        }
    }

    /// Plays the change once for each call, which fails in this way, and returns how many calls there
    /// were. `serve` makes a kernel that serves these Services; `play` plays the change on a kernel that it has
    /// disturbed just before.
    pub(crate) fn survives(
        &self,
        fault: Fault,
        serve: impl Fn(&Inputs) -> FakeKernel,
        play: impl Fn(&dyn Fn(&FakeKernel)) -> Ending,
    ) -> usize {
        let undisturbed = play(&|_| {});
        let forbidden = self.forbidden(serve);
        for call in 0.. {
            let ending = play(&|kernel| kernel.inject(call, fault));
            assert_eq!(ending.picture, undisturbed.picture, "call {call}: {fault:?}\n{}", ending.writes);
            let taken_away = ending.writes.lines().find(|write| forbidden.contains(*write));
            assert_eq!(taken_away, None, "call {call}: {fault:?}\n{}", ending.writes);
            if ending.calls <= call {
                return call;
            }
        }
        unreachable!("calls without end")
    }

    /// The writes that are forbidden: each would take away, even if only for a moment, what is wanted
    /// before the change, after it, and when the Services have changed and the slices have not.
    pub(crate) fn forbidden(&self, serve: impl Fn(&Inputs) -> FakeKernel) -> BTreeSet<String> {
        let between = Inputs { services: self.after.services.clone(), slices: self.before.slices.clone() };
        let serving = [&self.before, &between, &self.after].map(serve);
        let [before, between, after] = serving.each_ref().map(FakeKernel::state);
        let mut forbidden = BTreeSet::new();
        for (id, (_, servers)) in &before.virtual_servers {
            let later = [&between, &after].map(|state| state.virtual_servers.get(id));
            let [Some((_, between)), Some((_, after))] = later else { continue };
            forbidden.insert(DeleteVirtualServer(*id).to_string());
            let always =
                |server: &&RealServerAddress| between.contains_key(server) && after.contains_key(server);
            for server in servers.keys().filter(always) {
                let quiet = RealServer::masquerade(server.ip, server.port).weight(0);
                let commands =
                    [DeleteRealServer(*id, *server), EditRealServer(*id, quiet), AddRealServer(*id, quiet)];
                forbidden.extend(commands.map(|command| command.to_string()));
            }
        }
        let vips = before.dummy_interface.bound.iter();
        let vips = vips.filter(|vip| between.is_bound(**vip) && after.is_bound(**vip));
        forbidden.extend(vips.map(|vip| Unbind(*vip).to_string()));
        let elements = before.elements.iter();
        let elements = elements
            .filter(|element| between.elements.contains(*element) && after.elements.contains(*element));
        forbidden.extend(elements.map(|element| DeleteElement(*element).to_string()));
        forbidden
    }
}

/// The state of the kernel, as text.
pub(crate) fn picture(state: &State) -> String {
    let elements: BTreeSet<_> = state.elements.iter().map(ToString::to_string).collect();
    let mut picture = format!("{:#?}\n{:?}\n{elements:#?}", state.virtual_servers, state.tables);
    write!(picture, "{:#?}", state.dummy_interface).unwrap();
    picture
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

pub(crate) fn any_story() -> impl Strategy<Value = Story> {
    let pods = select(&["10.244.0.1", "10.244.0.2", "10.244.0.3"][..]);
    let busy =
        btree_set((select(&VIPS[..3]), pods).prop_map(|(vip, pod)| (vip.to_owned(), pod.to_owned())), 0..4);
    (any_inputs(), any_inputs(), busy).prop_map(|(before, after, busy)| Story { before, after, busy })
}
