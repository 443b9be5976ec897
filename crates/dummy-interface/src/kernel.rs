//! The real kernel.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::{Duration, Instant},
};

use ipvs::Family;
use netlink::{Errno, FailedRequest, KernelError, Socket};

use crate::{
    DEVICE, DummyInterface, Error, LOOPBACK, Observed, Operation, VipBinding,
    device::Device,
    ipv6_switch,
    links::{Link, links},
    observe::{EVERY_INTERFACE, InterfaceAddress, LocalRoute, addresses, gateways, local_routes, socket},
    request::{Requests, host_prefix},
    tunnel,
    tunnels::Tunnels,
};

/// The links, addresses and routes of the network namespace in which it was opened.
#[derive(Debug)]
pub struct KernelDummyInterface {
    socket: Socket,
    binding: VipBinding,
    tunnels: Tunnels,
    /// The number of kube-ipvs0 when it was last seen under its name.
    index: Option<u32>,
    seen: Seen,
    /// When it last bound an IPv6 VIP.
    bound_v6: Option<Instant>,
    /// The gateways of all routes, as read last.
    gateways: BTreeSet<IpAddr>,
    /// Whether kube-ipvs0 has no IPv6, and could not get it.
    ipv6_stays_off: bool,
}

/// How long an IPv6 address that was added may have no route yet: the kernel adds the routes in a work queue
/// (`addrconf_dad_work` in net/ipv6/addrconf.c).
const ROUTES_FOLLOW: Duration = Duration::from_secs(5);

/// What the last observation found that is not as this binding would make it.
#[derive(Debug, Default)]
struct Seen {
    /// The VIPs with a binding that is to be undone when they are bound or unbound.
    stale_bindings: BTreeSet<IpAddr>,
    /// Addresses on kube-ipvs0 that are not /32 or /128: somebody else's. Deleting takes the prefix.
    prefixes: BTreeMap<IpAddr, u8>,
    /// Those of the stale bindings that are addresses on kube-ipvs0, and are made right only by adding them again: IPv4
    /// addresses that may be a source, and those whose route is gone.
    added_again: BTreeSet<IpAddr>,
}

impl KernelDummyInterface {
    /// Opens a socket in the calling thread's network namespace; changes nothing.
    pub fn open(binding: VipBinding) -> Result<Self, Error> {
        Ok(Self {
            socket: socket()?,
            binding,
            tunnels: Tunnels::default(),
            index: None,
            seen: Seen::default(),
            bound_v6: None,
            gateways: BTreeSet::new(),
            ipv6_stays_off: false,
        })
    }

    /// With tunnels that take generic UDP encapsulation too, or not.
    #[must_use]
    pub fn with_gue(self, gue: bool) -> Self {
        Self { tunnels: Tunnels::with_gue(gue), ..self }
    }

    /// An address on kube-ipvs0, and whether it has its route.
    fn see_vip(&mut self, found: &InterfaceAddress, is_local: bool, observed: &mut Observed) {
        let vip = found.address;
        if found.prefix != host_prefix(vip) {
            self.seen.prefixes.insert(vip, found.prefix);
        }
        if self.binding != VipBinding::Address {
            observed.stale_bindings.insert(vip);
            return;
        }
        if is_local {
            observed.bound.insert(vip);
        }
        if !is_local || !found.as_a_vip {
            observed.stale_bindings.insert(vip);
        }
        if !is_local || (!found.as_a_vip && vip.is_ipv4()) {
            self.seen.added_again.insert(vip);
        }
    }

    /// Without IPv6 the kernel refuses each IPv6 VIP, but IPv4 ones are served: it is said once.
    fn say_whether_ipv6_stays_off(&mut self) {
        let off = ipv6_switch::is_off(DEVICE);
        if off && !self.ipv6_stays_off {
            tracing::warn!(
                "kube-ipvs0 has no IPv6, and no IPv6 VIP can be bound: sysctl -w net.ipv6.conf.{DEVICE}.disable_ipv6=0"
            );
        }
        self.ipv6_stays_off = off;
    }

