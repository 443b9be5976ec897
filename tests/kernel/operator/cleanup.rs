//! Cleanup removes what kube-proxy left on a node and what we have made ourselves, and nothing else.

mod by_the_daemon;
mod rules;

use std::{fs, process::Output};

use anyhow::ensure;
use serde_json::json;
use testkit::{
    daemon::{binary, eventually},
    lab::{Host, Lab},
};

use self::rules::{
    Kind, OF_KUBE_PROXY, OF_OTHERS, OF_PORTMAP, SETS, chains, filter, make_sets, restore, shell,
};
use crate::support::{
    cluster::{Cluster, NO_PERIOD, POD_PORT, Service, V4, V6, at},
    hand_over::Successor,
};

/// A Service of both families on pod-1.
fn web() -> Service {
    Service::new("web", &json!({ "clusterIPs": [V4, V6], "ports": [{ "port": 80 }] })).endpoints([1])
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

        let before = ours(node);
        let (said, code) = cleanup(node, &["--dry-run", "--ipvs-exclude-cidrs=10.98.0.0/15"]);
        assert_eq!(code, Some(0), "beside the daemon too: {said}");
        assert_eq!(ours(node), before);
        cluster.lab.client.ask(at(V4, 80)).unwrap();
        cluster.stop();
        let node = &cluster.lab.node;
        let listed = said.replace("would remove: ", "removed: ");
        let listed: Vec<_> = listed.lines().filter(|line| !line.contains("virtual servers: TCP ")).collect();
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
        let removed: Vec<_> = said.lines().filter(|line| !line.contains("virtual servers")).collect();
        assert_eq!(listed, removed, "the dry run listed what was removed");
        assert_eq!(cleanup(node, &but_for), (NOTHING.to_owned(), Some(0)));
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn on_a_terminal_cleanup_asks_unless_the_answer_is_given_before() {
    let mut cluster = Cluster::start(1, &[NO_PERIOD]);
    cluster.apply(&web());
    cluster.lab.client.ask(at(V4, 80)).unwrap();
    cluster.stop();
    let node = &cluster.lab.node;
    let on_terminal = |input: &str, arguments: &str| {
        let inside = format!("{} cleanup {arguments}; echo status $?", binary().unwrap().display());
        let command = format!("{input} | script -qec '{inside}' /dev/null");
        node.run("bash", &["-c", &command]).unwrap()
    };
    let before = ours(node);
    let said = on_terminal("echo n", "");
    assert!(said.contains("[y/N]") && said.contains("nothing was removed"), "{said}");
    assert_eq!(ours(node), before);
    // The terminal stays open: a question would wait for its answer.
    let said = on_terminal("sleep 5", "--yes");
    assert!(!said.contains("[y/N]") && said.contains("status 0"), "{said}");
    assert!(said.contains("removed: kube-ipvs0"), "{said}");
    assert_eq!(cleanup(node, &[]), (NOTHING.to_owned(), Some(0)));
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
    let expected = json!({
        "dry_run": false, "removed": tables, "stayed": [], "unknown": [], "cut": [], "waits": [], "warnings": [],
    });
    assert_eq!(said, expected);
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
