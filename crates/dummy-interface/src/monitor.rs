//! Notifications of changes of kube-ipvs0, VIPs, tunnels and the node's own addresses.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    net::IpAddr,
};

use netlink::{Notifications, Protocol, Reply, Socket};
use rtnetlink::{
    MulticastGroup,
    packet_route::{
        AddressFamily,
        address::{AddressHeader, AddressScope},
        link::LinkHeader,
        route::{RouteHeader, RouteProtocol},
    },
};

use crate::{
    DEVICE, Error, ROUTE_PROTOCOL, VipBinding,
    addresses::{EVERY_INTERFACE, addresses},
    binding::is_as_made,
    direct_return::{is_tunnel_end, is_tunnel_name, tunnel_numbers},
    link::Device,
    message::{
        IFLA_IFNAME, LINK_HEADER, NETCONF_HEADER, NETCONFA_IFINDEX, ROUTE_HEADER, RTA_DST, find, find_ip,
        local_address, socket,
    },
};

// Message types, include/uapi/linux/rtnetlink.h.
const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const RTM_DELROUTE: u16 = 25;
const RTM_NEWNETCONF: u16 = 80;

/// Changes since the last report, our own included: compare them with what is wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// kube-ipvs0 itself or a tunnel device; an address came to kube-ipvs0, or was changed there, that the kernel may take as a
    /// source; or notifications were lost: everything must be read.
    pub everything: bool,
    /// The addresses that came to kube-ipvs0 (true) or left it (false), and with routes those whose
    /// route of ours was removed (false); the last report of each counts.
    pub vips: BTreeMap<IpAddr, bool>,
    /// The addresses of another interface, link-local ones aside. A renewed lifetime is not a change.
    pub node_addresses: bool,
}

impl Changed {
    /// Changes of everything.
    pub fn everything() -> Self {
        Self { everything: true, vips: BTreeMap::new(), node_addresses: true }
    }

    /// The changes in one datagram of notifications; `device` is the number of kube-ipvs0, if it exists.
    pub fn from_datagram(datagram: &[u8], device: Option<u32>) -> Self {
        let mut pending = Pending { device, ..Pending::default() };
        netlink::each_notification(datagram, |notification| pending.take(notification));
        pending.changed
    }

    fn anything(&self) -> bool {
        self.everything || self.node_addresses || !self.vips.is_empty()
    }
}

/// A subscription to the kernel's notifications about links, addresses and, where VIPs are bound by
/// routes, routes.
///
/// Notifications wait in the socket until they are read, and are then combined into one [`Changed`]: ten
/// thousand VIPs bound at once cause a handful of reads.
pub struct Monitor {
    notifications: Notifications,
    reader: Socket,
    pending: Pending,
}

impl Monitor {
    /// Subscribes in the calling thread's network namespace. Later changes are reported.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime with I/O enabled.
    pub fn start(binding: VipBinding) -> Result<Self, Error> {
        let mut groups = vec![
            MulticastGroup::Link,
            MulticastGroup::Ipv4Ifaddr,
            MulticastGroup::Ipv6Ifaddr,
            MulticastGroup::Ipv4Netconf,
        ];
        if binding != VipBinding::Address {
            groups.extend([MulticastGroup::Ipv4Route, MulticastGroup::Ipv6Route]);
        }
        let groups: Vec<_> = groups.into_iter().map(|group| group as u32).collect();
        let notifications =
            Notifications::subscribe(Protocol::Route, &groups).map_err(Error::during(WATCH))?;
        let mut reader = socket()?;
        let pending = Pending::read(&mut reader)?;
        Ok(Self { notifications, reader, pending })
    }

    /// Waits until something has changed since the last call. Safe to cancel: nothing is forgotten.
    pub async fn changed(&mut self) -> Result<Changed, Error> {
        while !self.pending.changed.anything() {
            match self.notifications.receive(|notification| self.pending.take(notification)).await {
                Ok(()) => {}
                Err(netlink::Error::StateUnknown) => {
                    self.pending = Pending::read(&mut self.reader)?;
                    self.pending.changed = Changed::everything();
                }
                Err(source) => return Err(Error::during(WATCH)(source)),
            }
        }
        Ok(mem::take(&mut self.pending.changed))
    }
}

const WATCH: &str = "watch links, addresses and routes";

