//! What the kernel tells of a packet that it traces: each rule that matches, and the end of each chain.

use netlink::{Attribute, attributes, find};
use testkit::lab::Host;

use super::super::reports::PacketReports;

/// Traces what is sent by UDP, from before everything of ours on. TCP is the same to our rules, but sends more packets
/// than it is asked to.
const TABLE: &str = "table inet look {
    chain prerouting { type filter hook prerouting priority -450; meta l4proto udp meta nftrace set 1; }
    chain output { type filter hook output priority -450; meta l4proto udp meta nftrace set 1; }
}";

/// From linux/netfilter/nfnetlink.h and linux/netfilter/nf_tables.h.
const NFNLGRP_NFTRACE: u32 = 9;
const NFT_MSG_TRACE: u16 = 0x0a11;
const NFTA_TRACE_TABLE: u16 = 1;
const NFTA_TRACE_CHAIN: u16 = 2;
const NFTA_TRACE_RULE_HANDLE: u16 = 3;
const NFTA_TRACE_TYPE: u16 = 4;
const NFTA_TRACE_VERDICT: u16 = 5;
const NFTA_VERDICT_CODE: u16 = 1;
const NFTA_VERDICT_CHAIN: u16 = 2;
const NFT_TRACETYPE_POLICY: u32 = 1;

/// A socket that receives a report of every traced packet.
pub(crate) struct Trace(PacketReports);

/// What became of a packet at one place of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) chain: String,
    pub(super) what: What,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// The rule with this handle matched.
    Matched(u64, Verdict),
    /// No rule is left in this chain.
    ChainEnds,
    /// No rule of the base chain has decided.
    Policy,
}

/// What a rule that matched makes of the packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Continue,
    Jump(String),
    Goto(String),
    Return,
    Accept,
    Drop,
}

impl Trace {
    /// Starts to trace on a node.
    pub(crate) fn on(node: &Host) -> Self {
        node.run("nft", &[TABLE]).unwrap();
        Self(node.inside(|| PacketReports::open(1 << (NFNLGRP_NFTRACE - 1))).unwrap())
    }

    /// What our table has seen since this was asked last. The kernel tells it while it handles the packet.
    pub(super) fn events(&self) -> Vec<Event> {
        self.0.read(event)
    }
}

/// Reads a message. The first four bytes are a `struct nfgenmsg`.
fn event((kind, message): (u16, &[u8])) -> Option<Event> {
    assert_eq!(kind, NFT_MSG_TRACE);
    let attributes: Vec<Attribute<'_>> = attributes(&message[4..]).map(Result::unwrap).collect();
    let find = |kind| attributes.iter().find(|attribute| attribute.kind == kind);
    if find(NFTA_TRACE_TABLE)?.string().unwrap() != "kube-ipvs" {
        return None;
    }
    let chain = find(NFTA_TRACE_CHAIN)?.string().unwrap().to_owned();
    let handle = find(NFTA_TRACE_RULE_HANDLE).map(|it| u64::from_be_bytes(it.payload.try_into().unwrap()));
    let what = match (find(NFTA_TRACE_TYPE)?.u32_be().unwrap(), handle) {
        (NFT_TRACETYPE_POLICY, _) => What::Policy,
        (_, Some(handle)) => What::Matched(handle, verdict(find(NFTA_TRACE_VERDICT)?.payload)),
        (_, None) => What::ChainEnds,
    };
    Some(Event { chain, what })
}

fn verdict(nested: &[u8]) -> Verdict {
    let chain = || find(nested, NFTA_VERDICT_CHAIN).unwrap().string().unwrap().to_owned();
    match find(nested, NFTA_VERDICT_CODE).unwrap().u32_be().unwrap().cast_signed() {
        -1 => Verdict::Continue,
        -3 => Verdict::Jump(chain()),
        -4 => Verdict::Goto(chain()),
        -5 => Verdict::Return,
        1 => Verdict::Accept,
        0 => Verdict::Drop,
        other => panic!("a verdict {other}"),
    }
}
