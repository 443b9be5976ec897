//! Links: reading them, and kube-ipvs0 itself: finding, creating, correcting and deleting it.

use std::{fs, net::IpAddr};

use netlink::{Errno, Socket, if_exists};
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use rtnetlink::{
    LinkDummy, LinkUnspec,
    packet_route::{
        RouteNetlinkMessage,
        link::{LinkAttribute, LinkExtentMask, LinkFlags, LinkHeader, LinkMessage},
    },
};

use crate::{
    DEVICE, Error,
    message::{
        AF_INET, IFLA_AF_SPEC, IFLA_IFNAME, IFLA_INET_CONF, IFLA_INFO_DATA, IFLA_INFO_KIND, IFLA_IPTUN_LOCAL,
        IFLA_LINKINFO, IFLA_MTU, IFLA_STATS64, LINK_HEADER, dump, execute, find, find_ip, request, socket,
    },
};

/// A link: the part of it that matters here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) index: u32,
    pub(crate) name: Option<Box<str>>,
    /// `None` for a device of no kind: a physical one, or `lo`.
    pub(crate) kind: Option<Box<str>>,
    pub(crate) flags: LinkFlags,
    /// In bytes.
    pub(crate) mtu: Option<u32>,
    /// The near end of a tunnel.
    pub(crate) tunnel_from: Option<IpAddr>,
    /// `net.ipv4.conf.NAME.rp_filter`.
    pub(crate) rp_filter: Option<u32>,
    /// How many packets have come in by it; not read for all links at once.
    pub(crate) received: Option<u64>,
}

impl Link {
    /// The link that a request names; `None` if it does not exist.
    pub(crate) fn get(socket: &mut Socket, named: LinkMessage) -> Result<Option<Self>, netlink::Error> {
        let mut request = request(&RouteNetlinkMessage::GetLink(named), 0);
        let cut = || netlink::Error::Malformed { what: "a link without its header".to_owned() };
        let link =
            socket.get(&mut request, |reply| Self::from_message(reply.payload).ok_or_else(cut).map(Some));
        Ok(if_exists(link, &[Errno::ENODEV])?.flatten())
    }

    fn from_message(message: &[u8]) -> Option<Self> {
        let header = LinkHeader::parse(message).ok()?;
        let attribute = |kind| find(message, LINK_HEADER, kind);
        let text = |attribute: netlink::Attribute<'_>| attribute.string().ok().map(Into::into);
        let info = attribute(IFLA_LINKINFO).map(|info| info.payload);
        let data = info.and_then(|info| find(info, 0, IFLA_INFO_DATA));
        Some(Self {
            index: header.index,
            name: attribute(IFLA_IFNAME).and_then(text),
            kind: info.and_then(|info| find(info, 0, IFLA_INFO_KIND)).and_then(text),
            flags: header.flags,
            mtu: attribute(IFLA_MTU).and_then(|mtu| mtu.u32().ok()),
            tunnel_from: data.and_then(|data| find_ip(data.payload, 0, IFLA_IPTUN_LOCAL)),
            rp_filter: attribute(IFLA_AF_SPEC).and_then(|families| rp_filter(families.payload)),
            // The first field of `rtnl_link_stats64`.
            received: attribute(IFLA_STATS64)
                .and_then(|stats| Some(u64::from_ne_bytes(*stats.payload.first_chunk()?))),
        })
    }

    /// Whether packets to other nodes may leave by it: it is up, and does not lead back to this node.
    pub(crate) fn is_way_out(&self) -> bool {
        self.flags.contains(LinkFlags::Up) && !self.flags.contains(LinkFlags::Loopback)
    }
}

/// The value in the settings of IPv4, which the kernel lists in the order of their numbers, the first of which is 1
/// (`inet_fill_link_af` in net/ipv4/devinet.c).
fn rp_filter(families: &[u8]) -> Option<u32> {
    const IPV4_DEVCONF_RP_FILTER: usize = 8;
    let settings = find(find(families, 0, AF_INET)?.payload, 0, IFLA_INET_CONF)?.payload;
    let value = settings.chunks_exact(4).nth(IPV4_DEVCONF_RP_FILTER - 1)?;
    Some(u32::from_ne_bytes(value.try_into().ok()?))
}

/// Every link of the network namespace, without its counters.
pub(crate) fn links(socket: &mut Socket) -> Result<Vec<Link>, Error> {
    let mut message = LinkMessage::default();
    message.attributes.push(LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]));
    dump(socket, &RouteNetlinkMessage::GetLink(message), "read links", Link::from_message)
}

/// The link that is kube-ipvs0, of any kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Device {
    pub(crate) index: u32,
    link: Link,
}

impl Device {
    /// The device, by its name; `None` if it does not exist.
    pub(crate) fn find(socket: &mut Socket) -> Result<Option<Self>, Error> {
        Self::get(socket, LinkUnspec::new_with_name(DEVICE).build())
    }

    /// The device, by its name or, if it was renamed, by the number that it had: the VIPs are on it under any name.
    pub(crate) fn find_again(socket: &mut Socket, index: Option<u32>) -> Result<Option<Self>, Error> {
        match (Self::find(socket)?, index) {
            (None, Some(index)) => {
                let found = Self::get(socket, LinkUnspec::new_with_index(index).build())?;
                Ok(found.filter(Self::is_dummy))
            }
            (found, _) => Ok(found),
        }
    }

    fn get(socket: &mut Socket, named: LinkMessage) -> Result<Option<Self>, Error> {
        let link = Link::get(socket, named).map_err(Error::during("look up kube-ipvs0"))?;
        Ok(link.map(|link| Self { index: link.index, link }))
    }

