//! The output of `iptables-legacy-save`.

use host_rules::{host_firewall::legacy_settling, leftovers::legacy_removal};
use ipvs::Family;
use netfilter::{HostFirewall, Policy};

use crate::nf_tables::policy;

/// Reads it as each table. The script that removes leftovers names kube-proxy's chains and existing rules alone, and
/// those for the host's firewall our rules.
pub fn fuzz(input: &[u8]) {
    let saved = String::from_utf8_lossy(input);
    let is_there = |rule: &str| saved.lines().any(|line| line.strip_prefix("-A ") == Some(rule));
    for table in ["nat", "filter", "mangle"] {
        for line in legacy_removal(table, &saved).iter().flat_map(|script| script.lines()) {
            let is_known = match line.split_once(' ') {
                Some(("-D", rule)) => is_there(rule),
                Some(("-X", chain)) => chain.starts_with("KUBE-"),
                Some((chain, "- [0:0]")) => chain.starts_with(":KUBE-"),
                _ => line == "COMMIT" || line.strip_prefix('*') == Some(table),
            };
            assert!(is_known, "{line}");
        }
    }
    for host_firewall in [HostFirewall::AsKubeProxy, HostFirewall::Warn, HostFirewall::Accept] {
        let script = legacy_settling(&saved, Family::V4, &Policy { host_firewall, ..policy() });
        for line in script.lines() {
            let is_ours = line.contains("kube-ipvs: what it forwards");
            let is_known = match line.split_once(' ') {
                Some(("-D", rule)) => is_ours && is_there(rule),
                Some(("-I", _)) => is_ours,
                _ => ["COMMIT", "*filter"].contains(&line),
            };
            assert!(is_known, "{line}");
        }
    }
}
