//! The kernel's notifications of links, addresses and routes, and of nf_tables.

/// Some number of kube-ipvs0, and of the socket whose changes are our own.
const OURS: u32 = 7;

/// Reads a datagram as a notification of either.
pub fn fuzz(input: &[u8]) {
    let unknown = dummy_interface::Changed::from_datagram(input, None);
    let known = dummy_interface::Changed::from_datagram(input, Some(OURS));
    assert!(known.everything || !unknown.everything, "knowing the device's number hides it: {known:?}");
    assert!(known.vips.len() <= input.len() / 16, "more addresses than messages: {known:?}");

    netfilter::Changed::from_datagram(input, OURS);
}
