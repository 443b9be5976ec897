//! What reading the whole kernel finds, whatever another program has changed.

use std::collections::{BTreeMap, BTreeSet};

use crate::common::*;
use ipvs::{
    Family, Forwarding, Protocol::Tcp, RealServer, Scheduler, ServiceAddress, ServiceFlags, VirtualServer,
    VirtualServerId,
};
use proptest::prelude::*;
use testkit::FakeKernel;
use watcher::{Drift, Observed, SummaryError, Verification, VirtualServerImage};

fn verify(image: &mut Observed, fake: &FakeKernel) -> Drift {
    try_verify(image, fake, |_| false).unwrap()
}

fn try_verify(
    image: &mut Observed,
    fake: &FakeKernel,
    deeply: impl Fn(&ServiceAddress) -> bool,
) -> Result<Drift, SummaryError> {
    let kernel = &mut kernel(fake);
    Verification::begin(kernel, image)?.finish(image, kernel, deeply)
}

/// The part of a virtual server that a summary shows: no connections, no thresholds, no kind of tunnel, no scheduler flags,
/// a prefix length only where it matters; and what the kernel calls local is masqueraded.
fn in_short(image: &VirtualServerImage) -> (VirtualServer, Vec<RealServer>) {
    let real = |config: RealServer| {
        let forwarding = match config.forwarding {
            Forwarding::Local => Forwarding::Masquerade,
            shown => shown,
        };
        RealServer::new(config.address, forwarding).weight(config.weight)
    };
    let mut config = image.config();
    config.flags &= ServiceFlags::PERSISTENT | ServiceFlags::ONE_PACKET;
    if !config.flags.contains(ServiceFlags::PERSISTENT) {
        config.prefix_length = 0;
    }
    (config, image.real_servers().map(|server| real(server.config)).collect())
}

/// The addresses of the virtual servers whose summaries differ.
fn differences(one: &Observed, other: &Observed) -> BTreeSet<ServiceAddress> {
    let at = |image: &Observed, address| image.virtual_servers.get(address).map(in_short);
    let either = one.virtual_servers.keys().chain(other.virtual_servers.keys());
    either.filter(|address| at(one, address) != at(other, address)).copied().collect()
}

/// A kernel that is as `before` where the bits say so, and as `other` elsewhere.
fn partly(before: &FakeKernel, other: &FakeKernel, bits: u64) -> FakeKernel {
    let after = FakeKernel::new();
    {
        let (before, other, mut after) = (before.state(), other.state(), after.state());
        let ids: BTreeSet<VirtualServerId> =
            before.virtual_servers.keys().chain(other.virtual_servers.keys()).copied().collect();
        for (number, id) in ids.into_iter().enumerate() {
            let from = if bits >> (number % 62) & 1 == 1 { &before } else { &other };
            if let Some(server) = from.virtual_servers.get(&id) {
                after.virtual_servers.insert(id, server.clone());
            }
        }
        let dummy_interface = if bits >> 62 & 1 == 1 { &before } else { &other };
        after.dummy_interface = dummy_interface.dummy_interface.clone();
        let tables = if bits >> 63 == 1 { &before } else { &other };
        (after.tables, after.elements) = (tables.tables.clone(), tables.elements.clone());
    }
    after
}

