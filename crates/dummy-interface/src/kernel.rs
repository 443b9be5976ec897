//! The real kernel.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ipvs::Family;
use netlink::{Errno, FailedRequest, KernelError, Socket};

use crate::{
    DummyInterface, Error, Observed, Operation, VipBinding,
    device::Device,
    links::{Link, links},
    observe::{EVERY_INTERFACE, InterfaceAddress, addresses, routes, socket},
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
}

/// What the last observation found that is not as this binding would make it.
#[derive(Debug, Default)]
struct Seen {
    /// The VIPs with a binding that is to be undone when they are bound or unbound.
    stale_bindings: BTreeSet<IpAddr>,
    /// Addresses on kube-ipvs0 that are not /32 or /128: somebody else's. Deleting takes the prefix.
    prefixes: BTreeMap<IpAddr, u8>,
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
        })
    }

    /// With tunnels that take generic UDP encapsulation too, or not.
    #[must_use]
    pub fn with_gue(self, gue: bool) -> Self {
        Self { tunnels: Tunnels::with_gue(gue), ..self }
    }

    /// An address on kube-ipvs0.
    fn see_vip(&mut self, found: &InterfaceAddress, observed: &mut Observed) {
        if found.prefix != host_prefix(found.address) {
            self.seen.prefixes.insert(found.address, found.prefix);
        }
        match self.binding {
            VipBinding::Address => observed.bound.insert(found.address),
            VipBinding::Route { .. } => observed.stale_bindings.insert(found.address),
        };
    }

    fn bind(&self, requests: &mut Requests, operation: usize, vip: IpAddr, device: u32) {
        match self.binding {
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
        let prefix = self.seen.prefixes.get(&vip).copied().unwrap_or(host_prefix(vip));
        requests.unbind_address(operation, vip, prefix, device);
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
        let mut observed =
            Observed { device: device.as_ref().is_some_and(Device::is_right), ..Observed::default() };
        self.seen.prefixes.clear();
        let addresses = addresses(&mut self.socket, EVERY_INTERFACE)?;
        let routes = routes(&mut self.socket)?;
        let links = links(&mut self.socket)?;
        let is_named = |link: &&Link| Family::BOTH.iter().any(|family| tunnel::is_named(link, *family));
        let tunnels: BTreeSet<_> = links.iter().filter(is_named).map(|link| link.index).collect();
        for found in addresses.iter().filter(|found| !found.is_link_local_v6()) {
            match &device {
                Some(device) if found.interface == device.index => {
                    // On a device that is no dummy they are somebody else's: no VIPs.
                    if device.is_dummy() {
                        self.see_vip(found, &mut observed);
                    }
                }
                _ if found.address.is_loopback() || tunnels.contains(&found.interface) => {}
                _ => _ = observed.node_addresses.insert(found.address),
            }
        }
        for route in routes {
            let as_configured = matches!(self.binding, VipBinding::Route { .. })
                && route.source == self.binding.source_towards(route.vip);
            if as_configured {
                observed.bound.insert(route.vip);
            } else {
                observed.stale_bindings.insert(route.vip);
            }
        }
        self.seen.stale_bindings.clone_from(&observed.stale_bindings);
        let others = links.iter().filter(|link| link.is_a_way_out() && !tunnels.contains(&link.index));
        observed.link_mtu = others.filter_map(|link| link.mtu).min();
        observed.tunnels = self.tunnels.observe(&mut self.socket, &links, &addresses)?;
        Ok(observed)
    }

    fn apply(&mut self, operations: &[Operation]) -> Result<Vec<FailedRequest>, Error> {
        let device = if operations.contains(&Operation::EnsureDevice) {
            Some(Device::ensure(&mut self.socket, self.index)?)
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
