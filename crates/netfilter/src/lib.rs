//! nf_tables by netlink, and the one table per family that kube-ipvs owns: `ip kube-ipvs` and
//! `ip6 kube-ipvs`. No other table is read or written.
//!
//! IPVS chooses the real server and rewrites the destination. What it does not do is replace the
//! source, which flows need whose answers would otherwise not come back through this node. That is
//! this table's work: a chain `services` sets a mark on such flows, a chain `postrouting` masquerades
//! what is marked. What changes with the services is in three sets, so the number of rules is constant:
//!
//! - `cluster-ips`: VIP, protocol and port of each ClusterIP. Its clients are masqueraded, except pods of
//!   this node, if there is a way to tell them;
//! - `external`: the same of each NodePort, external and load-balancer address whose flows may be sent to
//!   another node. Its clients are masqueraded, whoever they are;
//! - `hairpin`: each pod of this node as real server. It is masqueraded where it is its own client.
//!
//! `Ruleset` (feature `client`) prints the tables as `nft list ruleset` does.
//!
//! # The hooks that a request passes
//!
//! The first packet of a connection, from the top to the bottom. IPVS re-routes it and sends it
//! through the whole output hook (once more); FORWARD never sees a request.
//!
//! | hook, priority | pod or client → VIP | this node → VIP |
//! |---|---|---|
//! | prerouting -100 (dstnat): our mark | to the VIP | |
//! | input 0 | to the VIP | |
//! | input 99: IPVS | VIP → pod | |
//! | output -150 | to the pod | to the VIP |
//! | output -100: our mark | not seen: nat is decided | to the VIP |
//! | output -98: IPVS | | VIP → pod |
//! | output -150, again | | to the pod |
//! | output 0 | to the pod | to the pod |
//! | postrouting 100 (srcnat): masquerade, clear the mark | to the pod | to the pod |
//!
//! A NodePort, which is served at addresses of the node itself, is reached in the same ways. A connection
//! of the node to its own NodePort has one of its addresses at both ends and is masqueraded like others. A
//! real server that is itself an address of this node gets what comes from elsewhere out of the input
//! hook: postrouting does not see that, so nothing masquerades it.
//!
//! A chain of type nat sees the first packet of a connection only, and so does the mark; conntrack
//! does the rest. IPVS takes part in conntrack only with `net.ipv4.vs.conntrack=1`, and conntrack is
//! active in a network namespace only while some nat chain, such as ours, is there.

mod change;
mod element;
mod policy;

pub use change::Change;
pub use element::{AllowedSource, Element, HairpinFlow, HealthCheckPort};
pub use policy::{HostFirewall, LocalTraffic, Policy};

#[cfg(feature = "client")]
mod client;
#[cfg(feature = "client")]
mod key;
#[cfg(feature = "client")]
mod nft;
#[cfg(feature = "client")]
mod ruleset;
#[cfg(feature = "client")]
mod table;
#[cfg(feature = "client")]
pub use client::{Error, KernelNetfilter, Netfilter, Observed};
#[cfg(feature = "client")]
pub use ruleset::Ruleset;
