//! What is fuzzed: every decoder of bytes that somebody else has made, each with what must hold of all that it reads.
//!
//! A target takes any bytes and panics where something does not hold. `cargo xtask fuzz` looks for such bytes with
//! libFuzzer (`fuzz/`); `tests/unit/corpora.rs` gives each target those that were found once, or recorded, without it.
//!
//! What speaks with the kernel gets the bytes as a [`netlink::Transcript`], so that they go the whole way: datagrams,
//! messages, sequence numbers, verdicts, attributes, and what is concluded. `tests/kernel/transcripts.rs` records
//! what a real kernel says.

#![allow(
    clippy::missing_panics_doc,
    reason = "to panic where something does not hold is what a target is for"
)]

pub mod configuration;
pub mod conntrack;
pub mod control;
pub mod dummy_interface;
pub mod flags;
pub mod host_firewall;
pub mod iptables_save;
pub mod ipvs;
pub mod leftovers;
pub mod manifests;
pub mod netlink;
pub mod nf_tables;
pub mod notifications;
pub mod proc_net;
pub mod watch;

/// One thing that is fuzzed.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, which is that of the program and of the corpus too.
    pub name: &'static str,
    /// Takes any bytes, and panics where something does not hold.
    pub run: fn(&[u8]),
}

/// All of them.
pub const TARGETS: [Target; 15] = [
    Target { name: "configuration", run: configuration::fuzz },
    Target { name: "conntrack", run: conntrack::fuzz },
    Target { name: "control", run: control::fuzz },
    Target { name: "dummy_interface", run: dummy_interface::fuzz },
    Target { name: "flags", run: flags::fuzz },
    Target { name: "host_firewall", run: host_firewall::fuzz },
    Target { name: "iptables_save", run: iptables_save::fuzz },
    Target { name: "ipvs", run: ipvs::fuzz },
    Target { name: "leftovers", run: leftovers::fuzz },
    Target { name: "manifests", run: manifests::fuzz },
    Target { name: "netlink", run: netlink::fuzz },
    Target { name: "nf_tables", run: nf_tables::fuzz },
    Target { name: "notifications", run: notifications::fuzz },
    Target { name: "proc_net", run: proc_net::fuzz },
    Target { name: "watch", run: watch::fuzz },
];
