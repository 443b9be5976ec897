//! nf_tables by netlink, and the one table per family that kube-ipvs owns: `ip kube-ipvs` and
//! `ip6 kube-ipvs`. No other table is read or written, except by `host_firewall` and `leftovers`.
//!
//! IPVS chooses the real server and rewrites the destination. Our table does the rest. It masquerades flows
//! whose answers would otherwise not come back through this node; it lets only some clients to a load
//! balancer's address with source ranges; it rejects what goes to a VIP, which is an address of this node,
//! and to no Service; it keeps other tables' hostPorts away from what a Service serves; and it marks, if the
//! policy says so, what the host's own firewall is to accept. `ruleset/chains.rs` has every chain and every
//! rule. What changes with the Services is in sets, so the number of rules is constant:
//!
//! - `cluster-ips`: VIP, protocol and port of each ClusterIP. What goes there is masqueraded, unless a pod of
//!   this node sends it, if there is a way to tell;
//! - `external`: the same of each NodePort, external and load-balancer address whose flows may be sent to
//!   another node. What goes there is masqueraded, whoever sends it;
//! - `external-local`: the same of those with the external policy Local. What goes there is masqueraded only
//!   if this node itself sends it;
//! - `hairpin`: each pod of this node as real server. It is masqueraded where it is its own client;
//! - `restricted`: load balancers' addresses with source ranges. What goes there is dropped, packet by
//!   packet, unless it comes from an allowed source;
//! - `allowed-sources`: the same addresses, each with a range of clients;
//! - `vips`: the addresses that are bound to this node for Services. What goes there and is new is rejected,
//!   unless it is served (the first three sets), an echo request, or a health check;
//! - `health-check-ports`: TCP ports at which load balancers ask after health.
//!
//! `Ruleset` (feature `client`) prints the tables as `nft list ruleset` does.
//!
//! Beside the tables there is `conntrack` (feature `client`): what it remembers of UDP flows can outlive the
//! Service that it was true for.
//!
//! # The hooks that a request passes
//!
//! The first packet of a connection, from the top to the bottom. IPVS re-routes it and sends it
//! through the whole output hook (once more); FORWARD never sees a request.
//!
//! | hook, priority | pod or client → VIP | this node → VIP |
//! |---|---|---|
//! | prerouting -100, nat chain -101: mark, keep the destination | to the VIP | |
//! | prerouting -100, nat chains of others: hostPorts | not asked about what is served | |
//! | input -149: may set the mark for the host's firewall | to the VIP | |
//! | input 0: source ranges, unserved ports; the host's firewall | to the VIP | |
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
//! A NodePort, which is served at addresses of the node itself, is reached in the same ways. A connection
//! of the node to its own NodePort has one of its addresses at both ends and is masqueraded like others. A
//! real server that is itself an address of this node gets what comes from elsewhere out of the input
//! hook: postrouting does not see that, so nothing masquerades it.
//!
//! Chains of type nat all run at -100 or 100; their own priority is their order among themselves. They see
//! the first packet of a connection only, and so does the mark for masquerading; conntrack does the rest.
//! IPVS takes part in conntrack only with `net.ipv4.vs.conntrack=1`, and conntrack is active in a network
//! namespace only while some nat chain, such as ours, is there.

mod change;
mod element;
mod policy;

pub use change::Change;
pub use element::{AllowedSource, Element, HairpinFlow, HealthCheckPort};
pub use policy::{HostFirewall, LocalTraffic, Policy};

#[cfg(feature = "client")]
mod client;
#[cfg(feature = "client")]
pub mod conntrack;
#[cfg(feature = "client")]
pub mod host_firewall;
#[cfg(feature = "client")]
mod intervals;
#[cfg(feature = "client")]
mod key;
#[cfg(feature = "client")]
pub mod leftovers;
#[cfg(feature = "client")]
mod monitor;
#[cfg(feature = "client")]
mod nft;
#[cfg(feature = "client")]
mod probe;
#[cfg(feature = "client")]
mod ruleset;
#[cfg(feature = "client")]
mod table;
#[cfg(feature = "client")]
mod uninstall;
#[cfg(feature = "client")]
pub use client::{Error, KernelNetfilter, Netfilter, Observed};
#[cfg(feature = "client")]
pub use monitor::{Changed, Monitor};
#[cfg(feature = "client")]
pub use probe::Feature;
#[cfg(feature = "client")]
pub use ruleset::Ruleset;
#[cfg(feature = "client")]
pub use uninstall::uninstall;
