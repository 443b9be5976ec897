//! Settings of the node that hurt traffic to Services: they do, each is reported once, and its remedy helps.

use std::{fs, time::Instant};

use anyhow::{Context, ensure};
use serde_json::json;
use testkit::{
    daemon::{binary, eventually},
    lab::Host,
};

use crate::support::cluster::{Cluster, NO_PERIOD, POD_PORT, Service, V4, V6, at};

/// Kernel parameters tell of no change: the node is looked at every second.
const OFTEN: &str = "--ipvs-sync-period=1s";

/// A host that drops what it does not know, and knows no Services. Loaded again, it begins anew.
const HOST_FIREWALL: &str = "
    table inet filter
    delete table inet filter
    table inet filter {
        chain input {
            type filter hook input priority 0; policy drop;
            iif lo accept
            meta l4proto { icmp, ipv6-icmp } accept
        }
        chain forward {
            type filter hook forward priority 0; policy drop;
            meta l4proto ipv6-icmp accept
        }
    }";

/// What is in the log for each warning about the node.
const WARNED: [&str; 2] = ["WARN", "kube_ipvs::finding"];

const NODE_PORT: u16 = 32_767;
const HEALTH_CHECK_PORT: u16 = 32_000;

/// A Service of both families, with a NodePort and a port for health checks, on pod-1.
fn web() -> Service {
    Service::new(
        "web",
        &json!({
            "type": "LoadBalancer",
            "clusterIPs": [V4, V6],
            "externalTrafficPolicy": "Local",
            "healthCheckNodePort": HEALTH_CHECK_PORT,
            "ports": [{ "port": 80, "nodePort": NODE_PORT }],
        }),
    )
    .endpoints([1])
}

/// Loads the host's own firewall, as its owner does.
fn load_firewall(node: &Host) {
    node.run("sh", &["-c", &format!("printf '%s\\n' '{HOST_FIREWALL}' | nft -f -")]).unwrap();
}

/// Waits until the status has a line with all of these words, and returns it.
fn status_line(cluster: &Cluster, words: &[&str]) -> String {
    eventually(&format!("the status says {words:?}"), || {
        let status = cluster.daemon().ask(&cluster.lab.node, "status")?;
        let line = status.lines().find(|line| words.iter().all(|word| line.contains(word)));
        line.map(str::to_owned).context(status.clone())
    })
    .unwrap()
}

/// Waits until the status has no line with all of these words.
fn not_in_status(cluster: &Cluster, words: &[&str]) {
    eventually(&format!("the status does not say {words:?}"), || {
        let status = cluster.daemon().ask(&cluster.lab.node, "status")?;
        ensure!(!status.lines().any(|line| words.iter().all(|word| line.contains(word))), "{status}");
        Ok(())
    })
    .unwrap();
}

/// How many lines of the log have all of these words.
fn logged(cluster: &Cluster, words: &[&str]) -> usize {
    let log = cluster.daemon().log();
    log.lines().filter(|line| words.iter().all(|word| line.contains(word))).count()
}

/// Does what a line of the status says, on the node.
fn follow(cluster: &Cluster, line: &str) {
    let (_, command) = line.split_once("; remedy: ").unwrap();
    cluster.lab.node.run("sh", &["-c", command]).unwrap();
}

