//! The device itself.

use std::{ffi::OsStr, net::IpAddr, os::unix::ffi::OsStrExt, process::Command};

use dummy_interface::{DummyInterface, Error, Operation, VipBinding};
use netlink::{Errno, FailedRequest, KernelError};

use super::{BINDINGS, ROUTE, bind, bound, connect, ip, on_a_node, open, untouched, vips};

#[test]
#[ignore = "needs root and the dummy module: cargo xtask test --tier kernel"]
fn the_device_is_created_down_and_noarp() {
    on_a_node(|| {
        let mut interface = open(VipBinding::Address);
        assert_eq!(interface.observe().unwrap(), untouched());
        for _ in 0..2 {
            assert_eq!(interface.apply(&[Operation::EnsureDevice]).unwrap(), []);
            assert_eq!(interface.observe().unwrap(), bound(&[]));
        }
        let shown = ip("-details link show dev kube-ipvs0");
        assert!(shown.contains("<BROADCAST,NOARP>") && shown.contains("state DOWN"), "{shown}");
        assert!(shown.contains("dummy"), "{shown}");
    });
}

#[test]
#[ignore = "needs root and the dummy module: cargo xtask test --tier kernel"]
fn names_that_are_no_text_keep_nothing_from_being_read() {
    /// A command of ip in which `?` stands for a byte that no UTF-8 has.
    fn odd(arguments: &str) {
        let bytes: Vec<u8> = arguments.bytes().map(|byte| if byte == b'?' { 0xff } else { byte }).collect();
        let words = bytes.split(|byte| *byte == b' ').map(OsStr::from_bytes);
        assert!(Command::new("ip").args(words).status().unwrap().success(), "ip {arguments}");
    }
    for binding in BINDINGS {
        on_a_node(move || {
            let mut interface = open(binding);
            bind(&mut interface, &vips());
            odd("link add odd? type dummy");
            odd("link set kube-ipvs0 alias ?");
            odd("address add 198.51.100.1/24 dev odd?");
            odd("address add 198.51.100.2/24 dev node0 label node0:?");
            let mut expected = bound(&vips());
            expected.node_addresses.extend([1, 2].map(|last| IpAddr::from([198, 51, 100, last])));
            assert_eq!(interface.observe().unwrap(), expected);
            assert_eq!(interface.apply(&[Operation::EnsureDevice]).unwrap(), []);
        });
    }
}

#[test]
#[ignore = "needs root and the dummy module: cargo xtask test --tier kernel"]
fn a_deleted_device_is_created_again_with_its_vips() {
    for binding in BINDINGS {
        on_a_node(move || {
            let mut interface = open(binding);
            bind(&mut interface, &vips());
            ip("link delete kube-ipvs0");
            assert!(!interface.observe().unwrap().device);
            bind(&mut interface, &vips());
            assert_eq!(interface.observe().unwrap(), bound(&vips()));
        });
    }
}

#[test]
#[ignore = "needs root and the dummy module: cargo xtask test --tier kernel"]
fn a_device_that_does_arp_is_made_noarp() {
    on_a_node(|| {
        ip("link add kube-ipvs0 type dummy");
        ip("link set kube-ipvs0 arp on");
        let mut interface = open(VipBinding::Address);
        assert!(!interface.observe().unwrap().device);
        assert_eq!(interface.apply(&[Operation::EnsureDevice]).unwrap(), []);
        assert!(interface.observe().unwrap().device);
        assert!(ip("link show dev kube-ipvs0").contains("NOARP"));
    });
}

#[test]
#[ignore = "needs root and the dummy module: cargo xtask test --tier kernel"]
fn a_device_of_another_kind_is_left_alone() {
    on_a_node(|| {
        ip("link add kube-ipvs0 type veth peer name other");
        ip("address add 10.0.0.9/32 dev kube-ipvs0");
        let mut interface = open(VipBinding::Address);
        assert_eq!(interface.observe().unwrap(), untouched());
        match interface.apply(&[Operation::EnsureDevice, Operation::Unbind("10.0.0.9".parse().unwrap())]) {
            Err(Error::NotADummy { kind }) => assert_eq!(kind, "veth"),
            other => panic!("{other:?}"),
        }
        assert!(ip("address show dev kube-ipvs0").contains("10.0.0.9/32"));
    });
}

#[test]
#[ignore = "needs root and the dummy module: cargo xtask test --tier kernel"]
fn an_ipv6_address_on_a_down_link_is_usable_only_if_the_link_is_noarp() {
    on_a_node(|| {
        open(VipBinding::Address).apply(&[Operation::EnsureDevice]).unwrap();
        ip("link add arp0 type veth peer name arp1");
        ip("address add fd00::1/128 dev kube-ipvs0");
        ip("address add fd00::2/128 dev arp0");
        ip("address add fd00::3/128 dev arp0 nodad");
        let usable = |vip: &str| connect(vip.parse().unwrap()).is_ok();
        assert!(usable("fd00::1"));
        assert!(!usable("fd00::2"));
        assert!(usable("fd00::3"), "duplicate address detection is what makes the difference");
    });
}

#[test]
#[ignore = "needs root and the dummy module: cargo xtask test --tier kernel"]
fn the_device_going_up_and_down_loses_ipv6_addresses_and_nothing_else() {
    let [v4, _] = vips();
    for (binding, left) in [(VipBinding::Address, vec![v4]), (ROUTE, vips().to_vec())] {
        on_a_node(move || {
            let mut interface = open(binding);
            bind(&mut interface, &vips());
            ip("link set kube-ipvs0 up");
            ip("link set kube-ipvs0 down");
            assert_eq!(interface.observe().unwrap(), bound(&left));
        });
    }
}

#[test]
#[ignore = "needs root and the dummy module: cargo xtask test --tier kernel"]
fn without_the_device_nothing_is_bound_and_everything_unbound() {
    for binding in BINDINGS {
        on_a_node(move || {
            let [v4, v6] = vips();
            let failed = open(binding).apply(&[Operation::Unbind(v4), Operation::Bind(v6)]).unwrap();
            assert_eq!(failed, [FailedRequest { index: 1, error: KernelError::new(Errno::ENODEV) }]);
        });
    }
}
