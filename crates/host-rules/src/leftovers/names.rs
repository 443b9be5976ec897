//! The names that only kube-proxy uses.
//!
//! The prefix `KUBE-` alone is not enough: the kubelet (KUBE-KUBELET-CANARY, KUBE-IPTABLES-HINT,
//! KUBE-MARK-DROP, KUBE-FIREWALL in the table filter), kube-router (KUBE-ROUTER-…, KUBE-NWPLCY-…,
//! KUBE-POD-FW-…) and container runtimes (KUBE-HOSTPORTS, KUBE-HP-…) have such chains too.

use std::collections::BTreeSet;

use ipvs::Family;

/// The tables of iptables that kube-proxy writes to. It has never used raw and security.
pub(super) const TABLES: [&str; 3] = ["nat", "filter", "mangle"];

/// The chains of one table.
struct Chains {
    /// Those that built-in chains jump to.
    entered: &'static [&'static str],
    /// Those that only its other chains jump to. Other programs use KUBE-MARK-MASQ too, such as the CNI
    /// plugin portmap, if its configuration says so.
    inner: &'static [&'static str],
}

/// Of ipvs and iptables mode. Up to Kubernetes 1.24 ipvs mode has a KUBE-FIREWALL of its own, in the table
/// nat.
const NAT: Chains = Chains {
    entered: &[SERVICES, POSTROUTING],
    inner: &[
        "KUBE-FIREWALL",
        "KUBE-LOAD-BALANCER",
        "KUBE-MARK-MASQ",
        "KUBE-NODE-PORT",
        "KUBE-NODEPORTS",
        "KUBE-PROXY-CANARY",
    ],
};

const FILTER: Chains = Chains {
    entered: &[
        "KUBE-EXTERNAL-SERVICES",
        FORWARD,
        "KUBE-IPVS-FILTER",
        "KUBE-IPVS-OUT-FILTER",
        "KUBE-NODE-PORT",
        "KUBE-NODEPORTS",
        "KUBE-PROXY-FIREWALL",
        "KUBE-SERVICES",
    ],
    inner: &["KUBE-PROXY-CANARY", "KUBE-SOURCE-RANGES-FIREWALL"],
};

const MANGLE: Chains = Chains { entered: &[], inner: &["KUBE-PROXY-CANARY"] };

/// The chain that accepts answers of pods where the host forwards nothing else.
pub(super) const FORWARD: &str = "KUBE-FORWARD";

/// The chain that every kube-proxy in ipvs or iptables mode has, and no other program.
pub(super) const SERVICES: &str = "KUBE-SERVICES";

/// The chain that masquerades what is marked, in ipvs and iptables mode.
pub(super) const POSTROUTING: &str = "KUBE-POSTROUTING";

/// The prefixes of the chains that iptables mode makes for each Service and endpoint.
const PREFIXES: [&str; 6] = ["KUBE-SVC-", "KUBE-SVL-", "KUBE-SEP-", "KUBE-FW-", "KUBE-XLB-", "KUBE-EXT-"];

/// The table of kube-proxy's nftables mode, one in each family.
pub(super) const NFTABLES_TABLE: &str = "kube-proxy";

/// The chain of that table in which destinations are translated.
pub(super) const NFTABLES_SERVICES: &str = "services";

/// Whether a chain in a table of iptables is kube-proxy's.
pub(super) fn is_chain(table: &str, chain: &str) -> bool {
    let Chains { entered, inner } = chains_of(table);
    entered.contains(&chain)
        || inner.contains(&chain)
        || PREFIXES.iter().any(|prefix| is_hashed(chain, prefix))
}

/// Whether kube-proxy's own rules jump to this chain of its from built-in chains.
pub(super) fn is_entered(table: &str, chain: &str) -> bool {
    chains_of(table).entered.contains(&chain)
}

fn chains_of(table: &str) -> &'static Chains {
    match table {
        "nat" => &NAT,
        "filter" => &FILTER,
        _ => &MANGLE,
    }
}

/// An extended regular expression for the lines of `iptables-save` that declare the chains, are in them, or
/// lead there from a built-in chain, whatever the table. The target ends such a line, so the same words in a
/// comment do not match.
pub(super) fn pattern() -> String {
    let certain =
        |chains: &'static [&'static str]| chains.iter().copied().filter(|chain| !UNCERTAIN.contains(chain));
    let entered: BTreeSet<&str> = [&NAT, &FILTER].into_iter().flat_map(|of| certain(of.entered)).collect();
    let inner = [&NAT, &FILTER].into_iter().flat_map(|of| certain(of.inner));
    let fixed: BTreeSet<&str> = inner.chain(entered.clone()).collect();
    let hashed = PREFIXES.iter().map(|prefix| format!("{prefix}[A-Z2-7]{{16}}"));
    let chains = fixed.into_iter().map(str::to_owned).chain(hashed).collect::<Vec<_>>().join("|");
    let entered = entered.into_iter().collect::<Vec<_>>().join("|");
    format!("^(:|-A )({chains}) |^-A ({BUILT_IN}) (.* )?-j ({entered})$")
}