/// The host's rules that have to do with us.
fn our_rules(node: &Host) -> Vec<String> {
    let shown = node.run("nft", &["list", "table", "inet", "filter"]).unwrap();
    shown.lines().filter(|line| line.contains("kube-ipvs")).map(|line| line.trim().to_owned()).collect()
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_parameter_changed_since_the_start_is_reported_and_the_remedy_restores_traffic() {
    let cluster = Cluster::start(1, &[OFTEN, "--ipvs-strict-arp"]);
    let (node, client) = (&cluster.lab.node, &cluster.lab.client);
    cluster.apply(&web());
    client.ask(at(V4, 80)).unwrap();
    not_in_status(&cluster, &["warning:"]);

    node.run("sysctl", &["-w", "net.ipv4.ip_forward=0", "net.ipv4.conf.all.arp_ignore=0"]).unwrap();
    client.ask(at(V4, 80)).unwrap_err();
    let forward = status_line(&cluster, &["warning:", "net.ipv4.ip_forward is 0, wanted 1"]);
    let arp = status_line(&cluster, &["warning:", "net.ipv4.conf.all.arp_ignore is 0, wanted 1"]);
    follow(&cluster, &forward);
    follow(&cluster, &arp);
    client.ask(at(V4, 80)).unwrap();
    not_in_status(&cluster, &["warning:"]);
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_host_port_that_a_node_port_overrides_is_a_warning() {
    let cluster = Cluster::start(1, &[OFTEN]);
    let (node, port) = (&cluster.lab.node, NODE_PORT.to_string());
    let port = port.as_str();
    cluster.apply(&web());
    let portmap = |action: &[&str]| {
        let rule = ["CNI-HOSTPORT-DNAT", "-p", "tcp", "-m", "comment", "--comment", "dnat name"];
        let target = ["-m", "multiport", "--dports", port, "-j", "CNI-DN-1"];
        node.run("iptables-nft", &[&["-t", "nat"][..], action, &rule, &target].concat()).unwrap();
    };
    for chain in ["CNI-HOSTPORT-DNAT", "CNI-DN-1"] {
        node.run("iptables-nft", &["-t", "nat", "-N", chain]).unwrap();
    }
    portmap(&["-A"]);
    let words = ["warning:", "hostPorts of pods on this node are NodePorts too", port];
    status_line(&cluster, &words);
    portmap(&["-D"]);
    not_in_status(&cluster, &words);

    let nft = format!(
        "add table ip cni_hostport; add chain ip cni_hostport hostports; \
                       add rule ip cni_hostport hostports tcp dport {port} dnat to 10.244.1.2:80"
    );
    node.run("nft", &[&nft]).unwrap();
    status_line(&cluster, &words);
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn strict_reverse_path_filtering_is_a_warning_once_it_drops_packets_repeatedly() {
    let cluster = Cluster::start(1, &[OFTEN]);
    let (node, client) = (&cluster.lab.node, &cluster.lab.client);
    cluster.apply(&web());
    client.ask(at(V4, 80)).unwrap();
    node.run("sysctl", &["-w", "net.ipv4.conf.all.rp_filter=1"]).unwrap();
    not_in_status(&cluster, &["rp_filter"]);

    // The way back to the client's second address is another interface.
    client.ip("addr add 192.0.2.77/32 dev eth0").unwrap();
    node.ip("link add elsewhere type dummy\nlink set elsewhere up\nroute add 192.0.2.77/32 dev elsewhere")
        .unwrap();
    // The client repeats its SYN after one second and after three.
    client.run("sh", &["-c", &format!("nc -w 5 -s 192.0.2.77 {V4} 80 < /dev/null || true")]).unwrap();
    let line = status_line(&cluster, &["warning:", "rp_filter is strict (1) and drops packets"]);
    assert!(line.contains("strict are ") && line.contains("elsewhere"), "{line}");
    node.run("sysctl", &["-w", "net.ipv4.conf.all.rp_filter=2"]).unwrap();
    not_in_status(&cluster, &["rp_filter"]);
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_host_firewall_that_drops_is_reported_once_until_there_are_rules() {
    // Without the period: the kernel notifies of the changed firewall.
    let cluster = Cluster::start(1, &[NO_PERIOD]);
    let (node, client) = (&cluster.lab.node, &cluster.lab.client);
    cluster.apply(&web());
    client.ask(at(V4, 80)).unwrap();

    load_firewall(node);
    client.ask(at(V4, 80)).unwrap_err();
    let input = ["warning:", "VIPs and NodePorts", "inet filter input", "policy drop"];
    let forward = ["warning:", "what pods answer", "inet filter forward", "policy drop"];
    for words in [&input, &forward] {
        let line = status_line(&cluster, words);
        assert!(line.contains("; remedy: --host-firewall=accept, or rules of your own"), "{line}");
        assert_eq!(logged(&cluster, &[&["WARN"], &words[1..]].concat()), 1);
    }
    assert_eq!(our_rules(node), [""; 0], "no rule was asked for");
    let status = cluster.daemon().ask(node, "status").unwrap();
    assert!(status.contains("synced:          yes"), "what is programmed is as it should be: {status}");

    // As docs/node.md has it.
    let by_hand =
        include_str!("../../../docs/node.md").lines().filter_map(|line| line.strip_prefix("$ nft insert "));
    let by_hand: Vec<_> = by_hand.map(|rule| format!("nft insert {rule}")).collect();
    assert_eq!(by_hand.len(), 4, "{by_hand:?}");
    node.run("sh", &["-ec", &by_hand.join("\n")]).unwrap();
    client.ask(at(V4, 80)).unwrap();
    client.ask((client.gateway(at(V4, 80).ip()), NODE_PORT).into()).unwrap();
    not_in_status(&cluster, &["warning:"]);
    for words in [&input, &forward] {
        assert_eq!(logged(&cluster, &[&["INFO", "resolved"], &words[1..]].concat()), 1);
        assert_eq!(logged(&cluster, &[&["WARN"], &words[1..]].concat()), 1, "warned once");
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn host_firewall_accept_opens_a_dropping_firewall_even_after_a_reload() {
    let mut cluster = Cluster::without_daemon(1);
    load_firewall(&cluster.lab.node);
    cluster.lab.node.serve(HEALTH_CHECK_PORT).unwrap();
    cluster.restart(&[NO_PERIOD, "--host-firewall=accept"]);
    cluster.apply(&web());
    let (node, client) = (&cluster.lab.node, &cluster.lab.client);
    let is_served = || {
        for vip in [V4, V6] {
            let gateway = client.gateway(at(vip, 80).ip());
            for service in [at(vip, 80), (gateway, NODE_PORT).into()] {
                let answer = client.ask(service)?;
                ensure!(answer.from == "pod-1", "{service} is answered by {}", answer.from);
            }
            let health = client.ask((gateway, HEALTH_CHECK_PORT).into())?;
            ensure!(health.from == "node", "load balancers are answered by {}", health.from);
        }
        Ok(())
    };
    eventually("the rule is in both chains", || {
        ensure!(our_rules(node).len() == 2, "{:?}", our_rules(node));
        Ok(())
    })
    .unwrap();
    is_served().unwrap();
    let elsewhere = (client.gateway(at(V4, 80).ip()), POD_PORT).into();
    client.ask(elsewhere).unwrap_err();
    let status = cluster.daemon().ask(node, "status").unwrap();
    assert!(!status.contains("warning:"), "{status}");

    let mut connection = client.connect(at(V4, 80)).unwrap();
    load_firewall(node);
    eventually("the rules are back", is_served).unwrap();
    assert_eq!(our_rules(node).len(), 2, "{:?}", our_rules(node));
    connection.still_works().unwrap();
    assert_eq!(logged(&cluster, &WARNED), 0, "{}", cluster.daemon().log());
}

/// Lets iptables forward nothing any more, and forget all its rules about that.
const FORWARD_NOTHING: &str = "
    for iptables in iptables ip6tables; do $iptables -F FORWARD; $iptables -P FORWARD DROP; done";

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn by_default_answers_pass_a_closed_forward_of_iptables_even_after_a_flush() {
    let mut cluster = Cluster::without_daemon(1);
    cluster.lab.node.run("sh", &["-ec", FORWARD_NOTHING]).unwrap();
    cluster.restart(&[NO_PERIOD]);
    cluster.apply(&web());
    let (node, client) = (&cluster.lab.node, &cluster.lab.client);
    let our_rules = || node.run("iptables", &["-S", "FORWARD"]).unwrap().matches("kube-ipvs").count();
    let is_served = || {
        for vip in [V4, V6] {
            client.ask(at(vip, 80))?;
        }
        Ok(())
    };
    eventually("the rules are there", is_served).unwrap();
    assert_eq!(our_rules(), 2);
    let mut connection = client.connect(at(V4, 80)).unwrap();

    node.run("sh", &["-ec", FORWARD_NOTHING]).unwrap();
    let begun = Instant::now();
    eventually("the rules are back", || {
        ensure!(our_rules() == 2, "there are {} of our rules", our_rules());
        is_served()
    })
    .unwrap();
    println!("back after {:?}", begun.elapsed());
    connection.still_works().unwrap();
    is_served().unwrap();
    assert_eq!(logged(&cluster, &WARNED), 0, "{}", cluster.daemon().log());
    let status = cluster.daemon().ask(node, "status").unwrap();
    assert!(!status.contains("warning:"), "{status}");

    node.run("iptables", &["-P", "INPUT", "DROP"]).unwrap();
    let input = status_line(&cluster, &["warning:", "VIPs and NodePorts", "ip filter INPUT", "policy drop"]);
    assert!(input.contains("; remedy: --host-firewall=accept, or rules of your own"), "{input}");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn the_rule_stays_when_the_daemon_ends_and_is_taken_out_by_one_that_only_warns() {
    let mut cluster = Cluster::without_daemon(1);
    load_firewall(&cluster.lab.node);
    cluster.restart(&[NO_PERIOD, "--host-firewall=accept"]);
    cluster.apply(&web());
    let node = |cluster: &Cluster| our_rules(&cluster.lab.node);
    eventually("the rule is in both chains", || {
        ensure!(node(&cluster).len() == 2, "{:?}", node(&cluster));
        cluster.lab.client.ask(at(V4, 80))
    })
    .unwrap();
    let before = node(&cluster);
    cluster.restart(&[NO_PERIOD, "--host-firewall=accept", "-v=4"]);
    cluster.lab.client.ask(at(V4, 80)).unwrap();
    assert_eq!(node(&cluster), before);

    cluster.restart(&[NO_PERIOD, "--host-firewall=warn"]);
    status_line(&cluster, &["warning:", "inet filter input"]);
    assert_eq!(node(&cluster), [""; 0]);
    cluster.lab.client.ask(at(V4, 80)).unwrap_err();
}

/// Puts the pods on one bridge of the node and into one network, as CNI's plugin `bridge` does.
fn join_on_a_bridge(cluster: &Cluster) {
    let node = &cluster.lab.node;
    let each = |line: fn(usize) -> String| (1..=2).map(line).collect::<Vec<_>>().join("\n");
    let joined = each(|pod| format!("addr flush dev veth{pod}\nlink set veth{pod} master cni0"));
    let gateways = each(|pod| {
        format!(
            "addr add 10.244.{pod}.1/16 dev cni0
             addr add fd00:10:244:{pod}::1/48 dev cni0 nodad"
        )
    });
    node.ip(&format!("link add cni0 type bridge\n{joined}\n{gateways}\nlink set cni0 up")).unwrap();
    for pod in &cluster.lab.pods {
        pod.ip("route add 10.244.0.0/16 dev eth0\nroute add fd00:10:244::/48 dev eth0").unwrap();
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn pods_on_a_bridge_that_hides_packets_are_reported_and_the_remedy_connects_them() {
    let cluster = Cluster::start(2, &[OFTEN]);
    let (node, pod) = (&cluster.lab.node, &cluster.lab.pods[0]);
    join_on_a_bridge(&cluster);
    // Without br_netfilter they do not exist, which is the same.
    let hide = "for all in iptables ip6tables; do \
         file=/proc/sys/net/bridge/bridge-nf-call-$all; [ ! -e $file ] || echo 0 >$file; done";
    node.run("sh", &["-c", hide]).unwrap();
    cluster.apply(&Service::tcp(V4).endpoints([2]));
    cluster.apply(&Service::tcp(V6).endpoints([2]));
    for vip in [V4, V6] {
        cluster.lab.client.ask(at(vip, 80)).unwrap();
        pod.ask(at(vip, 80)).unwrap_err();
    }
    let warning = status_line(&cluster, &["warning:", "the bridge cni0", "bridge-nf-call-ip6tables"]);
    assert_eq!(logged(&cluster, &["WARN", "the bridge cni0"]), 1);

    follow(&cluster, &warning);
    for vip in [V4, V6] {
        assert_eq!(pod.ask(at(vip, 80)).unwrap().from, "pod-2");
    }
    not_in_status(&cluster, &["warning:"]);
    assert_eq!(logged(&cluster, &["INFO", "resolved", "the bridge cni0"]), 1);
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_node_port_that_the_node_may_take_is_reported_and_the_remedy_keeps_it_free() {
    let cluster = Cluster::start(2, &[OFTEN]);
    let node = &cluster.lab.node;
    let parameter = "net.ipv4.ip_local_port_range";
    node.run("sysctl", &["-qw", &format!("{parameter}={NODE_PORT} {}", NODE_PORT + 1)]).unwrap();
    cluster.apply(&web());
    // The port as it may be chosen: the pod's SYN and ACK are sent to pod-1, which knows of nothing.
    let pod = cluster.pod_address(2, at(V4, 80).ip());
    node.connect_from(at("0.0.0.0", NODE_PORT), pod).unwrap_err();
    node.connect_from(at("0.0.0.0", NODE_PORT + 1), pod).unwrap().reset().unwrap();

    let warning = status_line(&cluster, &["warning:", "NodePort 32767", parameter]);
    assert_eq!(logged(&cluster, &["WARN", "NodePort 32767"]), 1);
    follow(&cluster, &warning);
    for _ in 0..3 {
        node.ask(pod).unwrap();
    }
    not_in_status(&cluster, &["warning:"]);
    assert_eq!(logged(&cluster, &["WARN", "NodePort 32767"]), 1);
}

/// How many minutes IPVS will keep the established connection without a packet.
fn minutes(node: &Host) -> anyhow::Result<u32> {
    let connections = node.run("ipvsadm", &["-Lnc"])?;
    let line = connections.lines().find(|line| line.contains("ESTABLISHED"));
    let expires = line.with_context(|| connections.clone())?.split_whitespace().nth(1);
    Ok(expires.and_then(|left| left.split(':').next()).context("no time")?.parse()?)
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn connections_that_ipvs_forgets_before_conntrack_does_are_a_note_and_no_warning() {
    let mut cluster = Cluster::start(1, &[OFTEN]);
    let (node, client) = (&cluster.lab.node, &cluster.lab.client);
    cluster.apply(&web());
    let explained = |cluster: &Cluster| {
        let socket = format!("--control-socket={}", cluster.daemon().socket().display());
        cluster.lab.node.run(&binary()?.to_string_lossy(), &["explain", "default/web", &socket])
    };
    let note = eventually("explain has the note", || {
        let said = explained(&cluster)?;
        let note = said.lines().find(|line| line.starts_with("note: ") && line.contains("TCP after 900 s"));
        note.map(str::to_owned).context(said.clone())
    })
    .unwrap();
    let status = cluster.daemon().ask(node, "status").unwrap();
    assert!(!status.contains("note:"), "it is so on most nodes: {status}");
    assert_eq!(logged(&cluster, &["TCP after 900 s"]), 0, "nor is it news");
    assert_eq!(logged(&cluster, &WARNED), 0, "a kernel as it comes is nothing to be warned of");

    node.run("ipvsadm", &["--set", "2", "0", "0"]).unwrap();
    let mut forgotten = client.connect(at(V4, 80)).unwrap();
    eventually("IPVS forgets it", || {
        ensure!(minutes(node).is_err(), "it is there still");
        Ok(())
    })
    .unwrap();
    forgotten.still_works().unwrap_err();

    // The last words of the line, with which everything is as conntrack has it.
    let (_, flags) = note.rsplit_once(", or set ").unwrap();
    let with_flags: Vec<_> = [OFTEN].into_iter().chain(flags.split_whitespace()).collect();
    cluster.restart(&with_flags);
    eventually("explain has no such note any more", || {
        let said = explained(&cluster)?;
        ensure!(!said.contains("TCP after"), "{said}");
        Ok(())
    })
    .unwrap();
    let (node, client) = (&cluster.lab.node, &cluster.lab.client);
    let mut kept = client.connect(at(V4, 80)).unwrap();
    assert!(minutes(node).unwrap() > 900 / 60, "{:?}", minutes(node));
    kept.still_works().unwrap();
}

/// What node-cache makes in its layout for iptables mode, the rules as iptables-nft writes them.
const DNS_CACHE: &str = "
    table inet dns-cache {
        chain prerouting {
            type filter hook prerouting priority raw
            ip daddr 10.96.0.10 udp dport 53 notrack
        }
        chain output {
            type filter hook output priority raw
            ip daddr 10.96.0.10 udp dport 53 notrack
            ip saddr 10.96.0.10 udp sport 53 notrack
        }
    }";

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_dns_cache_at_the_cluster_ip_is_reported_and_cuts_the_node_off_until_it_goes() {
    let cluster = Cluster::start(2, &[OFTEN]);
    let (node, pod) = (&cluster.lab.node, &cluster.lab.pods[1]);
    let ports = json!([{ "port": 53, "protocol": "UDP" }]);
    cluster.apply(&Service::new("kube-dns", &json!({ "clusterIPs": [V4], "ports": ports })).endpoints([1]));
    not_in_status(&cluster, &["warning:"]);

    node.ip(&format!("link add nodelocaldns type dummy\naddr add {V4}/32 dev nodelocaldns")).unwrap();
    node.run("nft", &[DNS_CACHE]).unwrap();
    status_line(
        &cluster,
        &[
            "warning:",
            &format!(
                "NodeLocal DNSCache has the ClusterIP of DNS on this interface, its layout for iptables mode: {V4}: "
            ),
        ],
    );
    pod.ask_udp(at(V4, 53)).unwrap();
    node.ask_udp(at(V4, 53)).unwrap_err();

    node.run("nft", &["delete", "table", "inet", "dns-cache"]).unwrap();
    node.ip("link delete nodelocaldns").unwrap();
    not_in_status(&cluster, &["warning:"]);
    node.ask_udp(at(V4, 53)).unwrap();
}

/// Another proxy that wants another scheduler, and does not give up.
const ANOTHER_SCHEDULER: &str = "while :; do ipvsadm -E -t 10.96.0.10:80 -s wlc; sleep 0.05; done";

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_program_that_fights_ours_is_reported_and_repaired_once_a_period() {
    let cluster = Cluster::start(1, &[OFTEN]);
    cluster.apply(&web());
    let node = &cluster.lab.node;
    let repaired = || cluster.daemon().status(node).unwrap()["repaired"].as_u64().unwrap();
    let mut connection = cluster.lab.client.connect(at(V4, 80)).unwrap();
    assert_eq!(repaired(), 0);

    let mut another = node.command("sh").args(["-c", ANOTHER_SCHEDULER]).spawn().unwrap();
    let begun = Instant::now();
    let warning = status_line(&cluster, &["warning:", "keeps changing", "of the last 10 sync periods"]);
    another.kill().unwrap();
    another.wait().unwrap();
    let (repaired, periods) = (repaired(), begun.elapsed().as_secs());
    assert!(warning.contains("10.96.0.10:80"), "the last repair is not in: {warning}");
    assert!((5..=periods + 1).contains(&repaired), "{repaired} repairs in {periods} s");

    not_in_status(&cluster, &["warning:", "keeps changing"]);
    cluster.ipvsadm("it is as before", |table| table.contains("10.96.0.10:80 rr"));
    assert_eq!(logged(&cluster, &["WARN", "kube_ipvs::finding", "keeps changing"]), 1);
    assert_eq!(logged(&cluster, &["INFO", "resolved", "keeps changing"]), 1);
    connection.still_works().unwrap();
}

/// The daemon sees these in the place of what is the machine's: no test is to make its table that small.
const SMALL_TABLE: &str = r#"mount --bind "$0" /proc/sys/net/netfilter/nf_conntrack_max && exec "$@""#;

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_table_of_conntrack_that_is_full_is_a_warning_until_it_has_room() {
    let cluster = Cluster::without_daemon(1);
    let (node, files) = (&cluster.lab.node, tempfile::tempdir().unwrap());
    let (most, socket) = (files.path().join("max"), files.path().join("control.sock"));
    fs::write(&most, "1\n").unwrap();
    let web = web();
    cluster.write(&web);
    let log = fs::File::create(files.path().join("log")).unwrap();
    let mut daemon = node
        .command("unshare")
        .args(["--mount", "sh", "-c", SMALL_TABLE])
        .args([&most, &binary().unwrap()])
        .args([
            "run",
            "--cluster-cidr=10.244.0.0/16",
            "--hostname-override=node",
            OFTEN,
            "--conntrack-max-per-core=0",
        ])
        .args(["--manifests".as_ref(), cluster.manifests.path().as_os_str()])
        .args(["--control-socket".as_ref(), socket.as_os_str()])
        .stderr(log)
        .spawn()
        .unwrap();
    let socket = socket.to_string_lossy();
    let binary = binary().unwrap();
    let status = || node.run(&binary.to_string_lossy(), &["status", "--control-socket", &socket]);
    let full = "conntrack's table is full or nearly full";
    let reported = eventually("it is reported", || {
        cluster.lab.client.ask(at(V4, 80))?;
        let status = status()?;
        ensure!(status.contains(full), "{status}");
        Ok(())
    });
    fs::write(&most, "1000000\n").unwrap();
    let over = eventually("it is over", || {
        let status = status()?;
        ensure!(!status.contains(full), "{status}");
        Ok(())
    });
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    let log = fs::read_to_string(files.path().join("log")).unwrap();
    reported.context(log.clone()).unwrap();
    over.unwrap();
    assert!(
        log.contains("sysctl -w net.netfilter.nf_conntrack_max=2 on the node") && log.contains("resolved: "),
        "{log}"
    );
}
