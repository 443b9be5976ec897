//! The entries of conntrack.

use std::collections::BTreeSet;

use ipvs::{Protocol, RealServerAddress, ServiceAddress};
use netfilter::conntrack::{Conntrack, Deleted, KernelConntrack, StaleFlows};
use netlink::Transcript;

/// Looks for stale flows, and deletes them.
pub fn fuzz(input: &[u8]) {
    let entries = input.len() / 16;
    if let Some(deleted) = Transcript::decode(input).replay(converse) {
        assert!(deleted.total() <= entries, "more were deleted than there can be");
    }
}

/// The conversation.
pub fn converse() -> Option<Deleted> {
    let others = RealServerAddress { ip: [10, 1, 0, 7].into(), port: 5353 };
    let flows: StaleFlows = stale().map(|(to, _)| (to, BTreeSet::from([others]))).into_iter().collect();
    KernelConntrack::open().ok()?.delete(&flows).ok()
}

/// Two flows of the recorded kernel, and one that it does not have: their destination, and the pod that answers.
pub fn stale() -> [(ServiceAddress, RealServerAddress); 3] {
    [
        ([10, 96, 0, 10].into(), [10, 1, 0, 5].into()),
        ([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10].into(), [9; 16].into()),
        ([10, 96, 0, 11].into(), [10, 1, 0, 6].into()),
    ]
    .map(|(ip, pod)| {
        let to = ServiceAddress { protocol: Protocol::Udp, ip, port: 53 };
        (to, RealServerAddress { ip: pod, port: 5353 })
    })
}
