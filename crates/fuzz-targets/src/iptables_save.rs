//! The output of `iptables-legacy-save`.

use host_rules::leftovers::legacy_removal;

/// Reads it as each table. The script that removes leftovers names kube-proxy's chains and existing rules alone.
pub fn fuzz(input: &[u8]) {
    let saved = String::from_utf8_lossy(input);
    for table in ["nat", "filter", "mangle"] {
        for line in legacy_removal(table, &saved).iter().flat_map(|script| script.lines()) {
            let is_known = match line.split_once(' ') {
                Some(("-D", rule)) => saved.lines().any(|line| line.strip_prefix("-A ") == Some(rule)),
                Some(("-X", chain)) => chain.starts_with("KUBE-"),
                Some((chain, "- [0:0]")) => chain.starts_with(":KUBE-"),
                _ => line == "COMMIT" || line.strip_prefix('*') == Some(table),
            };
            assert!(is_known, "{line}");
        }
    }
}
