//! One entry of the table: reading it, and the request to delete it.

use std::net::{IpAddr, SocketAddr};

use ipvs::{Protocol, RealServerAddress, ServiceAddress};
use netlink::{Batch, Reply, attributes, find};

use super::Flow;

/// `NFNL_SUBSYS_CTNETLINK` in include/uapi/linux/netfilter/nfnetlink.h.
const SUBSYSTEM: u16 = 1;
/// `enum cntl_msg_types` in include/uapi/linux/netfilter/nfnetlink_conntrack.h, as the rest.
const GET: u16 = 1;
const DELETE: u16 = 2;

/// `enum ctattr_type`.
const CTA_TUPLE_ORIG: u16 = 1;
const CTA_TUPLE_REPLY: u16 = 2;
const CTA_ID: u16 = 12;
const CTA_ZONE: u16 = 18;
/// `enum ctattr_tuple`.
const CTA_TUPLE_IP: u16 = 1;
const CTA_TUPLE_PROTO: u16 = 2;
/// `enum ctattr_ip`.
const CTA_IP_V4_SRC: u16 = 1;
const CTA_IP_V4_DST: u16 = 2;
const CTA_IP_V6_SRC: u16 = 3;
const CTA_IP_V6_DST: u16 = 4;
/// `enum ctattr_l4proto`.
const CTA_PROTO_NUM: u16 = 1;
const CTA_PROTO_SRC_PORT: u16 = 2;
const CTA_PROTO_DST_PORT: u16 = 3;

/// The bit that marks a container (`NLA_F_NESTED`).
const NESTED: u16 = 0x8000;

/// The entry of a UDP flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry<'a> {
    pub(super) flow: Flow,
    /// The family, in the kernel's numbers.
    family: u8,
    /// The tuple of the first packet as the kernel wrote it, with the zone if only this direction has one.
    original: &'a [u8],
    /// The zone, unless it is the default one, or only one direction's.
    zone: Option<u16>,
    /// Distinguishes the entry from another one that takes its place.
    id: u32,
}

/// The request for every entry of both families.
///
/// The kernel could leave out what does not match (`CTA_FILTER`, since 5.8). It must not: it would walk the
/// whole table in one go, with softirqs off, and meanwhile no packet gets through on that processor
/// (`ctnetlink_dump_table` in net/netfilter/nf_conntrack_netlink.c; 0.2 s with a million entries). Without a
/// filter it pauses at each 32 KiB. The filter is also wrong: for an IPv6 address it matches those that
/// differ (`ctnetlink_filter_match_tuple`, still so in 7.2).
pub(super) fn list() -> Batch {
    const ANY_FAMILY: u8 = 0;
    let mut batch = Batch::default();
    batch.add(SUBSYSTEM << 8 | GET, 0, |encoder| encoder.raw(&header(ANY_FAMILY)));
    batch
}

impl<'a> Entry<'a> {
    /// Reads an entry; `None` if it is of another protocol, or not understood.
    pub(super) fn read(reply: &Reply<'a>) -> Option<Self> {
        let (&[family, _version, _, _], body) = reply.payload.split_first_chunk()?;
        let (mut original, mut answer, mut zone, mut id) = (None, None, None, None);
        for attribute in attributes(body) {
            let attribute = attribute.ok()?;
            match attribute.kind {
                CTA_TUPLE_ORIG => original = Some(attribute.payload),
                CTA_TUPLE_REPLY => answer = Some(attribute.payload),
                CTA_ZONE => zone = Some(attribute.u16_be().ok()?),
                CTA_ID => id = Some(attribute.u32_be().ok()?),
                _ => {}
            }
        }
        let original = original?;
        let (sent, replied) = (udp(original)?, udp(answer?)?);
        let (to, by) = (sent.destination, replied.source);
        let flow = Flow {
            to: ServiceAddress { protocol: Protocol::Udp, ip: to.ip(), port: to.port() },
            answered_by: RealServerAddress { ip: by.ip(), port: by.port() },
            masqueraded: replied.destination.ip() != sent.source.ip(),
        };
        Some(Self { flow, family, original, zone, id: id? })
    }

    /// Appends the request to delete exactly this entry.
    ///
    /// The request always has a tuple: without one it would delete all entries (`ctnetlink_del_conntrack`).
    pub(super) fn delete(&self, batch: &mut Batch) {
        batch.add(SUBSYSTEM << 8 | DELETE, 0, |encoder| {
            encoder.raw(&header(self.family));
            encoder.bytes(CTA_TUPLE_ORIG | NESTED, self.original);
            // A kernel without zones refuses the attribute, and shows none.
            if let Some(zone) = self.zone {
                encoder.u16_be(CTA_ZONE, zone);
            }
            encoder.u32_be(CTA_ID, self.id);
        });
    }
}

/// `struct nfgenmsg`: family, version 0, no resource.
fn header(family: u8) -> [u8; 4] {
    [family, 0, 0, 0]
}

/// One direction of a flow.
struct Tuple {
    source: SocketAddr,
    destination: SocketAddr,
}

/// Reads a tuple; `None` if it is not UDP's.
fn udp(tuple: &[u8]) -> Option<Tuple> {
    const UDP: u8 = 17;
    let (mut ips, mut ports) = (None, None);
    for attribute in attributes(tuple) {
        let attribute = attribute.ok()?;
        match attribute.kind {
            CTA_TUPLE_IP => {
                let ip = |v4, v6| address(attribute.payload, v4, v6);
                ips = Some((ip(CTA_IP_V4_SRC, CTA_IP_V6_SRC)?, ip(CTA_IP_V4_DST, CTA_IP_V6_DST)?));
            }
            CTA_TUPLE_PROTO => {
                let number = find(attribute.payload, CTA_PROTO_NUM)?.u8().ok()?;
                if number != UDP {
                    return None;
                }
                let port = |kind| find(attribute.payload, kind)?.u16_be().ok();
                ports = Some((port(CTA_PROTO_SRC_PORT)?, port(CTA_PROTO_DST_PORT)?));
            }
            _ => {}
        }
    }
    let ((source, destination), (source_port, destination_port)) = (ips?, ports?);
    Some(Tuple {
        source: SocketAddr::new(source, source_port),
        destination: SocketAddr::new(destination, destination_port),
    })
}

/// The address of either family.
fn address(container: &[u8], v4: u16, v6: u16) -> Option<IpAddr> {
    let ipv4 = find(container, v4).and_then(|ip| ip.array::<4>().ok()).map(IpAddr::from);
    ipv4.or_else(|| find(container, v6)?.array::<16>().ok().map(IpAddr::from))
}

#[cfg(test)]
pub(super) mod tests;
