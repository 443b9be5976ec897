//! Noticing that somebody changed something.

use std::{collections::BTreeMap, io, net::IpAddr};

use netlink::{Errno, Protocol, Socket};
use netlink_packet_core::NetlinkBuffer;
use rtnetlink::{
    MulticastGroup,
    packet_route::{
        AddressFamily,
        address::{AddressHeader, AddressScope},
        link::LinkHeader,
        route::{RouteHeader, RouteProtocol},
    },
    sys::{AsyncSocket, AsyncSocketExt, SocketAddr, TokioSocket, protocols::NETLINK_ROUTE},
};

use crate::{DEVICE, Error, ROUTE_PROTOCOL, VipBinding, device::Device};

// Message types, include/uapi/linux/rtnetlink.h.
const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const RTM_DELROUTE: u16 = 25;

// Headers and attributes, include/uapi/linux/{if_link,if_addr,rtnetlink}.h.
const LINK_HEADER_LENGTH: usize = 16;
const IFLA_IFNAME: u16 = 3;
const ADDRESS_HEADER_LENGTH: usize = 8;
const IFA_ADDRESS: u16 = 1;
const ROUTE_HEADER_LENGTH: usize = 12;
const RTA_DST: u16 = 1;

/// The largest datagram of notifications: the kernel sends one message in each, below a page or two.
const DATAGRAM: usize = 32 << 10;

/// So many notifications at most become one [`Changed`], so that a flood cannot hold it back.
const AT_ONCE: usize = 1024;

/// What has changed, by whoever's hand, ours included: compare it with what is wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// kube-ipvs0 itself, or notifications were lost: everything must be looked at.
    pub everything: bool,
    /// The addresses that came to kube-ipvs0 (true) or left it (false), and with routes those whose
    /// route of ours was removed (false); each as it was last told.
    pub vips: BTreeMap<IpAddr, bool>,
    /// The addresses of another interface, link-local ones aside, or only their lifetimes.
    pub node_addresses: bool,
}

impl Changed {
    /// Anything may have changed.
    pub fn everything() -> Self {
        Self { everything: true, vips: BTreeMap::new(), node_addresses: true }
    }

    fn anything(&self) -> bool {
        self.everything || self.node_addresses || !self.vips.is_empty()
    }
}

/// A subscription to the kernel's notifications about links, addresses and, where VIPs are bound by
/// routes, routes.
///
/// Notifications wait in the socket until they are asked for, and then come as one [`Changed`]: ten
/// thousand VIPs bound at a stroke cause a handful of reads.
pub struct Monitor {
    socket: TokioSocket,
    reader: Socket,
    buffer: Vec<u8>,
    device: Option<u32>,
    pending: Changed,
}

impl Monitor {
    /// Subscribes in the calling thread's network namespace. What happens from here on is reported.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime with I/O enabled.
    pub fn start(binding: VipBinding) -> Result<Self, Error> {
        let cannot = |source: io::Error| {
            let source = netlink::Error::Open { operation: "subscribe", protocol: "route", source };
            Error::Netlink { operation: "watch links, addresses and routes", source }
        };
        let mut groups = vec![MulticastGroup::Link, MulticastGroup::Ipv4Ifaddr, MulticastGroup::Ipv6Ifaddr];
        if binding != VipBinding::Address {
            groups.extend([MulticastGroup::Ipv4Route, MulticastGroup::Ipv6Route]);
        }
        // Groups 1 to 31 are bits of the socket's address.
        let bits = groups.into_iter().fold(0, |bits, group| bits | 1 << (group as u32 - 1));
        let mut socket = TokioSocket::new(NETLINK_ROUTE).map_err(cannot)?;
        socket.socket_mut().bind(&SocketAddr::new(0, bits)).map_err(cannot)?;

        let mut reader = Socket::open(Protocol::Route).map_err(Error::of("open a socket"))?;
        let device = Device::find(&mut reader)?.map(|device| device.index);
        let buffer = Vec::with_capacity(DATAGRAM);
        Ok(Self { socket, reader, buffer, device, pending: Changed::default() })
    }

