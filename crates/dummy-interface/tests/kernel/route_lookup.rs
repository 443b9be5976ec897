//! Routes of a real kernel, in a network namespace.

#![expect(clippy::unwrap_used, reason = "a test's functions fail as the test itself does")]

use std::{process::Command, thread};

use dummy_interface::RouteLookup;
use nix::sched::{CloneFlags, unshare};

/// A node with a bridge in both families, and a route to one address of the bridge's network that does not
/// go by the bridge.
const NODE: &str = "
    link set lo up
    link add br0 type bridge
    link add veth0 type veth peer name pod0
    link set br0 up
    link set pod0 up
    link set veth0 up
    address add 10.0.0.1/8 dev br0
    address add fd00:10::1/64 dev br0 nodad
    route add 10.244.1.2/32 dev veth0
    route add fd00:10::2/128 dev veth0
    route add unreachable 10.244.9.9/32
";

fn index(interface: &str) -> u32 {
    let shown = Command::new("ip").args(["-o", "link", "show", "dev", interface]).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    shown.split_once(':').unwrap().0.parse().unwrap()
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn the_kernel_says_by_which_interface_it_would_send_a_packet() {
    let node = thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        for command in NODE.lines().map(str::trim).filter(|command| !command.is_empty()) {
            let output = Command::new("ip").args(command.split(' ')).output().unwrap();
            assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
        }
        let mut routes = RouteLookup::open().unwrap();
        for (address, expected) in [
            ("10.1.2.3", Some("br0")),
            ("10.244.1.2", Some("veth0")),
            ("10.0.0.1", Some("lo")),
            ("10.244.9.9", None),
            ("192.0.2.1", None),
            ("fd00:10::3", Some("br0")),
            ("fd00:10::2", Some("veth0")),
            ("2001:db8::1", None),
        ] {
            let found = routes.interface_to(address.parse().unwrap()).unwrap();
            assert_eq!(found, expected.map(index), "{address}");
        }
    });
    node.join().unwrap();
}