/// Chains whose owner one line of text does not show: KUBE-FIREWALL is the kubelet's in the table filter;
/// others' rules may jump to KUBE-MARK-MASQ, without which their table could not be restored; and if the
/// host's chain FORWARD drops unknown traffic, KUBE-FORWARD lets pods' answers through. They do no harm if
/// they stay.
const UNCERTAIN: [&str; 3] = ["KUBE-FIREWALL", "KUBE-FORWARD", "KUBE-MARK-MASQ"];

/// Where kube-proxy puts its jumps.
const BUILT_IN: &str = "PREROUTING|INPUT|FORWARD|OUTPUT|POSTROUTING";

/// Whether the prefix is followed by 16 characters of base32, the beginning of a hash.
fn is_hashed(chain: &str, prefix: &str) -> bool {
    let hash = chain.strip_prefix(prefix);
    hash.is_some_and(|hash| {
        hash.len() == 16 && hash.bytes().all(|byte| matches!(byte, b'A'..=b'Z' | b'2'..=b'7'))
    })
}

/// The ipsets of ipvs mode, in IPv4.
const SETS: [&str; 17] = [
    "KUBE-CLUSTER-IP",
    "KUBE-EXTERNAL-IP",
    "KUBE-EXTERNAL-IP-LOCAL",
    "KUBE-HEALTH-CHECK-NODE-PORT",
    "KUBE-IPVS-IPS",
    "KUBE-LOAD-BALANCER",
    "KUBE-LOAD-BALANCER-FW",
    "KUBE-LOAD-BALANCER-LOCAL",
    "KUBE-LOAD-BALANCER-SOURCE-CIDR",
    "KUBE-LOAD-BALANCER-SOURCE-IP",
    "KUBE-LOOP-BACK",
    "KUBE-NODE-PORT-LOCAL-SCTP-HASH",
    "KUBE-NODE-PORT-LOCAL-TCP",
    "KUBE-NODE-PORT-LOCAL-UDP",
    "KUBE-NODE-PORT-SCTP-HASH",
    "KUBE-NODE-PORT-TCP",
    "KUBE-NODE-PORT-UDP",
];

/// `IPSET_MAXNAMELEN`, without the NUL.
const LONGEST_SET: usize = 31;

/// Whether an ipset is kube-proxy's.
pub(super) fn is_set(name: &str) -> bool {
    Family::BOTH.into_iter().any(|family| SETS.iter().any(|set| set_of(family, set) == name))
}

