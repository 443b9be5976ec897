//! The node's part of a bug report: files of the kernel.

use std::{
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context;

use super::{Item, known};

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

/// The files below a directory, `/` on a node.
pub(super) fn items(root: &Path) -> [Item; 3] {
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