    fn bind(&self, requests: &mut Requests, operation: usize, vip: IpAddr, device: u32) {
        match self.binding {
            // The route holds its place while the address is away.
            VipBinding::Address if self.seen.added_again.contains(&vip) => {
                requests.bind_route(operation, vip, None);
            }
            VipBinding::Address => requests.bind_address(operation, vip, device),
            VipBinding::Route { .. } => requests.bind_route(operation, vip, self.binding.source_towards(vip)),
        }
    }

    fn unbind(&self, requests: &mut Requests, operation: usize, vip: IpAddr, device: Option<u32>) {
        let both = self.seen.stale_bindings.contains(&vip);
        if both || self.binding == VipBinding::Address {
            self.unbind_address(requests, operation, vip, device);
        }
        if both || self.binding != VipBinding::Address {
            requests.unbind_route(operation, vip);
        }
    }

    fn unbind_address(&self, requests: &mut Requests, operation: usize, vip: IpAddr, device: Option<u32>) {
        let Some(device) = device else { return };
        // IPv4 may have it with either prefix, or both.
        for prefix in self.seen.prefixes.get(&vip).copied().into_iter().chain([host_prefix(vip)]) {
            requests.unbind_address(operation, vip, prefix, device);
        }
    }

    /// Removes the stale binding of a VIP, once the configured one is in place.
    fn unbind_stale(&self, requests: &mut Requests, operation: usize, vip: IpAddr, device: Option<u32>) {
        match self.binding {
            VipBinding::Address => requests.unbind_route(operation, vip),
            // A route with another source has been replaced already.
            VipBinding::Route { .. } => self.unbind_address(requests, operation, vip, device),
        }
    }
}

impl DummyInterface for KernelDummyInterface {
    fn observe(&mut self) -> Result<Observed, Error> {
        let device = Device::find_again(&mut self.socket, self.index)?;
        self.index = device.as_ref().map(|device| device.index);
        let right = device.as_ref().is_some_and(Device::is_right);
        let ipv6_is_off = ipv6_switch::is_off(DEVICE);
        self.ipv6_stays_off &= ipv6_is_off;
        let as_it_can_be = right && ipv6_is_off == self.ipv6_stays_off;
        let mut observed = Observed { device: as_it_can_be, ..Observed::default() };
        self.seen.prefixes.clear();
        self.seen.added_again.clear();
        let addresses = addresses(&mut self.socket, EVERY_INTERFACE)?;
        let routes = local_routes(&mut self.socket)?;
        let links = links(&mut self.socket)?;
        // In old kernels the route to an IPv6 address goes by `lo`, whatever device has the address.
        let is_of_device = |route: &&LocalRoute| {
            let by_lo = route.interface == LOOPBACK && !route.is_ours();
            by_lo || device.as_ref().is_some_and(|device| device.index == route.interface)
        };
        let local: BTreeSet<_> = routes.iter().filter(is_of_device).map(|route| route.to).collect();
        let routes_follow = self.bound_v6.is_some_and(|at| at.elapsed() < ROUTES_FOLLOW);
        let is_named = |link: &&Link| Family::BOTH.iter().any(|family| tunnel::is_named(link, *family));
        let tunnels: BTreeSet<_> = links.iter().filter(is_named).map(|link| link.index).collect();
        for found in addresses.iter().filter(|found| !found.is_link_local_v6()) {
            match &device {
                Some(device) if found.interface == device.index => {
                    // On a device that is no dummy they are somebody else's: no VIPs.
                    if device.is_dummy() {
                        let vip = found.address;
                        let is_local = local.contains(&vip) || (routes_follow && vip.is_ipv6());
                        self.see_vip(found, is_local, &mut observed);
                    }
                }
                _ if found.address.is_loopback() || tunnels.contains(&found.interface) => {}
                _ => _ = observed.node_addresses.insert(found.address),
            }
        }
        for route in routes.iter().filter(|route| route.is_ours()) {
            let as_configured = matches!(self.binding, VipBinding::Route { .. })
                && route.source == self.binding.source_towards(route.to);
            if as_configured {
                observed.bound.insert(route.to);
            } else {
                observed.stale_bindings.insert(route.to);
            }
        }
        self.seen.stale_bindings.clone_from(&observed.stale_bindings);
        let others = links.iter().filter(|link| link.is_a_way_out() && !tunnels.contains(&link.index));
        observed.link_mtu = others.filter_map(|link| link.mtu).min();
        match gateways(&mut self.socket) {
            Ok(found) => self.gateways = found,
            // Where routes change all the time, a list of them may never be complete.
            Err(error) => tracing::debug!("the gateways are taken to be those of before: {error}"),
        }
        observed.gateways.clone_from(&self.gateways);
        observed.tunnels = self.tunnels.observe(&mut self.socket, &links, &addresses)?;
        Ok(observed)
    }

