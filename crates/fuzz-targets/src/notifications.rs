//! The kernel's notifications of links, addresses and routes, of nf_tables, and of packets that are traced.

use netfilter::trace::TraceEvent;

/// Some number of kube-ipvs0, and of the socket whose changes are our own.
const OURS: u32 = 7;

/// Reads a datagram as notifications of each kind.
pub fn fuzz(input: &[u8]) {
    let unknown = dummy_interface::Changed::from_datagram(input, None);
    let known = dummy_interface::Changed::from_datagram(input, Some(OURS));
    assert!(known.everything || !unknown.everything, "knowing the device's number hides it: {known:?}");
    assert!(known.vips.len() <= input.len() / 16, "more addresses than messages: {known:?}");

    netfilter::Changed::from_datagram(input, OURS);

    netlink::each_notification(input, |notification| {
        if let Some(event) = TraceEvent::from_notification(notification) {
            assert!(event.table.len() + event.chain.len() < input.len(), "names from nowhere: {event:?}");
        }
    });
}