/// The name of a set in this family. In IPv6 it begins with `KUBE-6-` and is cut to the longest name of an
/// ipset.
fn set_of(family: Family, set: &str) -> String {
    match family {
        Family::V4 => set.to_owned(),
        Family::V6 => set.replacen("KUBE-", "KUBE-6-", 1).chars().take(LONGEST_SET).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_is_kube_proxys_by_its_name_and_table() {
        for (table, chain) in [
            ("nat", "KUBE-SERVICES"),
            ("nat", "KUBE-POSTROUTING"),
            ("nat", "KUBE-NODE-PORT"),
            ("nat", "KUBE-LOAD-BALANCER"),
            ("nat", "KUBE-MARK-MASQ"),
            ("nat", "KUBE-FIREWALL"),
            ("nat", "KUBE-NODEPORTS"),
            ("nat", "KUBE-SVC-NPX46M4PTMTKRN6Y"),
            ("nat", "KUBE-SVL-NPX46M4PTMTKRN6Y"),
            ("nat", "KUBE-SEP-2Q7ZJQZ6ZQJ3Y2AB"),
            ("nat", "KUBE-FW-NPX46M4PTMTKRN6Y"),
            ("nat", "KUBE-XLB-NPX46M4PTMTKRN6Y"),
            ("nat", "KUBE-EXT-NPX46M4PTMTKRN6Y"),
            ("filter", "KUBE-FORWARD"),
            ("filter", "KUBE-NODE-PORT"),
            ("filter", "KUBE-PROXY-FIREWALL"),
            ("filter", "KUBE-SOURCE-RANGES-FIREWALL"),
            ("filter", "KUBE-IPVS-FILTER"),
            ("filter", "KUBE-IPVS-OUT-FILTER"),
            ("filter", "KUBE-EXTERNAL-SERVICES"),
            ("mangle", "KUBE-PROXY-CANARY"),
            ("nat", "KUBE-PROXY-CANARY"),
            ("filter", "KUBE-PROXY-CANARY"),
        ] {
            assert!(is_chain(table, chain), "{table} {chain}");
        }
    }

    #[test]
    fn chains_of_others_that_begin_alike_are_not() {
        for (table, chain) in [
            ("filter", "KUBE-FIREWALL"),
            ("nat", "KUBE-MARK-DROP"),
            ("mangle", "KUBE-KUBELET-CANARY"),
            ("mangle", "KUBE-IPTABLES-HINT"),
            ("filter", "KUBE-ROUTER-INPUT"),
            ("filter", "KUBE-ROUTER-SERVICES"),
            ("filter", "KUBE-NWPLCY-DEFAULT"),
            ("filter", "KUBE-NWPLCY-ABCDEFGHIJKLMNOP"),
            ("filter", "KUBE-POD-FW-ABCDEFGHIJKLMNOP"),
            ("nat", "KUBE-HOSTPORTS"),
            ("nat", "KUBE-HP-ABCDEFGHIJKLMNOP"),
            // As kube-proxy makes none.
            ("nat", "KUBE-SVC-ABCDEFGHIJKLMNO"),
            ("nat", "KUBE-SVC-ABCDEFGHIJKLMNOPQ"),
            ("nat", "KUBE-SVC-abcdefghijklmnop"),
            ("nat", "KUBE-SVC-"),
            ("nat", "KUBE-IPVS-FILTER"),
            ("mangle", "KUBE-SERVICES"),
            ("nat", "KUBE-SERVICES-2"),
            ("nat", "PREROUTING"),
        ] {
            assert!(!is_chain(table, chain), "{table} {chain}");
        }
    }

    /// The jumps of nodes on which kube-proxy ran in ipvs and iptables mode.
    #[test]
    fn jumps_of_built_in_chains_are_kube_proxys_by_where_they_lead() {
        for (table, chain) in [
            ("nat", "KUBE-SERVICES"),
            ("nat", "KUBE-POSTROUTING"),
            ("filter", "KUBE-EXTERNAL-SERVICES"),
            ("filter", "KUBE-FORWARD"),
            ("filter", "KUBE-IPVS-FILTER"),
            ("filter", "KUBE-IPVS-OUT-FILTER"),
            ("filter", "KUBE-NODE-PORT"),
            ("filter", "KUBE-NODEPORTS"),
            ("filter", "KUBE-PROXY-FIREWALL"),
            ("filter", "KUBE-SERVICES"),
        ] {
            assert!(is_entered(table, chain), "{table} {chain}");
        }
        for (table, chain) in [
            ("nat", "KUBE-MARK-MASQ"),
            ("nat", "KUBE-NODE-PORT"),
            ("nat", "KUBE-SVC-NPX46M4PTMTKRN6Y"),
            ("filter", "KUBE-SOURCE-RANGES-FIREWALL"),
            ("filter", "KUBE-FIREWALL"),
            ("mangle", "KUBE-PROXY-CANARY"),
        ] {
            assert!(!is_entered(table, chain), "{table} {chain}");
        }
    }

    #[test]
    fn a_set_is_kube_proxys_by_its_name_in_either_family() {
        for name in [
            "KUBE-CLUSTER-IP",
            "KUBE-6-CLUSTER-IP",
            "KUBE-IPVS-IPS",
            "KUBE-6-IPVS-IPS",
            "KUBE-LOAD-BALANCER-SOURCE-CIDR",
            // As long as a name can be.
            "KUBE-6-LOAD-BALANCER-SOURCE-CID",
            "KUBE-6-NODE-PORT-LOCAL-SCTP-HAS",
        ] {
            assert!(is_set(name), "{name}");
        }
        for name in [
            "KUBE-6-LOAD-BALANCER-SOURCE-CIDR",
            "KUBE-LOAD-BALANCER-SOURCE-CID",
            "KUBE-CLUSTER",
            "KUBE-SRC-ABCDEFGHIJKLMNOP",
            "kube-router-local-ips",
            "inet6:kube-router-svip",
            "felix-4-kube-ipvs",
        ] {
            assert!(!is_set(name), "{name}");
        }
    }
}
