//! `kube-ipvs0`, the VIPs bound to this node, the node's own addresses, and the tunnel devices of direct return, by
//! rtnetlink.
//!
//! IPVS sees a packet only if the kernel takes its destination for an address of this node, so each VIP
//! is *bound*: as an address on the dummy device kube-ipvs0, or as a route of type `local`
//! ([`VipBinding`]). The device exists in both cases, because other programs recognise IPVS mode by it.
//!
//! [`KernelDummyInterface`] reads and writes in blocking batches; [`Monitor`] reports changes, other programs' among
//! them. [`RouteLookup`] finds the interface by which an address is reached. The modules: `link` has kube-ipvs0 and
//! other links, `addresses` addresses and routes, `binding` the requests that bind VIPs, `direct_return` the tunnels.
//!
//! # What the kernel does
//!
//! Seen on Linux 7.2; what this crate can show without IPVS, its kernel tests show:
//!
//! - The device is DOWN and NOARP, and both families work on it. An IPv4 address brings its `local` route
//!   whether the device is up or not. An IPv6 address on a DOWN device stays tentative, which means
//!   unusable, unless the device was created NOARP (`ipv6_add_dev` then switches duplicate address
//!   detection off for good) or the address has `IFA_F_NODAD`, as ours do.
//! - Up and down again, as NetworkManager does it, loses every IPv6 address of the device and no IPv4
//!   address. It must not come up at all: it would get a link-local address.
//! - Routes go by `lo`, not by kube-ipvs0. An IPv6 route needs a device that is up. An IPv4 route through
//!   kube-ipvs0 would be lost, without a notification, as soon as the last IPv4 address leaves the device
//!   (`fib_disable_ip`, called with force), which is just what a change from addresses to routes does.
//! - Our routes have their own protocol number and metric ([`ROUTE_PROTOCOL`]). The kernel's own `local`
//!   routes have metric 0: they win, and replacing ours never touches them. So a VIP can be bound both
//!   ways while it changes from one to the other, and a VIP which is also the address of some interface
//!   does that interface no harm.
//! - An address can be on kube-ipvs0 and on another interface at once. Each brings a `local` route of its own,
//!   and when one goes the other stays: the node never loses an address because it is unbound.
//! - A VIP that is an address is never the source of what goes elsewhere: in IPv4 its scope is `link`, and such an
//!   address is chosen for no other device than its own (`in_dev_select_addr`); in IPv6 it is deprecated, so that any other
//!   address of the node that is not is preferred, and among deprecated ones that of the way out (rules 3 and 5 of
//!   `ipv6_get_saddr_eval`). Towards itself it stays the source.
//! - IPv6 is a setting of each device. Ours get it by `/proc/sys`, if `net.ipv6.conf.all.disable_ipv6` is 0.
//! - With IPVS behind them, both bindings serve the node and outside clients of both families alike, and
//!   answer ARP alike: with `arp_ignore` 0, not with 1. What differs is the source of the node's own
//!   connections, that a program cannot bind an IPv6 VIP which is a route, and who lists VIPs as addresses.
//! - The kernel accepts a route's source only if it is an address of this node at that moment. If the
//!   address goes away later, IPv4 keeps on using it and IPv6 forgets it (`rt6_remove_prefsrc`).

mod addresses;
mod binding;
mod direct_return;
mod dummy_interface;
mod kernel;
mod link;
mod message;
mod monitor;

pub use addresses::{
    InterfaceAddress, RouteLookup, addresses_of, count_routes, interface_addresses, remove_routes,
};
pub use binding::ROUTE_PROTOCOL;
pub use direct_return::{remove_tunnels, tunnels};
pub use dummy_interface::{DummyInterface, Error, Observed, Operation, TunnelDevice, VipBinding};
pub use kernel::{KernelDummyInterface, replace_device_by_routes};
pub use link::{has_device, has_removable_device, remove_device};
pub use monitor::{Changed, Monitor};
pub use netlink::{FailedRequest, KernelError};

/// The device's name, by which other programs recognise IPVS mode.
pub const DEVICE: &str = "kube-ipvs0";

/// The index of `lo`, the same in every network namespace (`LOOPBACK_IFINDEX`; `loopback_net_init` in
/// drivers/net/loopback.c insists on it).
const LOOPBACK: u32 = 1;