    /// Creates the device if it is missing, and makes it NOARP if it is not. One that had this number, and has been
    /// renamed, gets its name back.
    pub(crate) fn ensure(socket: &mut Socket, index: Option<u32>) -> Result<Self, Error> {
        let device = match Self::find_again(socket, index)? {
            Some(device) => device,
            None => Self::create(socket)?,
        };
        if !device.has_name() {
            device.rename(socket).map_err(Error::during("give kube-ipvs0 its name back"))?;
        }
        if !device.is_dummy() {
            return Err(Error::NotADummy { kind: device.kind_name() });
        }
        ensure_ipv6(DEVICE);
        if !device.is_noarp() {
            let message = LinkUnspec::new_with_index(device.index).arp(false).build();
            execute(socket, &RouteNetlinkMessage::SetLink(message), 0)
                .map_err(Error::during("make kube-ipvs0 NOARP"))?;
        }
        Ok(device)
    }

    /// Gives the device its name. Before 6.2 a device that is up keeps the one it has (`dev_change_name` in
    /// net/core/dev.c); it has no need to be up.
    fn rename(&self, socket: &mut Socket) -> Result<(), netlink::Error> {
        let mut change = |message| execute(socket, &RouteNetlinkMessage::SetLink(message), 0);
        let named = || LinkUnspec::new_with_index(self.index).name(DEVICE.to_owned()).build();
        match change(named()) {
            Err(error) if error.errno() == Some(Errno::EBUSY) => {
                change(LinkUnspec::new_with_index(self.index).down().build())?;
                change(named())?;
            }
            done => done?,
        }
        tracing::info!(device = DEVICE, "renamed back");
        Ok(())
    }

    /// A dummy is created DOWN and NOARP (`dummy_setup` in drivers/net/dummy.c).
    fn create(socket: &mut Socket) -> Result<Self, Error> {
        let message = RouteNetlinkMessage::NewLink(LinkDummy::new(DEVICE).build());
        match execute(socket, &message, NLM_F_CREATE | NLM_F_EXCL) {
            Err(error) if error.errno() == Some(Errno::EOPNOTSUPP) => return Err(Error::NoDummyModule),
            Err(error) if error.errno() != Some(Errno::EEXIST) => {
                return Err(Error::during("create kube-ipvs0")(error));
            }
            _ => tracing::info!(device = DEVICE, "created"),
        }
        Self::find(socket)?.ok_or_else(|| {
            Error::during("find kube-ipvs0 just created")(netlink::KernelError::new(Errno::ENODEV).into())
        })
    }

    pub(crate) fn is_dummy(&self) -> bool {
        self.link.kind.as_deref() == Some("dummy")
    }

    /// Whether the device is what [`Self::ensure`] makes of it.
    pub(crate) fn is_right(&self) -> bool {
        self.is_dummy() && self.is_noarp() && self.has_name()
    }

    fn is_noarp(&self) -> bool {
        self.link.flags.contains(LinkFlags::Noarp)
    }

    /// Another program may have renamed it.
    fn has_name(&self) -> bool {
        self.link.name.as_deref() == Some(DEVICE)
    }

    fn kind_name(&self) -> String {
        self.link.kind.as_deref().unwrap_or("physical").to_owned()
    }
}

/// Deletes kube-ipvs0 with every address on it. Returns whether there was one. A device of that name that is not a dummy
/// belongs to another program: [`Error::NotADummy`].
pub fn remove_device() -> Result<bool, Error> {
    let mut socket = socket()?;
    let Some(device) = removable(&mut socket)? else { return Ok(false) };
    let message = RouteNetlinkMessage::DelLink(LinkUnspec::new_with_index(device.index).build());
    let deleted = if_exists(execute(&mut socket, &message, 0), &[Errno::ENODEV]);
    Ok(deleted.map_err(Error::during("delete kube-ipvs0"))?.is_some())
}

/// Whether [`remove_device`] would delete one, or its error. Writes nothing.
pub fn has_removable_device() -> Result<bool, Error> {
    Ok(removable(&mut socket()?)?.is_some())
}

fn removable(socket: &mut Socket) -> Result<Option<Device>, Error> {
    match Device::find(socket)? {
        Some(device) if !device.is_dummy() => Err(Error::NotADummy { kind: device.kind_name() }),
        found => Ok(found),
    }
}

/// Whether kube-ipvs0 exists.
pub fn has_device() -> Result<bool, Error> {
    Ok(Device::find(&mut socket()?)?.is_some())
}

/// Whether an interface of ours lacks IPv6 and the node does not. Reads the calling thread's network namespace.
///
/// A new interface has the setting of `net.ipv6.conf.default.disable_ipv6`, whatever the node's other interfaces have.
/// Ours are for the Services of both families, so they have the setting of `all`.
pub(crate) fn lacks_ipv6(interface: &str) -> bool {
    is_disabled(interface) && !is_disabled("all")
}

/// Enables IPv6 on an interface of ours that lacks it. In a container `/proc/sys` may be read-only: then the kernel refuses
/// IPv6 addresses there.
pub(crate) fn ensure_ipv6(interface: &str) {
    if !lacks_ipv6(interface) {
        return;
    }
    match fs::write(parameter(interface), "0") {
        Ok(()) => tracing::info!(device = interface, "IPv6 enabled, as on the node"),
        Err(error) => tracing::debug!(device = interface, "cannot enable IPv6: {error}"),
    }
}

/// What does not exist, as in a kernel without IPv6, is not disabled.
fn is_disabled(interface: &str) -> bool {
    fs::read_to_string(parameter(interface)).is_ok_and(|value| value.trim() == "1")
}

fn parameter(interface: &str) -> String {
    format!("/proc/sys/net/ipv6/conf/{interface}/disable_ipv6")
}
