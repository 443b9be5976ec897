//! The kernel's part of a bug report: IPVS, kube-ipvs0, nf_tables, and what it shows in files.

use std::{
    collections::{BTreeMap, HashMap},
    fmt::Write,
    fs::{self, File},
    io::BufReader,
    path::{Path, PathBuf},
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
    let traffic = known(top::sample_once(daemon));
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
        host_firewall: HostFirewall::Warn,
        ..Policy::new(LocalTraffic::Source { ipv4: None, ipv6: None })
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

/// Directories of kernel parameters, and single ones.
const PARAMETERS: [&str; 12] = [
    "net/ipv4/vs",
    "net/netfilter",
    "net/bridge",
    "net/ipv4/ip_forward",
    "net/ipv4/ip_local_port_range",
    "net/ipv4/ip_local_reserved_ports",
    "net/ipv4/conf/all/arp_announce",
    "net/ipv4/conf/all/arp_ignore",
    "net/ipv4/conf/all/route_localnet",
    "net/ipv4/conf/all/rp_filter",
    "net/ipv6/conf/all/disable_ipv6",
    "net/ipv6/conf/all/forwarding",
];

/// Files that the kernel shows below a directory, `/` on a node.
pub(super) fn files(root: &Path) -> [Item; 3] {
    let read = |file: &str| {
        let path = root.join(file);
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    };
    [
        Item { name: "kernel.txt", content: known(read("proc/version")) },
        Item { name: "sysctls.txt", content: Ok(parameters(&root.join("proc/sys"))) },
        Item { name: "modules.txt", content: known(read("proc/modules").map(|text| modules(&text))) },
    ]
}

/// The parameters as `sysctl` prints them. One that does not exist is left out: its module is not loaded.
fn parameters(root: &Path) -> String {
    let mut files: Vec<PathBuf> = Vec::new();
    for path in PARAMETERS.map(|path| root.join(path)) {
        match fs::read_dir(&path) {
            Ok(entries) => files.extend(entries.flatten().map(|entry| entry.path())),
            Err(_) => files.push(path),
        }
    }
    files.sort();
    let mut text = String::new();
    for file in files {
        let (Ok(name), Ok(value)) = (file.strip_prefix(root), fs::read_to_string(&file)) else { continue };
        // Writing to a string cannot fail.
        _ = writeln!(text, "{} = {}", name.display().to_string().replace('/', "."), value.trim());
    }
    text
}

/// Name, size, and by whom it is used; not where it is in memory, which helps attackers.
fn modules(text: &str) -> String {
    let line = |line: &str| line.split(' ').take(4).collect::<Vec<_>>().join(" ") + "\n";
    text.lines().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_listed_by_name_and_what_does_not_exist_is_left_out() {
        let root = tempfile::tempdir().unwrap();
        for (file, value) in [
            ("net/ipv4/vs/conntrack", "1\n"),
            ("net/ipv4/vs/debug/deep", "9\n"),
            ("net/ipv4/ip_forward", "1\n"),
            ("net/ipv4/ip_local_port_range", "32768\t60999\n"),
            ("kernel/core_pattern", "of no interest\n"),
        ] {
            let file = root.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, value).unwrap();
        }
        let expected = "\
net.ipv4.ip_forward = 1
net.ipv4.ip_local_port_range = 32768\t60999
net.ipv4.vs.conntrack = 1
";
        assert_eq!(parameters(root.path()), expected);
    }

    #[test]
    fn modules_are_listed_without_their_addresses() {
        let shown = "ip_vs 180224 7 ip_vs_rr,ip_vs_wrr, Live 0xffffffffc0a0b000\ndummy 16384 0 - Live 0x0\n";
        assert_eq!(modules(shown), "ip_vs 180224 7 ip_vs_rr,ip_vs_wrr,\ndummy 16384 0 -\n");
    }
}
