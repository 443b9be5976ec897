//! The kinds of packets that rules of our tables count.

#[cfg(feature = "client")]
use std::collections::BTreeMap;

#[cfg(feature = "client")]
use ipvs::Family;

/// A kind of packet that rules of our tables count, each in a counter object of its own (since Linux 4.10). Unlike
/// counters inside rules, these keep their values when rules are replaced, and a small dump has them all.
///
/// Packets that are just accepted are not counted. A masqueraded packet is the first one of its connection: chains of
/// type nat see no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PacketCounter {
    /// Dropped: to a restricted address, with a VIP as its source.
    FromVip,
    /// Dropped: to a restricted address, from outside of its source ranges.
    SourceRange,
    /// Dropped: a new flow to an address of the external policy Local without an endpoint on this node.
    NoLocalEndpoint,
    /// Dropped: it may not be sent into a tunnel of direct return, or come out of one.
    Tunnel,
    /// Rejected: a new flow to a port of a VIP that no Service has.
    NoService,
    /// Masqueraded: the first packet of a flow to a Service that is marked for masquerading.
    Marked,
    /// Masqueraded: the first packet of a flow of a pod to itself.
    Hairpin,
    /// Masqueraded: the first packet of a flow with direct return to an endpoint without a tunnel.
    NoTunnel,
    /// Put into a tunnel, for an endpoint of another node.
    TunnelSent,
    /// Unpacked from a tunnel, for an endpoint of this node.
    TunnelReceived,
}

impl PacketCounter {
    /// All of them, those of lost packets first.
    pub const ALL: [Self; 10] = [
        Self::FromVip,
        Self::SourceRange,
        Self::NoLocalEndpoint,
        Self::Tunnel,
        Self::NoService,
        Self::Marked,
        Self::Hairpin,
        Self::NoTunnel,
        Self::TunnelSent,
        Self::TunnelReceived,
    ];

    /// The name of its object in our tables: what becomes of the packet, a hyphen, and the reason.
    pub const fn name(self) -> &'static str {
        match self {
            Self::FromVip => "drop-vip-as-source",
            Self::SourceRange => "drop-source-range",
            Self::NoLocalEndpoint => "drop-no-local-endpoint",
            Self::Tunnel => "drop-tunnel",
            Self::NoService => "reject-no-service",
            Self::Marked => "masquerade-marked",
            Self::Hairpin => "masquerade-hairpin",
            Self::NoTunnel => "masquerade-no-tunnel",
            Self::TunnelSent => "tunnel-sent",
            Self::TunnelReceived => "tunnel-received",
        }
    }

    /// What becomes of the packet (`drop`, `reject` or `masquerade`), and the reason; `None` for those that a tunnel
    /// carries.
    pub fn verdict(self) -> Option<(&'static str, &'static str)> {
        self.name().split_once('-').filter(|(verdict, _)| *verdict != "tunnel")
    }

    /// The counter whose object has this name.
    #[cfg(feature = "client")]
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|counter| counter.name() == name)
    }
}

/// How many packets the counters of each table have counted since they were made: with the table, or by the first
/// version that counted. Without a table there are none.
#[cfg(feature = "client")]
pub type PacketCounts = BTreeMap<(Family, PacketCounter), u64>;