    /// Waits until something has changed since the last call. Safe to cancel: nothing is forgotten.
    pub async fn changed(&mut self) -> Result<Changed, Error> {
        while !self.pending.anything() {
            self.buffer.clear();
            let received = self.socket.recv(&mut self.buffer).await;
            self.take(received)?;
        }
        for _ in 0..AT_ONCE {
            self.buffer.clear();
            match self.socket.socket_ref().recv(&mut self.buffer, 0) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                received => self.take(received.map(|_| ()))?,
            }
        }
        Ok(std::mem::take(&mut self.pending))
    }

    fn take(&mut self, received: io::Result<()>) -> Result<(), Error> {
        match received {
            Ok(()) => self.read(),
            // The queue was full and notifications are lost.
            Err(error) if error.raw_os_error() == Some(Errno::ENOBUFS as i32) => {
                self.pending = Changed::everything();
                self.device = Device::find(&mut self.reader)?.map(|device| device.index);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                let source = netlink::Error::Receive(error);
                return Err(Error::Netlink { operation: "watch links, addresses and routes", source });
            }
        }
        Ok(())
    }

    /// Folds the datagram into what is pending. What cannot be read is skipped: it is not about us.
    fn read(&mut self) {
        let buffer = std::mem::take(&mut self.buffer);
        let mut rest = buffer.as_slice();
        while let Ok(message) = NetlinkBuffer::new_checked(rest) {
            match message.message_type() {
                RTM_NEWLINK => self.link(message.payload(), true),
                RTM_DELLINK => self.link(message.payload(), false),
                RTM_NEWADDR => self.address(message.payload(), true),
                RTM_DELADDR => self.address(message.payload(), false),
                RTM_DELROUTE => self.route_gone(message.payload()),
                _ => {}
            }
            let length = usize::try_from(message.length()).unwrap_or(usize::MAX);
            rest = length.checked_next_multiple_of(4).and_then(|next| rest.get(next..)).unwrap_or_default();
        }
        self.buffer = buffer;
    }

    fn link(&mut self, payload: &[u8], exists: bool) {
        let Ok(header) = LinkHeader::parse(payload) else { return };
        let named_so = netlink::attributes(payload.get(LINK_HEADER_LENGTH..).unwrap_or_default())
            .filter_map(Result::ok)
            .find(|attribute| attribute.kind == IFLA_IFNAME)
            .is_some_and(|name| name.string().is_ok_and(|name| name == DEVICE));
        // By its number too: it may have been renamed.
        if named_so || Some(header.index) == self.device {
            self.pending.everything = true;
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
        if Some(header.index) == self.device {
            self.vip(payload.get(ADDRESS_HEADER_LENGTH..), IFA_ADDRESS, exists);
        } else {
            self.pending.node_addresses = true;
        }
    }

    fn route_gone(&mut self, payload: &[u8]) {
        let Ok(header) = RouteHeader::parse(payload) else { return };
        if header.protocol == RouteProtocol::from(ROUTE_PROTOCOL) {
            self.vip(payload.get(ROUTE_HEADER_LENGTH..), RTA_DST, false);
        }
    }

    /// Notes the address in attribute `kind`; what has none that can be read may be anything.
    fn vip(&mut self, attributes: Option<&[u8]>, kind: u16, bound: bool) {
        let found = netlink::attributes(attributes.unwrap_or_default())
            .filter_map(Result::ok)
            .find(|attribute| attribute.kind == kind);
        let address = found.and_then(|attribute| match attribute.payload.len() {
            4 => attribute.array::<4>().ok().map(IpAddr::from),
            _ => attribute.array::<16>().ok().map(IpAddr::from),
        });
        match address {
            Some(vip) => _ = self.pending.vips.insert(vip, bound),
            None => self.pending.everything = true,
        }
    }
}
