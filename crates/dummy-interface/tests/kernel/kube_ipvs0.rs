//! kube-ipvs0 and the VIPs on a real kernel, each test in a network namespace of its own.

mod binding;
mod device;
mod monitor;
mod node_addresses;
mod source;

use std::{
    collections::BTreeSet,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use dummy_interface::{DummyInterface, KernelDummyInterface, Observed, Operation, VipBinding};
use nix::sched::{CloneFlags, unshare};

const NODE_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

const NODE_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);

const ROUTE: VipBinding = VipBinding::Route { source_v4: Some(NODE_V4), source_v6: Some(NODE_V6) };

const BINDINGS: [VipBinding; 2] = [VipBinding::Address, ROUTE];

/// A node of its own: `lo`, and node0 with an address of each family.
fn on_a_node(test: impl FnOnce() + Send + 'static) {
    let node = thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        ip("link set lo up");
        ip("link add node0 type veth peer name wire");
        ip("link set wire up");
        ip("link set node0 up");
        ip(&format!("address add {NODE_V4}/24 dev node0"));
        ip(&format!("address add {NODE_V6}/64 dev node0 nodad"));
        test();
    });
    if let Err(panic) = node.join() {
        std::panic::resume_unwind(panic);
    }
}

fn ip(arguments: &str) -> String {
    let output = Command::new("ip").args(arguments.split(' ')).output().unwrap();
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn vips() -> [IpAddr; 2] {
    ["10.96.0.1".parse().unwrap(), "fd00:10:96::1".parse().unwrap()]
}

fn open(binding: VipBinding) -> KernelDummyInterface {
    KernelDummyInterface::open(binding).unwrap()
}

/// Creates the device and binds.
fn bind(interface: &mut KernelDummyInterface, vips: &[IpAddr]) {
    let mut changes = vec![Operation::EnsureDevice];
    changes.extend(vips.iter().copied().map(Operation::Bind));
    assert_eq!(interface.apply(&changes).unwrap(), []);
}

/// The node before anything of ours is there.
fn untouched() -> Observed {
    let node_addresses = BTreeSet::from([NODE_V4.into(), NODE_V6.into()]);
    Observed { node_addresses, link_mtu: Some(1500), ..Observed::default() }
}

/// The device, with these VIPs and no other.
fn bound(vips: &[IpAddr]) -> Observed {
    Observed { device: true, bound: vips.iter().copied().collect(), ..untouched() }
}

/// Connects from the node to a listener behind the VIP and returns the source that the node took.
fn connect(vip: IpAddr) -> io::Result<IpAddr> {
    let any: IpAddr = if vip.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let listener = TcpListener::bind((any, 0))?;
    let target = SocketAddr::new(vip, listener.local_addr()?.port());
    let client = TcpStream::connect_timeout(&target, Duration::from_secs(2))?;
    let (_, source) = listener.accept()?;
    assert_eq!(source, client.local_addr()?);
    Ok(source.ip())
}

/// The kernel makes a new IPv6 address usable in a work queue, even without duplicate address detection
/// (`addrconf_dad_start` in net/ipv6/addrconf.c), so not before the request is answered.
fn is_soon_reached(vip: IpAddr) -> bool {
    let deadline = Instant::now() + Duration::from_secs(1);
    while connect(vip).is_err() {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}
