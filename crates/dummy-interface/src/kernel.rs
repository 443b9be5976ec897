//! The real kernel.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::{Duration, Instant},
};

use netlink::{Errno, FailedRequest, KernelError, Socket};

use crate::{
    DEVICE, DummyInterface, Error, LOOPBACK, Observed, Operation, VipBinding,
    addresses::{EVERY_INTERFACE, InterfaceAddress, LocalRoute, addresses, gateways, local_routes},
    binding::Requests,
    direct_return::{Tunnels, is_tunnel},
    link::{Device, lacks_ipv6, links, remove_device},
    message::{host_prefix, socket},
};

/// The links, addresses and routes of the network namespace in which it was opened.
#[derive(Debug)]
pub struct KernelDummyInterface {
    socket: Socket,
    binding: VipBinding,
    tunnels: Tunnels,
    /// The number of kube-ipvs0 when it was last observed under its name.
    index: Option<u32>,
    /// The VIPs whose bindings differ from the configured one, as last observed.
    deviating: BTreeMap<IpAddr, Deviation>,
    /// When it last bound an IPv6 VIP.
    bound_v6: Option<Instant>,
    /// The gateways of all routes, as read last.
    gateways: BTreeSet<IpAddr>,
    /// Whether kube-ipvs0 has no IPv6, and could not get it.
    lacks_ipv6: bool,
}

/// How long an IPv6 address that was added may have no route: the kernel adds the routes in a work queue
/// (`addrconf_dad_work` in net/ipv6/addrconf.c).
const ROUTES_FOLLOW: Duration = Duration::from_secs(5);

/// How a VIP's bindings differ from those that this binding would make.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Deviation {
    /// It has a binding that is to be undone when it is bound or unbound.
    is_stale: bool,
    /// It is an address on kube-ipvs0 and can be corrected only by adding it again: an IPv4 address that may be a source,
    /// or an address whose route is gone.
    is_added_again: bool,
    /// The prefix of its address on kube-ipvs0, unless that is /32 or /128: another program's. Deleting takes the prefix.
    prefix: Option<u8>,
}

impl Deviation {
    /// Adds that of another address or route of the same VIP.
    fn add(&mut self, other: Self) {
        self.is_stale |= other.is_stale;
        self.is_added_again |= other.is_added_again;
        self.prefix = other.prefix.or(self.prefix);
    }
}

impl KernelDummyInterface {
    /// Opens a socket in the calling thread's network namespace; changes nothing.
    pub fn open(binding: VipBinding) -> Result<Self, Error> {
        Ok(Self {
            socket: socket()?,
            binding,
            tunnels: Tunnels::default(),
            index: None,
            deviating: BTreeMap::new(),
            bound_v6: None,
            gateways: BTreeSet::new(),
            lacks_ipv6: false,
        })
    }

    /// Sets whether tunnels also accept generic UDP encapsulation.
    #[must_use]
    pub fn with_gue(self, gue: bool) -> Self {
        Self { tunnels: Tunnels::with_gue(gue), ..self }
    }

