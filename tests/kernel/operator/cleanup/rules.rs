//! The rules and sets of kube-proxy and of others, and how a node gets them.

use std::fmt::Write as _;

use testkit::lab::Host;

/// iptables, by where it has its tables.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Nft,
    Legacy,
}

impl Kind {
    pub(super) fn program(self, family: &str, what: &str) -> String {
        match self {
            Self::Nft => format!("{family}-nft{what}"),
            Self::Legacy => format!("{family}-legacy{what}"),
        }
    }
}

/// The names of iptables in both families, each with how ipsets of the family begin, and are made.
pub(super) const FAMILIES: [(&str, &str, &str); 2] =
    [("iptables", "KUBE-", "inet"), ("ip6tables", "KUBE-6-", "inet6")];

/// The chains and rules of the kubelet, kube-router, a container runtime and the operator, some with names much like
/// kube-proxy's, in every table.
pub(super) const OF_OTHERS: &str = "
*mangle
:KUBE-KUBELET-CANARY - [0:0]
:KUBE-IPTABLES-HINT - [0:0]
COMMIT
*nat
:KUBE-KUBELET-CANARY - [0:0]
:KUBE-MARK-DROP - [0:0]
:KUBE-HOSTPORTS - [0:0]
:KUBE-ROUTER-SNAT - [0:0]
-A PREROUTING -p tcp -m tcp --dport 8081 -m comment --comment \"not -j KUBE-SERVICES\" -j KUBE-HOSTPORTS
-A OUTPUT -p tcp -m tcp --dport 8081 -m comment --comment \"not -j KUBE-SERVICES any more\" -j KUBE-HOSTPORTS
-A POSTROUTING -j KUBE-ROUTER-SNAT
-A KUBE-HOSTPORTS -p tcp -m tcp --dport 8081 -j REDIRECT --to-ports 8082
-A KUBE-MARK-DROP -j MARK --set-xmark 0x8000/0x8000
COMMIT
*filter
:KUBE-FIREWALL - [0:0]
:KUBE-ROUTER-INPUT - [0:0]
:KUBE-NWPLCY-DEFAULT - [0:0]
:KUBE-POD-FW-NPX46M4PTMTKRN6Y - [0:0]
-A INPUT -j KUBE-ROUTER-INPUT
-A INPUT -j KUBE-FIREWALL
-A KUBE-FIREWALL -m mark --mark 0x8000/0x8000 -j DROP
-A KUBE-ROUTER-INPUT -p tcp -m tcp --dport 9 -j KUBE-POD-FW-NPX46M4PTMTKRN6Y
-A KUBE-POD-FW-NPX46M4PTMTKRN6Y -j KUBE-NWPLCY-DEFAULT
COMMIT
";

/// What kube-proxy writes in ipvs mode, and chains that its iptables mode has left: an at sign is how ipsets begin.
pub(super) const OF_KUBE_PROXY: &str = "
*mangle
:KUBE-PROXY-CANARY - [0:0]
COMMIT
*nat
:KUBE-SERVICES - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-NODE-PORT - [0:0]
:KUBE-LOAD-BALANCER - [0:0]
:KUBE-FIREWALL - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-SVC-NPX46M4PTMTKRN6Y - [0:0]
:KUBE-SEP-2Q7ZJQZ6ZQJ3Y2AB - [0:0]
-I PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-I OUTPUT -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-I POSTROUTING -m comment --comment \"kubernetes postrouting rules\" -j KUBE-POSTROUTING
-A KUBE-SERVICES -m set --match-set @LOAD-BALANCER dst,dst -j KUBE-LOAD-BALANCER
-A KUBE-SERVICES -m set --match-set @CLUSTER-IP src,dst -j KUBE-MARK-MASQ
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODE-PORT
-A KUBE-SERVICES -m set --match-set @CLUSTER-IP dst,dst -j ACCEPT
-A KUBE-LOAD-BALANCER -j KUBE-MARK-MASQ
-A KUBE-NODE-PORT -p tcp -m set --match-set @NODE-PORT-TCP dst -j KUBE-MARK-MASQ
-A KUBE-FIREWALL -j KUBE-MARK-DROP
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
-A KUBE-POSTROUTING -j MASQUERADE --random-fully
-A KUBE-NODEPORTS -p tcp -m tcp --dport 30080 -j KUBE-SVC-NPX46M4PTMTKRN6Y
-A KUBE-SVC-NPX46M4PTMTKRN6Y -j KUBE-SEP-2Q7ZJQZ6ZQJ3Y2AB
-A KUBE-SEP-2Q7ZJQZ6ZQJ3Y2AB -j KUBE-MARK-MASQ
COMMIT
*filter
:KUBE-FORWARD - [0:0]
:KUBE-NODE-PORT - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
:KUBE-SOURCE-RANGES-FIREWALL - [0:0]
:KUBE-IPVS-FILTER - [0:0]
:KUBE-IPVS-OUT-FILTER - [0:0]
:KUBE-EXTERNAL-SERVICES - [0:0]
-I FORWARD -m comment --comment \"kubernetes forwarding rules\" -j KUBE-FORWARD
-I INPUT -m comment --comment \"kubernetes health check rules\" -j KUBE-NODE-PORT
-I INPUT -m comment --comment \"kube-proxy firewall rules\" -j KUBE-PROXY-FIREWALL
-I FORWARD -m comment --comment \"kube-proxy firewall rules\" -j KUBE-PROXY-FIREWALL
-I INPUT -m comment --comment \"kubernetes ipvs access filter\" -j KUBE-IPVS-FILTER
-I OUTPUT -m comment --comment \"kubernetes ipvs access filter\" -j KUBE-IPVS-OUT-FILTER
-A INPUT -m conntrack --ctstate NEW -j KUBE-EXTERNAL-SERVICES
-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A KUBE-PROXY-FIREWALL -m set --match-set @LOAD-BALANCER-FW dst,dst -j KUBE-SOURCE-RANGES-FIREWALL
-A KUBE-SOURCE-RANGES-FIREWALL -m set --match-set @LOAD-BALANCER-SOURCE-CID dst,dst,src -j RETURN
-A KUBE-SOURCE-RANGES-FIREWALL -j DROP
-A KUBE-IPVS-FILTER -m set --match-set @CLUSTER-IP dst,dst -j RETURN
-A KUBE-IPVS-FILTER -m conntrack --ctstate NEW -m set --match-set @IPVS-IPS dst -j REJECT
COMMIT
";

