//! Cleanup removes what kube-proxy left on a node and what we have made ourselves, and nothing else.

use std::{fmt::Write as _, fs, process::Output};

use anyhow::ensure;
use serde_json::json;
use testkit::{
    daemon::{binary, eventually},
    lab::{Host, Lab},
};

use crate::support::{
    cluster::{Cluster, NO_PERIOD, POD_PORT, Service, V4, V6, at},
    hand_over::Successor,
};

/// A Service of both families on pod-1.
fn web() -> Service {
    Service::new("web", &json!({ "clusterIPs": [V4, V6], "ports": [{ "port": 80 }] })).endpoints([1])
}

/// iptables, by where it has its tables.
#[derive(Clone, Copy)]
enum Kind {
    Nft,
    Legacy,
}

impl Kind {
    fn program(self, family: &str, what: &str) -> String {
        match self {
            Self::Nft => format!("{family}-nft{what}"),
            Self::Legacy => format!("{family}-legacy{what}"),
        }
    }
}

/// The names of iptables in both families, each with how ipsets of the family begin, and are made.
const FAMILIES: [(&str, &str, &str); 2] = [("iptables", "KUBE-", "inet"), ("ip6tables", "KUBE-6-", "inet6")];

/// The chains and rules of the kubelet, kube-router, a container runtime and the operator, some with names much like
/// kube-proxy's, in every table.
const OF_OTHERS: &str = "
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
const OF_KUBE_PROXY: &str = "
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
const SETS: [(&str, &str); 6] = [
    ("CLUSTER-IP", "hash:ip,port"),
    ("LOAD-BALANCER", "hash:ip,port"),
    ("LOAD-BALANCER-FW", "hash:ip,port"),
    ("LOAD-BALANCER-SOURCE-CIDR", "hash:ip,port,net"),
    ("IPVS-IPS", "hash:ip"),
    ("NODE-PORT-TCP", "bitmap:port range 0-65535"),
];

/// What the CNI plugin portmap writes if its configuration names KUBE-MARK-MASQ as the chain that marks.
const OF_PORTMAP: &str = "
*nat
:CNI-HOSTPORT-SETMARK - [0:0]
:KUBE-MARK-MASQ - [0:0]
-A CNI-HOSTPORT-SETMARK -j KUBE-MARK-MASQ
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
COMMIT
";

fn shell(node: &Host, script: &str) {
    node.run("sh", &["-ec", script]).unwrap();
}

/// Adds rules in both families.
fn restore(node: &Host, kind: Kind, rules: &str) {
    for (family, set, _) in FAMILIES {
        // With its prefix the IPv6 name has 32 letters, one more than ipset takes: kube-proxy cuts it.
        let cidr =
            if set == "KUBE-" { "KUBE-LOAD-BALANCER-SOURCE-CIDR" } else { "KUBE-6-LOAD-BALANCER-SOURCE-CID" };
        let rules = rules.replace("@LOAD-BALANCER-SOURCE-CID", cidr).replace('@', set);
        let restore = kind.program(family, "-restore");
        shell(node, &format!("{restore} --noflush <<'END'\n{rules}END\n"));
    }
}

