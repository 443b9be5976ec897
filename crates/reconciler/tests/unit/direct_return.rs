//! Direct return on a kernel that has something of it already, or lacks something for it.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use crate::common::{Running, Setup, at, endpoint, service, slice};
use dummy_interface::TunnelDevice;
use ipvs::{Family, Forwarding, Protocol::Tcp, ServiceAddress};
use netfilter::Element;
use service::{
    Balancing, Change, Endpoint, EndpointSlice, Event, ExternalForwarding, ForwardingMethod, Node, Options,
    Service, ServiceKind, Unpacking,
};
use testkit::{FakeKernel, fake_kernel::State as KernelState};

const EXTERNAL: [u8; 4] = [203, 0, 113, 20];

/// A Service that asks for it.
fn web() -> Service {
    let balancing = Balancing { forwarding_method: Some(ForwardingMethod::Tunnel), ..Balancing::default() };
    Service {
        kind: ServiceKind::LoadBalancer,
        load_balancer_ips: vec![EXTERNAL.into()],
        balancing: Some(balancing.into()),
        ..service("web", "10.96.0.10", Tcp)
    }
}

/// An endpoint on another node.
fn elsewhere() -> EndpointSlice {
    let mut slice = slice("web", Tcp, &[]);
    slice.endpoints = vec![Endpoint { node: Some("node-b".into()), ..endpoint("10.244.1.1") }];
    slice
}

fn knowing_pods() -> Setup {
    let options = Options {
        external_forwarding: ExternalForwarding::ByAnnotation,
        knows_pods: BTreeSet::from([Family::V4]),
        ..Options::new("node")
    };
    Setup { options, ..Setup::default() }
}

/// A kernel with one link.
fn kernel() -> FakeKernel {
    let kernel = FakeKernel::new();
    kernel.state().dummy_interface.link_mtu = Some(1500);
    kernel
}

fn peers() -> Change {
    let ips: Vec<IpAddr> = vec![[192, 0, 2, 2].into()];
    Change::Peers(Event::Replace(vec![Node {
        name: "node-b".into(),
        ips,
        overlay_ips: Vec::new(),
        pod_cidrs: Vec::new(),
        problems: Vec::new(),
        ..Node::default()
    }]))
}

fn unpacks() -> Change {
    let unpacking = Unpacking { families: [Family::V4].into(), gue: false };
    Change::UnpackingPeers([(Arc::from("node-b"), unpacking)].into())
}

/// How the endpoint is reached from outside.
fn method(kernel: &KernelState) -> Option<Forwarding> {
    let external = ServiceAddress { ip: EXTERNAL.into(), ..at("10.96.0.10", Tcp) };
    let (_, real_servers) = kernel.virtual_servers.get(&external.into())?;
    real_servers.values().next().map(|real| real.config.forwarding)
}

fn sender(last: u8) -> Element {
    Element::TunnelSender([192, 0, 2, last].into())
}

#[test]
fn who_may_send_stays_let_in_until_all_nodes_were_listed() {
    let kernel = kernel();
    {
        let mut state = kernel.state();
        state.tables.insert(Family::V4);
        state.direct_return.insert(Family::V4);
        state.elements.extend([sender(2), sender(3)]);
        let tunnel = TunnelDevice { right: true, received: 0 };
        state.dummy_interface.tunnels.insert(Family::V4, tunnel);
    }
    let running = Running::with(&kernel, knowing_pods());
    running.lists(vec![web()], vec![elsewhere()]);
    let let_in = || [2, 3].map(|last| kernel.state().elements.contains(&sender(last)));
    assert_eq!(let_in(), [true; 2]);
    running.tell(peers());
    running.kernel_where(|kernel| !kernel.elements.contains(&sender(3)));
    assert_eq!(let_in(), [true, false]);
}

#[test]
fn a_kernel_without_tunnels_masquerades_and_is_asked_again_by_a_resync() {
    let kernel = kernel();
    kernel.state().missing_tunnels.insert(Family::V4);
    let running = Running::with(&kernel, knowing_pods());
    running.tell(peers());
    running.tell(unpacks());
    running.lists(vec![web()], vec![elsewhere()]);
    running.kernel_where(|kernel| method(kernel) == Some(Forwarding::Masquerade));
    running.settled();
    assert!(kernel.state().direct_return.is_empty(), "nothing of it stays");
    kernel.state().missing_tunnels.clear();
    running.handle.resync().unwrap();
    running.kernel_where(|kernel| method(kernel) == Some(Forwarding::Tunnel));
}

#[test]
fn a_kernel_without_the_rules_masquerades_and_serves_everything_else_at_once() {
    let kernel = kernel();
    kernel.state().missing_rules.insert(Family::V4);
    let running = Running::with(&kernel, knowing_pods());
    running.tell(peers());
    running.tell(unpacks());
    let other = (service("other", "10.96.0.11", Tcp), slice("other", Tcp, &["10.244.0.1"]));
    running.tell(Change::Services(Event::Replace(vec![web(), other.0])));
    running.tell(Change::Slices(Event::Replace(vec![elsewhere(), other.1])));
    running.kernel_where(|kernel| method(kernel) == Some(Forwarding::Masquerade));
    running.settled();
    let state = kernel.state();
    assert!(state.elements.contains(&Element::ClusterIp(at("10.96.0.11", Tcp))));
    assert!(state.dummy_interface.tunnels.is_empty(), "no tunnel without its rules");
}
