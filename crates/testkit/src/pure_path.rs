//! The phases of the way from JSON to the kernel: `crates/watcher/benches/pure_path.rs` runs them, and
//! `cargo xtask bench --check` counts their instructions.

use serde::{Deserialize, Serialize};
use watcher::{Batch, Plan};

/// Some number for the IPVS family of generic netlink.
const GENERIC_FAMILY: u16 = 0x20;

/// A phase. Each needs the results of the previous ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Makes what the API server sends. This is not work of kube-ipvs.
    Inputs,
    /// Both lists: from bytes to Services and EndpointSlices.
    Decode,
    /// From those to the desired state.
    Desire,
    /// The plan for a kernel that has nothing.
    Plan,
    /// The plan's IPVS commands and nf_tables changes as netlink messages.
    Encode,
    /// The image of the kernel follows the plan.
    Follow,
    /// The plan for a kernel that has everything.
    PlanNothing,
    /// Changes of one endpoint each: from bytes to netlink messages and the image.
    Change,
}

impl Phase {
    /// All of them, in their order.
    pub const ALL: [Self; 8] = [
        Self::Inputs,
        Self::Decode,
        Self::Desire,
        Self::Plan,
        Self::Encode,
        Self::Follow,
        Self::PlanNothing,
        Self::Change,
    ];

    /// As it is asked for.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Inputs => "inputs",
            Self::Decode => "decode",
            Self::Desire => "desire",
            Self::Plan => "plan",
            Self::Encode => "encode",
            Self::Follow => "follow",
            Self::PlanNothing => "plan-nothing",
            Self::Change => "change",
        }
    }
}

/// A plan's messages to IPVS and to nf_tables. Messages for VIPs are a few bytes each, and are made where they are sent.
pub fn encoded(plan: &Plan) -> [netlink::Batch; 2] {
    let (mut servers, mut changes) = (netlink::Batch::default(), Vec::new());
    for batch in &plan.batches {
        match batch {
            Batch::Ipvs(commands) => ipvs::wire::encode(GENERIC_FAMILY, commands, &mut servers),
            Batch::Netfilter(more) => changes.extend_from_slice(more),
            Batch::DummyInterface(_) => {}
        }
    }
    [servers, netfilter::wire::encode(&changes)]
}