proptest! {
    #[test]
    fn exactly_what_differs_is_found_and_the_image_is_as_the_kernel_then(
        before in any_kernel(), other in any_kernel(), bits in any::<u64>(),
    ) {
        let after = partly(&before, &other, bits);
        let (mut image, truth) = (read(&before), read(&after));
        let expected = differences(&image, &truth);
        let (dummy_interface, tables) = (image.dummy_interface != truth.dummy_interface, image.netfilter != truth.netfilter);
        after.heal();

        let drift = verify(&mut image, &after);
        prop_assert_eq!(&drift.virtual_servers, &expected);
        prop_assert_eq!((drift.links, drift.tables), (dummy_interface, tables));
        prop_assert_eq!(differences(&image, &truth), BTreeSet::new());
        prop_assert_eq!((&image.dummy_interface, &image.netfilter), (&truth.dummy_interface, &truth.netfilter));
        let there = expected.iter().filter(|of| truth.virtual_servers.contains_key(of));
        prop_assert_eq!(after.state().real_server_reads, there.count(), "no real servers but theirs are read");
        prop_assert_eq!(verify(&mut image, &after), Drift::default(), "once found it is known");
    }

    #[test]
    fn the_sample_is_read_to_the_last_detail(fake in any_kernel(), port in any::<u16>()) {
        let mut image = read(&fake);
        for (_, servers) in fake.state().virtual_servers.values_mut() {
            for server in servers.values_mut() {
                server.config.upper_threshold = 5;
            }
        }
        let sample = |of: &ServiceAddress| of.port & 1 == port & 1;
        let drift = try_verify(&mut image, &fake, sample).unwrap();
        let expected: BTreeSet<_> = image.virtual_servers.keys().filter(|of| sample(of)).copied().collect();
        prop_assert_eq!(drift.virtual_servers, expected);
        let truth = read(&fake);
        for (of, image) in image.virtual_servers.iter().filter(|(of, _)| sample(of)) {
            prop_assert_eq!(Some(image), truth.virtual_servers.get(of));
        }
    }
}

fn one_virtual_server() -> FakeKernel {
    let fake = FakeKernel::new();
    let server = VirtualServer::new(address(Tcp, "10.96.0.1:80"), Scheduler::RR);
    fake.state().virtual_servers.insert(server.id, (server.clone(), [].into()));
    fake
}

#[test]
fn without_the_look_in_short_nothing_is_said() {
    let fake = one_virtual_server();
    let mut image = read(&fake);
    fake.state().no_summaries = true;
    let error = try_verify(&mut image, &fake, |_| false).unwrap_err();
    assert!(matches!(error, SummaryError::NoSummary(_)), "{error:?}");

    fake.state().no_summaries = false;
    let begun = Verification::begin(&mut kernel(&fake), &image).unwrap();
    fake.state().no_summaries = true;
    let error = begun.finish(&mut image, &mut kernel(&fake), |_| false).unwrap_err();
    assert!(matches!(error, SummaryError::NoSummary(_)), "{error:?}");
}

#[test]
fn the_kernel_is_prepared_for_summaries_of_many_virtual_servers() {
    let fake = FakeKernel::new();
    for (number, prepared) in [(0, 0), (4_999, 0), (5_000, 1)] {
        let address = |port| ServiceAddress { protocol: Tcp, ip: [10, 96, 0, 1].into(), port };
        fake.state().virtual_servers = (1..=number)
            .map(|port| VirtualServer::new(address(port), Scheduler::RR))
            .map(|server| (server.id, (server, BTreeMap::new())))
            .collect();
        let mut image = read(&fake);
        assert_eq!((verify(&mut image, &fake), fake.state().widened), (Drift::default(), prepared));
    }
    Observed::adopt(&mut kernel(&fake)).unwrap();
    assert_eq!(fake.state().widened, 2, "at a start too");
}

#[test]
fn a_reading_that_fails_is_a_failure_of_the_whole() {
    let fake = one_virtual_server();
    let mut image = read(&fake);
    // The summaries come first, then the virtual servers that differ.
    fake.state().virtual_servers.values_mut().for_each(|(server, _)| server.scheduler = Scheduler::WLC);
    fake.lose_answer(1);
    let error = try_verify(&mut image, &fake, |_| false).unwrap_err();
    assert!(matches!(error, SummaryError::Unread(_)), "{error:?}");
}

#[test]
fn tables_that_no_other_program_has_changed_are_not_read() {
    let fake = one_virtual_server();
    let mut image = read(&fake);
    fake.state().tables.insert(Family::V4);
    fake.state().same_generation = true;
    assert_eq!(verify(&mut image, &fake), Drift::default());
    fake.state().same_generation = false;
    assert_eq!(verify(&mut image, &fake), Drift { tables: true, ..Drift::default() });
}
