//! nf_tables by netlink, and the one table per family that kube-ipvs owns: `ip kube-ipvs` and
//! `ip6 kube-ipvs`. No other table is read or written, except by [`trace`] (feature `client`), which follows packets
//! with a table of its own; the crate `host-rules` changes other programs' tables, with [`nft`].
//!
//! IPVS chooses the real server and rewrites the destination. Our table does the rest. It masquerades flows
//! whose answers would otherwise not come back through this node; it only lets some clients reach a load
//! balancer's address with source ranges, or an address of the policy Local without an endpoint here; it
//! rejects traffic to ports of a VIP, which is an address of this node, that no Service has; it keeps other
//! tables' hostPorts away from what a Service serves; and it marks, if the policy says so, what the host's
//! own firewall shall accept. `table/ruleset/chains.rs` has every chain and every rule. What changes with the
//! Services is in sets, so the number of rules is constant:
//!
//! - `cluster-ips`: VIP, protocol and port of each ClusterIP. Traffic to it is masqueraded, unless a pod of
//!   this node sends it, if pods can be recognised;
//! - `external`: the same for each NodePort, external and load-balancer address whose flows may be sent to
//!   another node. Traffic to it is masqueraded for every sender;
//! - `external-local`: the same for those with the external policy Local. Traffic to it is only masqueraded
//!   if this node itself sends it;
//! - `local-clients-only`: those of them for which this node has no endpoint, and others have. New flows to
//!   them are dropped, unless this node or, if pods can be recognised, a pod of this node sends them;
//! - `hairpin`: each pod of this node as real server. It is masqueraded when it is its own client;
//! - `restricted`: load balancers' addresses with source ranges. Packets to them are dropped unless they come
//!   from an allowed source;
//! - `allowed-sources`: the same addresses, each with a range of clients;
//! - `vips`: the addresses that are bound to this node for Services. New flows to them are rejected, unless
//!   they are served (the first three sets), an echo request, or a health check;
//! - `health-check-ports`: TCP ports of health checks;
//! - `untracked`, `untracked-endpoints`, `tracked-clients`: the Services whose connections from pods conntrack does not
//!   track, their endpoints, and the clients that are tracked nevertheless.
//!
//! Where a Service asks for direct return there are a few sets, rules and chains more
//! (`table/ruleset/direct_return.rs`), and they go with the last one.
//!
//! `Ruleset` (feature `client`) prints the tables as `nft --numeric-priority list ruleset` does.
//!
//! Beside the tables there is `conntrack` (feature `client`), whose entries of UDP flows can outlive their
//! Service.
//!
//! # The hooks that a request passes
//!
//! The table shows the first packet of a connection, from top to bottom. IPVS re-routes it and sends it
//! through the whole output hook (again); FORWARD never sees a request.
//!
//! | hook, priority | pod or client → VIP | this node → VIP |
//! |---|---|---|
//! | prerouting -100, nat chain -101: mark, keep the destination | to the VIP | |
//! | prerouting -100, nat chains of others: hostPorts | not consulted about what is served | |
//! | input -149: may set the mark for the host's firewall | to the VIP | |
//! | input 0: source ranges, the policy Local, unserved ports; the host's firewall | to the VIP | |
//! | input 90: clears that mark | to the VIP | |
//! | input 99: IPVS | VIP → pod | |
//! | output -102: source ranges | to the pod: passes | to the VIP |
//! | output -100, nat chain -101: mark, keep the destination | not seen: nat is decided | to the VIP |
//! | output -98: IPVS | | VIP → pod |
//! | output -102, again | | to the pod: passes |
//! | output 0: the host's firewall | to the pod | to the pod |
//! | postrouting 100, nat chain 99: masquerade, clear the mark | to the pod | to the pod |
//!
//! An answer is forwarded: at forward -149 and 90 the mark for the host's firewall may be set and is cleared
//! again, at 100 IPVS makes it come from the VIP. An answer to this node itself is seen in input, and if the
//! node had connected from the VIP it goes to the VIP: hence only new flows are rejected there.
//!
//! A NodePort, which is served at addresses of the node itself, is reached in the same ways. A connection of
//! the node to its own NodePort has one of the node's addresses at both ends and is masqueraded like others.
//! If the real server is itself an address of this node, requests from elsewhere are delivered from the input
//! hook: postrouting does not see them, so nothing masquerades them.
//!
//! All chains of type nat run at -100 or 100; their own priority only orders them among themselves. They only
//! see the first packet of a connection, so only that packet is marked for masquerading; conntrack does the
//! rest. IPVS takes part in conntrack only with `net.ipv4.vs.conntrack=1`, and conntrack is active in a
//! network namespace only while some nat chain, such as ours, is there.

#[cfg(feature = "client")]
pub mod conntrack;
mod counter;
mod element;
#[cfg(feature = "client")]
pub mod nft;
mod policy;
#[cfg(feature = "client")]
mod table;
#[cfg(feature = "client")]
pub mod trace;
pub mod tunnel;

pub use counter::PacketCounter;
#[cfg(feature = "client")]
pub use counter::PacketCounts;
pub use element::{
    AllowedSource, ClusterIpFor, Content, Element, HairpinFlow, HealthCheckPort, MasqueradeSet,
    MaxSegmentSize, Operation, PodPort, TunnelExit,
};
pub use policy::{HostFirewall, LocalTraffic, Policy};

#[cfg(feature = "wire")]
#[doc(hidden)]
pub use table::wire;
#[cfg(feature = "client")]
pub use table::{
    ACCEPT_MARK_PRIORITIES, Changed, ElementSet, Error, Feature, Generation, KernelNetfilter, Monitor,
    Netfilter, Observed, Ruleset, elements, hand_over, is_installed, packet_counts, uninstall,
};
