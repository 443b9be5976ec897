//! Reading every link of the node.

use std::net::IpAddr;

use netlink::Socket;
use rtnetlink::packet_route::{
    RouteNetlinkMessage,
    link::{LinkAttribute, LinkExtentMask, LinkFlags, LinkHeader, LinkMessage},
};

use crate::{
    Error,
    message::{
        AF_INET, IFLA_AF_SPEC, IFLA_IFNAME, IFLA_INET_CONF, IFLA_INFO_DATA, IFLA_INFO_KIND, IFLA_IPTUN_LOCAL,
        IFLA_LINKINFO, IFLA_MTU, IFLA_STATS64, LINK_HEADER, find, find_ip,
    },
    observe::dump,
};

/// A link, as far as anything here depends on it.
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
    pub(crate) fn from_message(message: &[u8]) -> Option<Self> {
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
    pub(crate) fn is_a_way_out(&self) -> bool {
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

/// Every link of the network namespace, without what it has counted.
pub(crate) fn links(socket: &mut Socket) -> Result<Vec<Link>, Error> {
    let mut request = LinkMessage::default();
    request.attributes.push(LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]));
    dump(socket, RouteNetlinkMessage::GetLink(request), "read links", Link::from_message)
}