/// Changes that the kernel has reported and that are still to be passed on, and what is needed to recognise them.
#[derive(Default)]
struct Pending {
    /// The number of kube-ipvs0.
    device: Option<u32>,
    /// The numbers of the tunnel devices.
    tunnels: BTreeSet<u32>,
    /// The addresses of other interfaces, by their numbers: the kernel reports an address again when its lifetime is
    /// renewed, as each router advertisement does.
    known: BTreeSet<(u32, IpAddr)>,
    changed: Changed,
}

impl Pending {
    fn read(reader: &mut Socket) -> Result<Self, Error> {
        let device = Device::find(reader)?.map(|device| device.index);
        let tunnels = tunnel_numbers(reader).map_err(Error::during(WATCH))?;
        // An address that is not known is only reported once more.
        let known = addresses(reader, EVERY_INTERFACE).unwrap_or_default();
        let known = known.into_iter().filter(|found| Some(found.interface) != device);
        let known = known.map(|found| (found.interface, found.address)).collect();
        Ok(Self { device, tunnels, known, changed: Changed::default() })
    }

    /// Adds a notification. One that cannot be read is skipped: it does not concern us.
    fn take(&mut self, notification: &Reply<'_>) {
        match notification.kind {
            RTM_NEWLINK => self.link(notification.payload, true),
            RTM_DELLINK => self.link(notification.payload, false),
            RTM_NEWADDR => self.address(notification.payload, true),
            RTM_DELADDR => self.address(notification.payload, false),
            RTM_DELROUTE => self.route_gone(notification.payload),
            RTM_NEWNETCONF => self.setting(notification.payload),
            _ => {}
        }
    }

    fn link(&mut self, payload: &[u8], exists: bool) {
        let Ok(header) = LinkHeader::parse(payload) else { return };
        let name = find(payload, LINK_HEADER, IFLA_IFNAME).and_then(|name| name.string().ok());
        let named_so = name == Some(DEVICE);
        // By number too: it may have been renamed.
        self.changed.everything |= self.tunnels.contains(&header.index);
        // The kernel reports a tunnel device only when it has changed, not when packets come out of it.
        if name.is_some_and(is_tunnel_name) {
            self.changed.everything = true;
            self.tunnels.insert(header.index);
        }
        if !exists {
            self.tunnels.remove(&header.index);
            self.known.retain(|(interface, _)| *interface != header.index);
        }
        if named_so || Some(header.index) == self.device {
            self.changed.everything = true;
            self.device = (named_so && exists).then_some(header.index);
        }
    }

    fn address(&mut self, payload: &[u8], exists: bool) {
        let Ok(header) = AddressHeader::parse(payload) else { return };
        let link_local = header.family == AddressFamily::Inet6 && header.scope == AddressScope::Link;
        // Every interface that comes up gets one.
        if link_local {
            return;
        }
        let address = local_address(payload);
        if Some(header.index) == self.device {
            self.vip(address, exists);
            self.changed.everything |= exists && !is_as_made(&header);
        } else if address.is_some_and(is_tunnel_end) {
            self.changed.everything = true;
        } else {
            let renewed = address.is_some_and(|address| {
                let known = (header.index, address);
                let was_known = self.known.contains(&known);
                if exists {
                    self.known.insert(known)
                } else {
                    self.known.remove(&known)
                };
                exists && was_known
            });
            self.changed.node_addresses |= !renewed;
        }
    }

    /// A kernel parameter of a device, such as its `rp_filter`: udev sets it after the device was made.
    fn setting(&mut self, payload: &[u8]) {
        let number = find(payload, NETCONF_HEADER, NETCONFA_IFINDEX).and_then(|number| number.u32().ok());
        self.changed.everything |= number.is_some_and(|number| self.tunnels.contains(&number));
    }

    fn route_gone(&mut self, payload: &[u8]) {
        let Ok(header) = RouteHeader::parse(payload) else { return };
        if header.protocol == RouteProtocol::from(ROUTE_PROTOCOL) {
            self.vip(find_ip(payload, ROUTE_HEADER, RTA_DST), false);
        }
    }

    /// Adds the address. Without a readable one, anything may have changed.
    fn vip(&mut self, address: Option<IpAddr>, bound: bool) {
        match address {
            Some(vip) => _ = self.changed.vips.insert(vip, bound),
            None => self.changed.everything = true,
        }
    }
}