fn make_sets(node: &Host) {
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
fn chains(node: &Host) -> Vec<String> {
    let is_kube_proxys = |line: &&str| {
        let mut kube_proxys = OF_KUBE_PROXY.lines().filter(|other| !OF_OTHERS.contains(*other));
        line.starts_with(':') && kube_proxys.any(|other| other.split(" [").next() == Some(line))
    };
    let chains = filter(node);
    let chains = chains.lines().filter(is_kube_proxys);
    chains.map(|line| line.trim_matches([':', ' ', '-']).to_owned()).collect()
}

/// All rules and sets of this node, without what counts and dates.
fn filter(node: &Host) -> String {
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

/// Runs `kube-ipvs cleanup` with these arguments; returns what it printed, and its exit code.
fn cleanup(node: &Host, arguments: &[&str]) -> (String, Option<i32>) {
    ended(node.command(&binary().unwrap().to_string_lossy()).arg("cleanup").args(arguments).output().unwrap())
}

fn ended(output: Output) -> (String, Option<i32>) {
    let said = [output.stdout, output.stderr].concat();
    (String::from_utf8(said).unwrap(), output.status.code())
}

const NOTHING: &str = "nothing to remove\n";

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn all_rules_and_sets_of_kube_proxys_go_in_both_families_and_none_of_others() {
    for kinds in [&[Kind::Nft][..], &[Kind::Legacy], &[Kind::Nft, Kind::Legacy]] {
        let lab = Lab::new(0, POD_PORT).unwrap();
        let node = &lab.node;
        shell(node, "ipset create felix-4-mine hash:ip; ipset create KUBE-SRC-MINE hash:ip");
        for kind in kinds {
            restore(node, *kind, OF_OTHERS);
        }
        let before = filter(node);
        make_sets(node);
        for kind in kinds {
            restore(node, *kind, OF_KUBE_PROXY);
        }
        assert_eq!(filter(node).matches("-A KUBE-SERVICES ").count(), 8 * kinds.len());

        let (said, code) = cleanup(node, &[]);
        assert_eq!(code, Some(0), "{said}");
        assert_eq!(filter(node), before);
        assert_eq!(said.matches("removed: kube-proxy's ipset ").count(), 2 * SETS.len(), "{said}");
        assert_eq!(said.matches(" table nat: 3 jumps, 9 chains: ").count(), 2 * kinds.len(), "{said}");
        assert_eq!(said.matches(" table filter: 7 jumps, 7 chains: ").count(), 2 * kinds.len(), "{said}");
        assert_eq!(cleanup(node, &[]), (NOTHING.to_owned(), Some(0)));
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn what_others_use_stays_and_is_named_with_who_uses_it() {
    let lab = Lab::new(0, POD_PORT).unwrap();
    let node = &lab.node;
    make_sets(node);
    restore(node, Kind::Nft, OF_OTHERS);
    restore(node, Kind::Nft, OF_KUBE_PROXY);
    restore(node, Kind::Nft, OF_PORTMAP);
    restore(node, Kind::Nft, "*filter\n-A INPUT -m set --match-set @IPVS-IPS dst\nCOMMIT\n");
    let (said, code) = cleanup(node, &[]);
    assert_eq!(code, Some(1), "{said}");
    for line in [
        "not removed: chain KUBE-MARK-MASQ in iptables table nat: CNI-HOSTPORT-SETMARK jumps to it\n",
        "not removed: chain KUBE-MARK-MASQ in ip6tables table nat: CNI-HOSTPORT-SETMARK jumps to it\n",
        "not removed: ipset KUBE-IPVS-IPS: it is in use\n",
        "not removed: ipset KUBE-6-IPVS-IPS: it is in use\n",
    ] {
        assert!(said.contains(line), "{line}{said}");
    }
    let left = filter(node);
    assert_eq!(chains(node), ["KUBE-MARK-MASQ", "KUBE-MARK-MASQ"], "{left}");
    assert_eq!(left.matches("-A KUBE-MARK-MASQ -j MARK").count(), 2, "{left}");
    assert_eq!(left.lines().filter(|line| line.starts_with("KUBE-")).count(), 2, "{left}");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn without_its_programs_iptables_legacy_is_left_and_the_named_command_cleans_it() {
    let lab = Lab::new(0, POD_PORT).unwrap();
    let node = &lab.node;
    restore(node, Kind::Legacy, OF_OTHERS);
    restore(node, Kind::Legacy, OF_PORTMAP);
    let before = filter(node);
    make_sets(node);
    // A line of text does not distinguish KUBE-FIREWALL of the table nat from the kubelet's.
    let rules: String =
        OF_KUBE_PROXY.lines().filter(|line| !line.contains("KUBE-FIREWALL ")).collect::<Vec<_>>().join("\n");
    restore(node, Kind::Legacy, &(rules + "\n"));

    let mut command = node.command("env");
    command.args(["PATH=/nonexistent", &binary().unwrap().to_string_lossy(), "cleanup"]);
    let (said, code) = ended(command.output().unwrap());
    assert_eq!(code, Some(1), "the sets are in use: {said}");
    let not_looked_into =
        said.lines().find(|line| line.starts_with("not checked: iptables-legacy, IPv4 and IPv6: "));
    let not_looked_into = not_looked_into.unwrap_or_else(|| panic!("{said}"));
    let (_, by_hand) = not_looked_into.split_once("on the host: ").unwrap();
    shell(node, by_hand);
    let (said, code) = cleanup(node, &[]);
    assert_eq!(code, Some(1), "portmap still leads to KUBE-MARK-MASQ: {said}");
    assert_eq!(said.matches("removed: kube-proxy's ipset ").count(), 2 * SETS.len(), "{said}");
    assert_eq!(said.matches("CNI-HOSTPORT-SETMARK jumps to it").count(), 2, "{said}");
    assert_eq!(said.matches(": 1 jump, 1 chain: KUBE-FORWARD").count(), 2, "pods may need it: {said}");
    assert_eq!(said.lines().count(), 2 * SETS.len() + 4, "the command has left nothing else: {said}");
    assert_eq!(filter(node), before);
}

/// The file of an operator who goes to another mode of kube-proxy.
const FOR_IPTABLES_MODE: &str = "
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: iptables
ipvs: {excludeCIDRs: [10.98.0.0/16]}
";

/// What we have programmed, and how it is seen.
fn ours(node: &Host) -> [String; 4] {
    [
        node.run("ipvsadm", &["-Sn"]).unwrap(),
        node.run("ip", &["-br", "link", "show", "type", "dummy"]).unwrap(),
        node.run("nft", &["list", "tables"]).unwrap(),
        ["-4", "-6"]
            .map(|family| {
                node.run("ip", &[family, "route", "show", "table", "local", "proto", "73"]).unwrap()
            })
            .concat(),
    ]
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn all_that_we_have_programmed_goes_but_for_what_is_excluded_or_marked() {
    for binding in ["address", "route"] {
        let mut cluster = Cluster::start(1, &[NO_PERIOD, "--vip-binding", binding, "--host-firewall=accept"]);
        let node = &cluster.lab.node;
        shell(
            node,
            "nft 'table inet host { chain in { type filter hook input priority 0; policy drop; ct state new accept; ct state established accept; }; }'",
        );
        cluster.apply(&web());
        eventually("our rule is in the host's chain", || {
            let table = node.run("nft", &["list", "table", "inet", "host"])?;
            ensure!(table.contains("kube-ipvs"), "{table}");
            Ok(())
        })
        .unwrap();
        shell(
            node,
            "ipvsadm -A -t 10.98.0.1:80 -s rr; ipvsadm -A -t 10.99.0.1:80 -s rr; ipvsadm -A -f 7 -s rr",
        );

        let refused = cluster.daemon().ask(node, "cleanup").unwrap_err().to_string();
        assert!(refused.contains("another kube-ipvs runs on this node"), "{refused}");
        cluster.lab.client.ask(at(V4, 80)).unwrap();

        cluster.stop();
        let node = &cluster.lab.node;
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(&file, FOR_IPTABLES_MODE).unwrap();
        let but_for = ["--config", file.path().to_str().unwrap(), "--ipvs-exclude-cidrs=10.99.0.0/16"];
        let (said, code) = cleanup(node, &but_for);
        assert_eq!(code, Some(0), "{said}");
        let spared = "-A -t 10.98.0.1:80 -s rr\n-A -t 10.99.0.1:80 -s rr\n-A -f 7 -s rr\n";
        let expected = [spared, "", "table inet host\n", ""];
        assert_eq!(ours(node), expected, "{said}");
        let host = node.run("nft", &["list", "table", "inet", "host"]).unwrap();
        assert!(!host.contains("kube-ipvs"), "{host}");
        assert!(said.contains("removed: 2 virtual servers\n"), "{said}");
        assert_eq!(cleanup(node, &but_for), (NOTHING.to_owned(), Some(0)));
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_kube_proxy_that_runs_again_keeps_its_virtual_servers_its_vips_and_its_rules() {
    let mut cluster = Cluster::start(1, &[NO_PERIOD]);
    cluster.apply(&web());
    cluster.stop();
    let node = &cluster.lab.node;
    make_sets(node);
    restore(node, Kind::Nft, OF_OTHERS);
    restore(node, Kind::Nft, OF_KUBE_PROXY);
    let (rules, [servers, device, ..]) = (filter(node), ours(node));
    assert_eq!(servers.matches("-A ").count(), 2, "{servers}");

    let _kube_proxy = Successor::in_mode(node, "ipvs");
    let (said, code) = cleanup(node, &[]);
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("a proxy in ipvs mode runs on this node") && said.contains(" --keep-ipvs`"),
        "{said}"
    );
    assert_eq!((filter(node), &ours(node)[..2]), (rules.clone(), &[servers.clone(), device.clone()][..]));

    let (said, code) = cleanup(node, &["--keep-ipvs", "-o", "json"]);
    assert_eq!(code, Some(0), "{said}");
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    let tables = ["our nf_tables table of IPv4", "our nf_tables table of IPv6"];
    assert_eq!(said, json!({ "removed": tables, "stayed": [], "unknown": [], "cut": [] }));
    assert_eq!(filter(node), rules);
    let [servers_after, device_after, tables, _] = ours(node);
    assert_eq!((servers_after, device_after), (servers, device));
    assert!(!tables.contains("kube-ipvs"), "{tables}");
    assert_eq!(cleanup(node, &["--keep-ipvs"]), (NOTHING.to_owned(), Some(0)));
    let (said, code) = cleanup(node, &["--force"]);
    assert!(code == Some(0) && said.contains("removed: 2 virtual servers\n"), "{code:?} {said}");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_device_of_another_program_stays_and_the_rest_is_removed() {
    let lab = Lab::new(0, POD_PORT).unwrap();
    let node = &lab.node;
    shell(
        node,
        "ip link add kube-ipvs0 type bridge; ipvsadm -A -t 10.96.0.1:80 -s rr; nft add table ip kube-proxy",
    );
    let (said, code) = cleanup(node, &["--kube-proxy-nftables"]);
    assert_eq!(code, Some(1), "{said}");
    assert_eq!(
        said,
        "removed: 1 virtual server\nremoved: kube-proxy's nftables table ip kube-proxy\n\
         not removed: kube-ipvs0: kube-ipvs0 exists and is of type bridge, not dummy\n"
    );
    node.run("ip", &["link", "show", "kube-ipvs0"]).unwrap();
}

/// Waits until nothing of kube-proxy's is left, in the packet filter and among the ipsets.
fn nothing_is_left(node: &Host, before: &str) {
    eventually("kube-proxy's rules and sets are gone", || {
        let filter = filter(node);
        ensure!(filter == before, "{filter}");
        Ok(())
    })
    .unwrap();
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn the_daemon_removes_what_kube_proxy_has_left_once_its_own_rules_are_there() {
    let mut cluster = Cluster::without_daemon(1);
    let node = &cluster.lab.node;
    for kind in [Kind::Nft, Kind::Legacy] {
        restore(node, kind, OF_OTHERS);
    }
    let before = filter(node);
    make_sets(node);
    for kind in [Kind::Nft, Kind::Legacy] {
        restore(node, kind, OF_KUBE_PROXY);
    }
    shell(node, "nft add table ip kube-proxy; nft add table ip6 kube-proxy");

    cluster.restart(&[NO_PERIOD]);
    cluster.apply(&web());
    nothing_is_left(&cluster.lab.node, &before);
    eventually("the tables of the nftables mode are gone", || {
        let tables = cluster.lab.node.run("nft", &["list", "tables"])?;
        ensure!(!tables.contains("kube-proxy"), "{tables}");
        Ok(())
    })
    .unwrap();
    for vip in [V4, V6] {
        cluster.lab.client.ask(at(vip, 80)).unwrap();
    }
    let log = cluster.daemon().log();
    assert!(log.contains("removed what kube-proxy had left: iptables table nat: 3 jumps, 9 chains"), "{log}");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn kube_forward_stays_until_something_else_accepts_the_answers_of_pods() {
    for kind in [Kind::Nft, Kind::Legacy] {
        let mut cluster = Cluster::without_daemon(1);
        let node = &cluster.lab.node;
        make_sets(node);
        restore(node, kind, OF_OTHERS);
        restore(node, kind, OF_KUBE_PROXY);
        for (family, ..) in FAMILIES {
            node.run(&kind.program(family, ""), &["-P", "FORWARD", "DROP"]).unwrap();
        }
        // Neighbours are to be found.
        node.run(&kind.program("ip6tables", ""), &["-A", "FORWARD", "-p", "icmpv6", "-j", "ACCEPT"]).unwrap();
        cluster.restart(&[NO_PERIOD, "--host-firewall=warn"]);
        cluster.apply(&web());
        eventually("the log names what stays", || {
            let log = cluster.daemon().log();
            let warnings =
                log.lines().filter(|line| line.contains("WARN") && line.contains("chain KUBE-FORWARD in "));
            ensure!(warnings.count() == 2, "{log}");
            Ok(())
        })
        .unwrap();
        assert_eq!(chains(&cluster.lab.node), ["KUBE-FORWARD", "KUBE-FORWARD"]);
        for vip in [V4, V6] {
            cluster.lab.client.ask(at(vip, 80)).unwrap();
        }

        cluster.restart(&[NO_PERIOD]);
        eventually("KUBE-FORWARD is gone", || {
            ensure!(chains(&cluster.lab.node).is_empty(), filter(&cluster.lab.node));
            Ok(())
        })
        .unwrap();
        for vip in [V4, V6] {
            cluster.lab.client.ask(at(vip, 80)).unwrap();
        }
    }
}

/// With it, rules that another proxy has written since are found within three seconds.
const OFTEN: &str = "--ipvs-sync-period=1s";

/// Whether the status warns of another proxy.
fn is_reported(cluster: &Cluster) -> anyhow::Result<bool> {
    let status = cluster.daemon().ask(&cluster.lab.node, "status")?;
    Ok(status
        .lines()
        .any(|line| line.starts_with("warning: ") && line.contains("another proxy seems to run")))
}

/// Waits until it does, or does not any more.
fn waits_until_reported(cluster: &Cluster, wanted: bool) {
    eventually(&format!("the status warns of another proxy: {wanted}"), || {
        ensure!(is_reported(cluster)? == wanted, "{}", cluster.daemon().log());
        Ok(())
    })
    .unwrap();
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_later_kube_proxy_is_reported_and_its_rules_stay_until_the_daemon_restarts() {
    let mut cluster = Cluster::without_daemon(1);
    let node = &cluster.lab.node;
    restore(node, Kind::Nft, OF_OTHERS);
    let before = filter(node);
    let write_rules = |node: &Host| {
        make_sets(node);
        restore(node, Kind::Nft, OF_KUBE_PROXY);
    };
    write_rules(node);
    cluster.restart(&[OFTEN]);
    cluster.apply(&web());
    nothing_is_left(&cluster.lab.node, &before);
    assert!(!is_reported(&cluster).unwrap());

    write_rules(&cluster.lab.node);
    let rules = filter(&cluster.lab.node);
    waits_until_reported(&cluster, true);
    assert_eq!(filter(&cluster.lab.node), rules);
    let log = cluster.daemon().log();
    let warned =
        log.lines().filter(|line| line.contains("WARN") && line.contains("another proxy seems to run"));
    assert_eq!(warned.count(), 1, "{log}");

    cluster.restart(&[OFTEN]);
    nothing_is_left(&cluster.lab.node, &before);
    assert!(!is_reported(&cluster).unwrap());
    for vip in [V4, V6] {
        cluster.lab.client.ask(at(vip, 80)).unwrap();
    }

    shell(&cluster.lab.node, "nft add table ip6 kube-proxy");
    waits_until_reported(&cluster, true);
    shell(&cluster.lab.node, "nft delete table ip6 kube-proxy");
    waits_until_reported(&cluster, false);
}