    fn apply(&mut self, operations: &[Operation]) -> Result<Vec<FailedRequest>, Error> {
        let device = if operations.contains(&Operation::EnsureDevice) {
            let device = Device::ensure(&mut self.socket, self.index)?;
            self.say_whether_ipv6_stays_off();
            Some(device)
        } else {
            Device::find_again(&mut self.socket, self.index)?.filter(Device::is_dummy)
        };
        let device = device.map(|device| device.index);
        self.index = device;

        let mut requests = Requests::default();
        let mut failed = BTreeMap::new();
        for (position, operation) in operations.iter().enumerate() {
            match (*operation, device) {
                (Operation::EnsureDevice, _) => {}
                (Operation::EnsureTunnel(family), _) => {
                    refused(position, self.tunnels.ensure(&mut self.socket, family), &mut failed)?;
                }
                (Operation::RemoveTunnel(family), _) => {
                    refused(position, self.tunnels.remove(&mut self.socket, family), &mut failed)?;
                }
                (Operation::Bind(vip), Some(device)) => self.bind(&mut requests, position, vip, device),
                (Operation::Bind(_), None) => {
                    failed.insert(position, KernelError::new(Errno::ENODEV));
                }
                (Operation::Unbind(vip), device) => self.unbind(&mut requests, position, vip, device),
            }
        }
        failed.extend(requests.send(&mut self.socket)?);

        let mut again = Requests::default();
        for (position, operation) in operations.iter().enumerate() {
            if let (Operation::Bind(vip), Some(index)) = (*operation, device)
                && self.seen.added_again.contains(&vip)
                && !failed.contains_key(&position)
            {
                self.unbind_address(&mut again, position, vip, device);
                again.bind_address(position, vip, index);
            }
        }
        failed.extend(again.send(&mut self.socket)?);
        if operations.iter().any(|operation| matches!(operation, Operation::Bind(IpAddr::V6(_)))) {
            self.bound_v6 = Some(Instant::now());
        }

        // Only where the configured way is in place: the VIP stays bound all the time.
        let mut afterwards = Requests::default();
        for (position, operation) in operations.iter().enumerate() {
            if let Operation::Bind(vip) = *operation
                && self.seen.stale_bindings.contains(&vip)
                && !failed.contains_key(&position)
            {
                self.unbind_stale(&mut afterwards, position, vip, device);
            }
        }
        failed.extend(afterwards.send(&mut self.socket)?);

        for (position, operation) in operations.iter().enumerate() {
            if let Operation::Bind(vip) | Operation::Unbind(vip) = operation
                && !failed.contains_key(&position)
            {
                self.seen.stale_bindings.remove(vip);
                self.seen.added_again.remove(vip);
                self.seen.prefixes.remove(vip);
            }
        }
        Ok(failed.into_iter().map(|(index, error)| FailedRequest { index, error }).collect())
    }
}

/// Keeps what the kernel has refused for the change at this position. Without its answer nothing else is tried.
fn refused(
    position: usize,
    outcome: Result<(), netlink::Error>,
    failed: &mut BTreeMap<usize, KernelError>,
) -> Result<(), Error> {
    match outcome {
        Err(netlink::Error::Refused(error)) if error.errno != Errno::EPERM => {
            failed.insert(position, error);
            Ok(())
        }
        other => other.map_err(Error::during("make and remove tunnel devices")),
    }
}

impl VipBinding {
    /// The source of the node's own connections to a VIP of that family.
    fn source_towards(self, vip: IpAddr) -> Option<IpAddr> {
        match (self, vip) {
            (Self::Route { source_v4, .. }, IpAddr::V4(_)) => source_v4.map(IpAddr::V4),
            (Self::Route { source_v6, .. }, IpAddr::V6(_)) => source_v6.map(IpAddr::V6),
            (Self::Address, _) => None,
        }
    }
}
