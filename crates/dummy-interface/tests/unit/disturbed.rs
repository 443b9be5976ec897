//! What a kernel answers while another program changes what is listed.
use std::collections::BTreeSet;

use dummy_interface::{DummyInterface, Error, KernelDummyInterface, Observed, VipBinding};
use netlink::{Errno, OperationError, Transcript};

const ERROR: u16 = 2;
const DONE: u16 = 3;
const RTM_NEWADDR: u16 = 20;
const DUMP_INTR: u16 = 0x10;

fn message(kind: u16, flags: u16, sequence: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(16 + payload.len()).unwrap().to_ne_bytes();
    let (kind, flags) = (kind.to_ne_bytes(), flags.to_ne_bytes());
    [&length[..], &kind, &flags, &sequence.to_ne_bytes(), &[0; 4], payload].concat()
}

/// 192.0.2.LAST/24 on interface 2: `struct ifaddrmsg`, then `IFA_ADDRESS`.
fn address(last: u8) -> Vec<u8> {
    let header = [&[2, 24, 0, 0][..], &2u32.to_ne_bytes()].concat();
    [&header[..], &8u16.to_ne_bytes(), &1u16.to_ne_bytes(), &[192, 0, 2, last]].concat()
}

/// A kernel without kube-ipvs0 that lists its IPv4 addresses: disturbed so many times, each time another one.
fn observed(disturbed: u8) -> Result<Observed, Error> {
    let transcript = Transcript::default();
    let no_device = [&(-(Errno::ENODEV as i32)).to_ne_bytes()[..], &[0; 16]].concat();
    transcript.push(&message(ERROR, 0, 1, &no_device));
    for time in 0..=disturbed {
        let (sequence, flags) = (2 + u32::from(time), if time < disturbed { DUMP_INTR } else { 0 });
        transcript.push(&message(RTM_NEWADDR, flags, sequence, &address(time)));
        transcript.push(&message(DONE, flags, sequence, &[0; 4]));
    }
    // IPv6 addresses, local routes of both families, links, and the other routes.
    for sequence in 0..6 {
        transcript.push(&message(DONE, 0, 3 + u32::from(disturbed) + sequence, &[0; 4]));
    }
    transcript.replay(|| KernelDummyInterface::open(VipBinding::Address))?.observe()
}

#[test]
fn no_address_listed_while_it_changed_is_taken_for_the_nodes() {
    for disturbed in [0, 1, 4] {
        let expected = BTreeSet::from([[192, 0, 2, disturbed].into()]);
        assert_eq!(observed(disturbed).unwrap().node_addresses, expected, "disturbed {disturbed} times");
    }
}

#[test]
fn addresses_that_never_stop_changing_are_not_known() {
    let error = observed(5).unwrap_err();
    assert!(
        matches!(
            &error,
            Error::Operation(OperationError::Failed {
                source: netlink::Error::DumpInterrupted { attempts: 5 },
                ..
            })
        ),
        "{error:?}"
    );
}