    /// Reads the bindings of VIPs from the addresses on kube-ipvs0 and the routes.
    fn observe_vips<'a>(
        &mut self,
        on_device: impl Iterator<Item = &'a InterfaceAddress>,
        routes: &[LocalRoute],
        observed: &mut Observed,
    ) {
        // In old kernels the route to an IPv6 address goes by `lo`, whatever device has the address.
        let is_of_device = |route: &&LocalRoute| {
            let by_lo = route.interface == LOOPBACK && !route.is_ours();
            by_lo || Some(route.interface) == self.index
        };
        let local: BTreeSet<_> = routes.iter().filter(is_of_device).map(|route| route.to).collect();
        let routes_follow = self.bound_v6.is_some_and(|at| at.elapsed() < ROUTES_FOLLOW);
        self.deviating.clear();
        for found in on_device {
            let vip = found.address;
            let is_local = local.contains(&vip) || (routes_follow && vip.is_ipv6());
            let by_address = self.binding == VipBinding::Address;
            if by_address && is_local {
                observed.bound.insert(vip);
            }
            let deviation = Deviation {
                is_stale: !by_address || !is_local || !found.as_a_vip,
                is_added_again: by_address && (!is_local || (!found.as_a_vip && vip.is_ipv4())),
                prefix: (found.prefix != host_prefix(vip)).then_some(found.prefix),
            };
            if deviation != Deviation::default() {
                self.deviating.entry(vip).or_default().add(deviation);
            }
        }
        for route in routes.iter().filter(|route| route.is_ours()) {
            if self.binding.makes_route(route.to, route.source) {
                observed.bound.insert(route.to);
            } else {
                self.deviating.entry(route.to).or_default().is_stale = true;
            }
        }
        let stale = self.deviating.iter().filter(|(_, deviation)| deviation.is_stale);
        observed.stale_bindings = stale.map(|(vip, _)| *vip).collect();
    }

    fn deviation(&self, vip: IpAddr) -> Deviation {
        self.deviating.get(&vip).copied().unwrap_or_default()
    }

    fn bind(&self, requests: &mut Requests, operation: usize, vip: IpAddr, device: u32) {
        match self.binding {
            // The route holds its place while the address is away.
            VipBinding::Address if self.deviation(vip).is_added_again => {
                requests.bind_route(operation, vip, None);
            }
            VipBinding::Address => requests.bind_address(operation, vip, device),
            VipBinding::Route { .. } => requests.bind_route(operation, vip, self.binding.source_towards(vip)),
        }
    }

    fn unbind(&self, requests: &mut Requests, operation: usize, vip: IpAddr, device: Option<u32>) {
        let both = self.deviation(vip).is_stale;
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
        for prefix in self.deviation(vip).prefix.into_iter().chain([host_prefix(vip)]) {
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

    /// Warns, once, if kube-ipvs0 lacks IPv6: the kernel refuses each IPv6 VIP then, but IPv4 ones are served.
    fn warn_without_ipv6(&mut self) {
        let lacks = lacks_ipv6(DEVICE);
        if lacks && !self.lacks_ipv6 {
            tracing::warn!(
                "IPv6 is disabled on kube-ipvs0, so no IPv6 VIP can be bound: sysctl -w net.ipv6.conf.{DEVICE}.disable_ipv6=0"
            );
        }
        self.lacks_ipv6 = lacks;
    }
}

impl DummyInterface for KernelDummyInterface {
    fn observe(&mut self) -> Result<Observed, Error> {
        let device = Device::find_again(&mut self.socket, self.index)?;
        self.index = device.as_ref().map(|device| device.index);
        let right = device.as_ref().is_some_and(Device::is_right);
        let lacks_ipv6 = lacks_ipv6(DEVICE);
        self.lacks_ipv6 &= lacks_ipv6;
        let mut observed = Observed { device: right && lacks_ipv6 == self.lacks_ipv6, ..Observed::default() };
        let addresses = addresses(&mut self.socket, EVERY_INTERFACE)?;
        let routes = local_routes(&mut self.socket)?;
        let links = links(&mut self.socket)?;

        let tunnels: BTreeSet<_> =
            links.iter().filter(|link| is_tunnel(link)).map(|link| link.index).collect();
        let usable = addresses.iter().filter(|found| !found.is_link_local_v6());
        let (on_device, elsewhere): (Vec<_>, Vec<_>) =
            usable.partition(|found| Some(found.interface) == self.index);
        // On a device that is not a dummy they belong to another program: they are not VIPs.
        let is_dummy = device.is_some_and(|device| device.is_dummy());
        let vips = on_device.into_iter().filter(|_| is_dummy);
        self.observe_vips(vips, &routes, &mut observed);
        let is_nodes =
            |found: &&&InterfaceAddress| !found.address.is_loopback() && !tunnels.contains(&found.interface);
        observed.node_addresses = elsewhere.iter().filter(is_nodes).map(|found| found.address).collect();

        let others = links.iter().filter(|link| link.is_way_out() && !tunnels.contains(&link.index));
        observed.link_mtu = others.filter_map(|link| link.mtu).min();
        match gateways(&mut self.socket) {
            Ok(found) => self.gateways = found,
            // Where routes change all the time, a list of them may never be complete.
            Err(error) => tracing::debug!("keeping the gateways that were read before: {error}"),
        }
        observed.gateways.clone_from(&self.gateways);
        observed.tunnels = self.tunnels.observe(&mut self.socket, &links, &addresses)?;
        Ok(observed)
    }

    fn apply(&mut self, operations: &[Operation]) -> Result<Vec<FailedRequest>, Error> {
        let device = if operations.contains(&Operation::EnsureDevice) {
            let device = Device::ensure(&mut self.socket, self.index)?;
            self.warn_without_ipv6();
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
        for (position, vip) in bound(operations, &failed) {
            if let Some(index) = device
                && self.deviation(vip).is_added_again
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
        for (position, vip) in bound(operations, &failed).filter(|(_, vip)| self.deviation(*vip).is_stale) {
            self.unbind_stale(&mut afterwards, position, vip, device);
        }
        failed.extend(afterwards.send(&mut self.socket)?);

        for (position, operation) in operations.iter().enumerate() {
            if let Operation::Bind(vip) | Operation::Unbind(vip) = operation
                && !failed.contains_key(&position)
            {
                self.deviating.remove(vip);
            }
        }
        Ok(failed.into_iter().map(|(index, error)| FailedRequest { index, error }).collect())
    }
}

/// The VIPs that were to be bound and did not fail, with the position of the operation.
fn bound(
    operations: &[Operation],
    failed: &BTreeMap<usize, KernelError>,
) -> impl Iterator<Item = (usize, IpAddr)> {
    operations.iter().enumerate().filter_map(|(position, operation)| match operation {
        Operation::Bind(vip) if !failed.contains_key(&position) => Some((position, *vip)),
        _ => None,
    })
}

/// Keeps the kernel's refusal of the operation at this position. Without an answer of the kernel nothing else is tried.
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

/// Binds each address on kube-ipvs0 as a route, and deletes the device.
///
/// The addresses stay local all the time, so connections that the node has opened from one of them go on. What it opens
/// from then on comes from the source of its family, as in [`VipBinding::Route`], and does not break when the routes go.
pub fn replace_device_by_routes(
    source_v4: Option<Ipv4Addr>,
    source_v6: Option<Ipv6Addr>,
) -> Result<(), Error> {
    let vips = KernelDummyInterface::open(VipBinding::Address)?.observe()?.bound;
    let routes = VipBinding::Route { source_v4, source_v6 };
    let mut requests = Requests::default();
    for (position, vip) in vips.into_iter().enumerate() {
        requests.bind_route(position, vip, routes.source_towards(vip));
    }
    // The addresses go with the device, all at once.
    match requests.send(&mut socket()?)?.pop_first() {
        Some((_, error)) => Err(Error::during("bind a VIP as a route")(error.into())),
        None => remove_device().map(drop),
    }
}
