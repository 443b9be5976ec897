//! The kernel's part of a bug report: IPVS, kube-ipvs0, nf_tables.

use std::{
    collections::{BTreeMap, HashMap},
    fmt::Write,
    fs::{self, File},
    io::BufReader,
};

use anyhow::Context;
use dummy_interface::{DummyInterface as _, KernelDummyInterface, VipBinding};
use host_rules::host_firewall::HostChains;
use ipvs::{proc_net::for_each_connection, text::Columns};
use netfilter::{HostFirewall, KernelNetfilter, LocalTraffic, Netfilter as _, Policy};

use super::{
    super::{
        list::{self, Part, Servers},
        question::Daemon,
        top,
    },
    Item, as_json, both, known,
};

pub(super) fn items(daemon: &Daemon) -> Vec<Item> {
    let servers = known(Servers::read(Part::ALL));
    let traffic = known(top::look_once(daemon));
    let text = |servers: &Servers| servers.text(Columns::Configuration, &HashMap::new());
    let json = |servers: &Servers| as_json(&servers.table(Part::ALL, &list::our_tables()?));
    let mut items = Vec::new();
    items.extend(both(["list.txt", "list.json"], &servers, text, json));
    items.extend(both(["top.txt", "top.json"], &traffic, |frame| operator::top::text(frame, false), as_json));
    let others: [(&'static str, anyhow::Result<String>); 5] = [
        ("ip_vs.txt", fs::read_to_string("/proc/net/ip_vs").context("cannot read /proc/net/ip_vs")),
        ("connections.txt", connections()),
        ("kube-ipvs0.txt", kube_ipvs0()),
        ("elements.txt", elements()),
        ("tables.txt", tables()),
    ];
    items.extend(others.map(|(name, content)| Item { name, content: known(content) }));
    items
}

/// How many connections are in which state. Whose they are is private.
fn connections() -> anyhow::Result<String> {
    let text = File::open(list::CONNECTIONS).with_context(|| format!("cannot read {}", list::CONNECTIONS))?;
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for_each_connection(BufReader::new(text), |connection| {
        *counts.entry(format!("{} {}", connection.protocol, connection.state)).or_default() += 1;
        Ok(())
    })?;
    Ok(lines(counts.iter().map(|(state, count)| format!("{state} {count}"))))
}

/// The VIPs that are bound in either way, and the node's own addresses.
fn kube_ipvs0() -> anyhow::Result<String> {
    let found = KernelDummyInterface::open(VipBinding::Address)?.observe()?;
    let mut text = format!("kube-ipvs0: {}\n", if found.device { "is there" } else { "is not there" });
    for (what, addresses) in
        [("address", &found.bound), ("route", &found.stale_bindings), ("node", &found.node_addresses)]
    {
        for address in addresses {
            writeln!(text, "{what} {address}")?;
        }
    }
    Ok(text)
}

/// The elements of our sets. Whether our rules are as they should be is in the difference.
fn elements() -> anyhow::Result<String> {
    // It shapes the rules, and the sets are the same for all.
    let any_policy = Policy {
        masquerade_all: false,
        mark: 0x4000,
        local_traffic: LocalTraffic::Source { ipv4: None, ipv6: None },
        host_firewall: HostFirewall::Warn,
        gue: false,
    };
    let found = KernelNetfilter::open(&any_policy)?.observe()?;
    let mut elements: Vec<_> = found.elements.iter().collect();
    elements.sort_unstable();
    Ok(lines(elements.iter().map(|element| format!("{} {element}", element.family()))))
}

/// All tables with their chains, the host's firewall among them; not their rules.
fn tables() -> anyhow::Result<String> {
    Ok(HostChains::open()?.tables_with_chains()?.iter().map(ToString::to_string).collect())
}

fn lines(lines: impl Iterator<Item = String>) -> String {
    lines.map(|line| line + "\n").collect()
}
