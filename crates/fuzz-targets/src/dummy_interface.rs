//! kube-ipvs0, addresses and routes, by rtnetlink.

use dummy_interface::{DummyInterface, KernelDummyInterface, Observed, Operation, RouteLookup, VipBinding};
use netlink::Transcript;

/// The decoded answers of a kernel.
#[derive(Debug, PartialEq)]
pub struct Answers {
    /// The state where VIPs are addresses.
    pub as_addresses: Option<Observed>,
    /// The state where VIPs are routes.
    pub as_routes: Option<Observed>,
    /// The interface by which loopback is reached.
    pub loopback: Option<u32>,
}

/// Reads what there is, with either binding, and unbinds all of it.
///
/// An address of loopback is never one of the node.
pub fn fuzz(input: &[u8]) {
    let answers = Transcript::decode(input).replay(converse);
    for observed in [answers.as_addresses, answers.as_routes].into_iter().flatten() {
        assert!(observed.node_addresses.iter().all(|address| !address.is_loopback()), "{observed:?}");
    }
}

/// The conversation, over one socket after the other.
pub fn converse() -> Answers {
    let routes = VipBinding::Route { source_v4: Some([192, 0, 2, 1].into()), source_v6: None };
    let [as_addresses, as_routes] = [VipBinding::Address, routes].map(|binding| {
        let mut dummy_interface = KernelDummyInterface::open(binding).ok()?;
        let observed = dummy_interface.observe().ok();
        let bound = observed.iter().flat_map(|observed| &observed.bound);
        let changes: Vec<_> =
            bound.copied().map(Operation::Unbind).chain([Operation::EnsureDevice]).collect();
        drop(dummy_interface.apply(&changes));
        observed
    });
    let loopback = RouteLookup::open()
        .ok()
        .and_then(|mut routes| routes.interface_to([127, 0, 0, 1].into()).ok().flatten());
    Answers { as_addresses, as_routes, loopback }
}
