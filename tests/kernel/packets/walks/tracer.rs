//! Looks at packets at every hook of a node: a table with a chain on either side of whatever may change
//! them, each of which reports what it sees by NFLOG, in the order of the events.

use std::fmt::Write as _;

use netlink::{Attribute, Batch, attributes};
use testkit::lab::Host;

use super::{
    super::reports::PacketReports,
    sighting::{Hook, Packet, Sighting},
};

/// Where a chain looks: wherever conntrack, nat, IPVS or kube-ipvs stands, and after the last of them. A new
/// chain goes before those of the same priority that were there already (`nf_hook_entries_grow` in
/// net/netfilter/core.c), so each sees a packet as it arrives there.
const PRIORITIES: [i32; 12] = [-300, -200, -150, -102, -100, -99, -98, 0, 98, 99, 100, LAST];

/// What has come so far in a hook goes on to the next.
pub(super) const LAST: i32 = 101;

/// Only the packets by which a connection is made or refused are of interest.
const OTHERS: &str = "
    chain others {
        tcp flags & (syn | rst) != 0 return
        icmp type destination-unreachable return
        icmpv6 type destination-unreachable return
        accept
    }";

const GROUP: u16 = 7;

/// From linux/netfilter/nfnetlink_log.h.
const NFULNL_MSG_PACKET: u16 = 4 << 8;
const NFULNL_MSG_CONFIG: u16 = 4 << 8 | 1;
const NFULA_CFG_CMD: u16 = 1;
const NFULA_CFG_MODE: u16 = 2;
const NFULA_CFG_QTHRESH: u16 = 5;
const NFULNL_CFG_CMD_BIND: u8 = 1;
const NFULNL_COPY_PACKET: u8 = 2;
const NFULA_MARK: u16 = 2;
const NFULA_PAYLOAD: u16 = 9;
const NFULA_PREFIX: u16 = 10;

/// The table, and the socket that it reports to.
pub(crate) struct Tracer(PacketReports);

impl Tracer {
    /// Starts to look, at a node on which everything that shall be seen is in its place.
    pub(crate) fn on(node: &Host) -> Self {
        let tracer = Self(node.inside(listen).unwrap());
        node.run("nft", &[&table()]).unwrap();
        tracer
    }

    /// What it has seen since it was asked last. A report is in the socket as soon as the packet has passed.
    pub(crate) fn sightings(&self) -> Vec<Sighting> {
        self.0.read(sighting)
    }
}

fn table() -> String {
    let mut table = format!("table inet walk {{{OTHERS}\n");
    for (index, priority) in PRIORITIES.iter().enumerate() {
        for hook in Hook::ALL {
            writeln!(table, "chain {hook}-{index} {{").unwrap();
            writeln!(table, "type filter hook {hook} priority {priority}; jump others").unwrap();
            for state in ["new", "established", "related", "invalid"] {
                writeln!(table, "ct state {state} log group {GROUP} prefix \"{hook} {priority} {state}\"")
                    .unwrap();
            }
            table.push_str("}\n");
        }
    }
    table + "}"
}

/// A socket that receives what is logged to the group in this thread's namespace, at once and with the
/// packet.
fn listen() -> PacketReports {
    let reports = PacketReports::open(0);
    let mut configuration = Batch::default();
    let group = GROUP.to_be_bytes();
    for (attribute, value) in [
        (NFULA_CFG_CMD, &[NFULNL_CFG_CMD_BIND][..]),
        (NFULA_CFG_MODE, &[0, 0, 0, 128, NFULNL_COPY_PACKET, 0]),
        (NFULA_CFG_QTHRESH, &[0, 0, 0, 1]),
    ] {
        configuration.add(NFULNL_MSG_CONFIG, 0, |message| {
            message.raw(&[0, 0, group[0], group[1]]);
            message.bytes(attribute, value);
        });
    }
    reports.send(&configuration);
    reports
}

/// Reads a report. The first four bytes are a `struct nfgenmsg`.
fn sighting((kind, message): (u16, &[u8])) -> Option<Sighting> {
    assert_eq!(kind, NFULNL_MSG_PACKET, "refused: {message:?}");
    let attributes: Vec<Attribute<'_>> = attributes(&message[4..]).map(Result::unwrap).collect();
    let find = |kind| attributes.iter().find(|attribute| attribute.kind == kind);
    let mut prefix = find(NFULA_PREFIX)?.string().unwrap().split(' ');
    let hook = prefix.next()?;
    Some(Sighting {
        hook: Hook::ALL.into_iter().find(|it| it.to_string() == hook)?,
        priority: prefix.next()?.parse().unwrap(),
        state: prefix.next()?.to_owned(),
        mark: find(NFULA_MARK).map_or(0, |mark| mark.u32_be().unwrap()),
        packet: Packet::parse(find(NFULA_PAYLOAD)?.payload)?,
    })
}