/// Those of kube-proxy's ipsets that its rules above look into, with their types.
pub(super) const SETS: [(&str, &str); 6] = [
    ("CLUSTER-IP", "hash:ip,port"),
    ("LOAD-BALANCER", "hash:ip,port"),
    ("LOAD-BALANCER-FW", "hash:ip,port"),
    ("LOAD-BALANCER-SOURCE-CIDR", "hash:ip,port,net"),
    ("IPVS-IPS", "hash:ip"),
    ("NODE-PORT-TCP", "bitmap:port range 0-65535"),
];

/// What the CNI plugin portmap writes if its configuration names KUBE-MARK-MASQ as the chain that marks.
pub(super) const OF_PORTMAP: &str = "
*nat
:CNI-HOSTPORT-SETMARK - [0:0]
:KUBE-MARK-MASQ - [0:0]
-A CNI-HOSTPORT-SETMARK -j KUBE-MARK-MASQ
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
COMMIT
";

pub(super) fn shell(node: &Host, script: &str) {
    node.run("sh", &["-ec", script]).unwrap();
}

/// Adds rules in both families.
pub(super) fn restore(node: &Host, kind: Kind, rules: &str) {
    for (family, set, _) in FAMILIES {
        // With its prefix the IPv6 name has 32 letters, one more than ipset takes: kube-proxy cuts it.
        let cidr =
            if set == "KUBE-" { "KUBE-LOAD-BALANCER-SOURCE-CIDR" } else { "KUBE-6-LOAD-BALANCER-SOURCE-CID" };
        let rules = rules.replace("@LOAD-BALANCER-SOURCE-CID", cidr).replace('@', set);
        let restore = kind.program(family, "-restore");
        shell(node, &format!("{restore} --noflush <<'END'\n{rules}END\n"));
    }
}

pub(super) fn make_sets(node: &Host) {
    let mut script = String::new();
    for (_, prefix, inet) in FAMILIES {
        for (set, kind) in SETS {
            let name: String = format!("{prefix}{set}").chars().take(31).collect();
            let family = if kind.starts_with("hash") { format!("family {inet}") } else { String::new() };
            writeln!(script, "ipset create {name} {kind} {family}").unwrap();
        }
    }
    shell(node, &script);
}

/// The chains of kube-proxy's that there are, of which others have none of the same name in another table.
pub(super) fn chains(node: &Host) -> Vec<String> {
    let is_kube_proxys = |line: &&str| {
        let mut kube_proxys = OF_KUBE_PROXY.lines().filter(|other| !OF_OTHERS.contains(*other));
        line.starts_with(':') && kube_proxys.any(|other| other.split(" [").next() == Some(line))
    };
    let chains = filter(node);
    let chains = chains.lines().filter(is_kube_proxys);
    chains.map(|line| line.trim_matches([':', ' ', '-']).to_owned()).collect()
}

/// All rules and sets of this node, without what counts and dates.
pub(super) fn filter(node: &Host) -> String {
    let mut all = node.run("ipset", &["list", "-n"]).unwrap();
    for (family, ..) in FAMILIES {
        for kind in [Kind::Nft, Kind::Legacy] {
            let saved = node.run(&kind.program(family, "-save"), &[]).unwrap();
            let lines = saved.lines().filter(|line| !line.starts_with('#'));
            all.extend(lines.map(|line| format!("{}\n", line.split(" [").next().unwrap())));
        }
    }
    all
}
