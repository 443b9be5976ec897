//! The fuzz targets: one for each decoder of bytes that another program has made.
//!
//! A target takes any bytes, and panics where a property of the decoder does not hold. `cargo xtask fuzz` searches for
//! such bytes with libFuzzer (`fuzz/`). `tests/unit/corpora.rs` runs each target on its corpus without libFuzzer: bytes
//! that were found once, or recorded.
//!
//! Clients of the kernel get the bytes as a [`netlink::Transcript`], so that they go the whole way: datagrams, messages,
//! sequence numbers, verdicts, attributes, conclusions. `tests/kernel/transcripts.rs` records those of a real kernel.

#![allow(clippy::missing_panics_doc, reason = "a target panics where a property does not hold")]

pub mod configuration;
pub mod conntrack;
pub mod control;
pub mod dummy_interface;
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

/// A fuzz target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, and that of its program and its corpus.
    pub name: &'static str,
    /// Takes any bytes, and panics where a property does not hold.
    pub run: fn(&[u8]),
}

/// Every target, by name.
pub const TARGETS: [Target; 16] = [
    Target { name: "configuration", run: configuration::fuzz },
    Target { name: "conntrack", run: conntrack::fuzz },
    Target { name: "control", run: control::fuzz },
    Target { name: "convert", run: configuration::convert },
    Target { name: "dummy_interface", run: dummy_interface::fuzz },
    Target { name: "flags", run: configuration::flags },
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
