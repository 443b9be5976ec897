//! `diff` and `explain`, with the daemon and without.

use std::fs;

use serde_json::{Value, json};
use testkit::{
    daemon::{binary, eventually},
    lab::CLUSTER_CIDR,
};

use crate::support::cluster::{self, Cluster, NO_PERIOD, Service, V4, V6, elsewhere, here, tcp};

/// A question, with the exit code and what was printed, errors last.
fn ask(cluster: &Cluster, arguments: &[&str]) -> (Option<i32>, String) {
    let output =
        cluster.lab.node.command(&binary().unwrap().to_string_lossy()).args(arguments).output().unwrap();
    let printed = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(printed).unwrap())
}

/// The same to the daemon.
fn ask_daemon(cluster: &Cluster, arguments: &[&str]) -> (Option<i32>, String) {
    let socket = cluster.daemon().socket().to_str().unwrap();
    ask(cluster, &[arguments, &["--control-socket", socket]].concat())
}

/// The same without the daemon, whose flags are given: those that every daemon here has, and these.
fn ask_without(cluster: &Cluster, arguments: &[&str], flags: &[&str]) -> (Option<i32>, String) {
    let manifests = format!("--manifests={}", cluster.manifests.path().display());
    let cluster_cidr = format!("--cluster-cidr={CLUSTER_CIDR}");
    let daemon = ["--proxy-mode=ipvs", "--hostname-override=node", &cluster_cidr, &manifests];
    let (code, printed) = ask(cluster, &[arguments, &["--"], &daemon, flags].concat());
    let note = "kube-ipvs: answering without the daemon, for the node node\n";
    (code, printed.strip_suffix(note).unwrap_or_else(|| panic!("{printed}")).to_owned())
}

/// Both answers, which must be the same.
fn ask_both(cluster: &Cluster, arguments: &[&str]) -> (Option<i32>, String) {
    ask_both_with(cluster, arguments, &[])
}

/// The same of a daemon that was started with these flags.
fn ask_both_with(cluster: &Cluster, arguments: &[&str], flags: &[&str]) -> (Option<i32>, String) {
    let ((code, said), without) = (ask_daemon(cluster, arguments), ask_without(cluster, arguments, flags));
    // Only a daemon knows whether endpoints answer, after some seconds, and checks the node all the time.
    let mut said = said.replace(", answers", "").replace(", idle", "");
    if let Some(notes) = said.find("\nnote: ") {
        said.truncate(notes + 1);
    }
    assert_eq!((code, &said), (without.0, &without.1));
    (code, said)
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn diff_is_empty_when_all_is_well_and_otherwise_shows_what_a_resync_would_do() {
    let cluster = Cluster::start(1, &[NO_PERIOD]);
    cluster.apply(&Service::tcp(V4).endpoints([1]));
    eventually("all is as wanted", || {
        anyhow::ensure!(ask_both(&cluster, &["diff"]) == (Some(0), String::new()));
        Ok(())
    })
    .unwrap();

    let pod = cluster.pod_address(1, V4.parse().unwrap());
    // A lost virtual server would be back within a second.
    cluster.lab.node.run("ipvsadm", &["-d", "-t", &format!("{V4}:80"), "-r", &pod.to_string()]).unwrap();
    let expected = format!("add real server TCP {V4}:80 -> {pod} weight 1\n");
    assert_eq!(ask_both(&cluster, &["diff"]), (Some(1), expected));
    let table = cluster.lab.node.run("ipvsadm", &["-Ln"]).unwrap();
    assert!(!table.contains(&pod.to_string()), "nothing was done: {table}");

    let (code, json) = ask_both(&cluster, &["diff", "-o", "json"]);
    let difference: Value = serde_json::from_str(&json).unwrap();
    let operations = difference["operations"].as_array().unwrap();
    let kinds: Vec<_> = operations.iter().map(|operation| operation["operation"].as_str().unwrap()).collect();
    assert_eq!((code, kinds), (Some(1), vec!["add-real-server"]));
    assert_eq!(operations[0]["real_server"], json!({ "ip": pod.ip(), "port": pod.port() }));
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn without_the_daemon_zone_addresses_and_pod_cidrs_of_the_node_are_known_too() {
    const NODE_IP: &str = "192.168.50.1";
    const NODE_PORT: u16 = 30_080;
    const FLAGS: [&str; 2] = ["--nodeport-addresses=primary", "--detect-local-mode=NodeCIDR"];
    let mut cluster = Cluster::without_daemon(2);
    cluster.write_manifest(
        "node",
        &json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": { "name": "node", "labels": { "topology.kubernetes.io/zone": "here" } },
            "spec": { "podCIDRs": ["10.244.0.0/17"] },
            "status": { "addresses": [{ "type": "InternalIP", "address": NODE_IP }] },
        }),
    );
    let ports = json!([{ "port": 80, "nodePort": NODE_PORT }]);
    let web = Service::tcp(V4).patch(&json!({ "spec": { "type": "NodePort", "ports": ports } }));
    cluster.write(&web.clone().endpoints([here(1).for_zone("here"), elsewhere(2).for_zone("there")]));
    cluster.restart(&[&[NO_PERIOD], &FLAGS[..]].concat());
    cluster.serves_all(&[(tcp(V4, 80), &[1]), (tcp(NODE_IP, NODE_PORT), &[1])]);

    eventually("all is as wanted", || {
        let answer = ask_both_with(&cluster, &["diff"], &FLAGS);
        anyhow::ensure!(answer == (Some(0), String::new()), "{answer:?}");
        Ok(())
    })
    .unwrap();
    let (code, said) = ask_both_with(&cluster, &["explain", "default/web4"], &FLAGS);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains(&format!("TCP {NODE_IP}:{NODE_PORT}")), "{said}");
    assert!(!said.contains("the Node has no label"), "{said}");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn status_says_since_when_what_was_done_last_what_drains_and_what_the_kernel_is() {
    let cluster = Cluster::start(2, &[NO_PERIOD]);
    let service = Service::tcp(V4);
    cluster.apply(&service.clone().endpoints([1, 2]));
    let mut connections: Vec<_> =
        (0..2).map(|_| cluster.lab.client.connect(cluster::at(V4, 80)).unwrap()).collect();
    cluster.write(&service.clone().endpoints([1]));
    cluster.weighs(tcp(V4, 80), 2, Some(0));
    for connection in &mut connections {
        connection.still_works().unwrap();
    }

    let status = eventually("the sync has ended", || {
        let status = cluster.daemon().status(&cluster.lab.node)?;
        anyhow::ensure!(status["synced"] == true && status["draining"] == 1, "{status:#}");
        Ok(status)
    })
    .unwrap();
    let pod = cluster.pod_address(2, V4.parse().unwrap());
    assert_eq!(status["standing"], "synced");
    assert!(status["standing_for"].as_f64() <= status["daemon"]["uptime"].as_f64(), "{status:#}");
    assert_eq!(status["drains"][0]["service"], format!("default/{}", service.name()));
    assert_eq!(status["drains"][0]["real_server"], json!({ "ip": pod.ip(), "port": pod.port() }));
    let done = &status["last_change"]["report"]["done_by_kind"];
    assert_eq!(done["edit-real-server"], 1, "{done:#}");
    let drained = format!("edit real server TCP {V4}:80 -> {pod} weight 0");
    assert_eq!(status["last_change"]["report"]["first_done"][0], json!(drained));
    let release = cluster.lab.node.run("uname", &["-r"]).unwrap();
    assert_eq!(status["daemon"]["kernel"]["release"], release.trim());
    assert_eq!(status["daemon"]["source"]["directory"], cluster.manifests.path().to_str().unwrap());

    let (_, said) = ask_daemon(&cluster, &["status"]);
    for words in [
        "synced:          yes, for ",
        "draining:        1, the first for ",
        &format!("                 {pod} for "),
        "after a change: 1 real server changed; ",
        &format!(", for default/{}\n", service.name()),
        "nf_tables:       has every feature that is used",
        &format!(
            "kernel:          {}, IPVS 1.2.1; IPv4 and IPv6; VIPs as addresses; scheduler rr\n",
            release.trim()
        ),
    ] {
        assert!(said.contains(words), "{words} in:\n{said}");
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn diff_without_a_daemon_and_without_its_flags_is_trouble_and_says_what_to_give() {
    let cluster = Cluster::without_daemon(0);
    let (code, said) = ask(&cluster, &["diff", "--control-socket=/run/none.sock"]);
    assert_eq!(code, Some(2));
    assert_eq!(
        said,
        "kube-ipvs: no daemon answers at /run/none.sock: is kube-ipvs running on this node? \
         To answer without it, give the daemon's flags after --\n"
    );
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn explain_says_why_each_endpoint_is_used_or_not_and_what_the_kernel_has_of_it() {
    let cluster = Cluster::start(3, &[NO_PERIOD]);
    let service = |pods: Vec<cluster::Endpoint>| {
        let spec = json!({
            "clusterIPs": [V4],
            "externalIPs": ["127.0.0.1"],
            "internalTrafficPolicy": "Local",
            "ports": [{ "name": "http", "port": 80 }],
        });
        Service::new("web", &spec).endpoints(pods)
    };
    cluster.apply(&service(vec![here(1), here(2)]));
    let mut connections: Vec<_> =
        (0..2).map(|_| cluster.lab.client.connect(cluster::at(V4, 80)).unwrap()).collect();
    cluster.write(&service(vec![here(1), here(2).terminating(), elsewhere(3)]));
    cluster.weighs(tcp(V4, 80), 2, Some(0));
    for connection in &mut connections {
        connection.still_works().unwrap();
    }

    let [one, two, three] = [1, 2, 3].map(|pod| cluster.pod_address(pod, V4.parse().unwrap()).to_string());
    let (code, said) = ask_both(&cluster, &["explain", "default/web"]);
    let width =
        [&one, &two, &three].map(String::len).into_iter().max().unwrap().max(format!("TCP {V4}:80").len());
    let row = |left: &str, right: &str| format!("  {left:width$}  {right}\n");
    let slice = "default/web-ipv4";
    let rows = [
        row(&format!("TCP {V4}:80"), "ClusterIP, internalTrafficPolicy Local"),
        row(&one, &format!("used, {slice}, 1 active and 0 inactive connections")),
        row(
            &two,
            &format!(
                "not used: conditions.terminating is true, and others are ready, {slice}, drains with weight 0: 1 active and 0 inactive connections"
            ),
        ),
        row(&three, &format!("not used: nodeName is another node, and the policy is Local, {slice}")),
    ];
    let expected = format!(
        "default/web\n\nhttp TCP, IPv4: the ready endpoints on this node\n{}\n\
         refused: spec.externalIPs: 127.0.0.1 is not served: it is a loopback address\n",
        rows.concat()
    );
    assert_eq!((code, said), (Some(0), expected));

    // With counters, which grow from one question to the next.
    let (_, json) = ask_daemon(&cluster, &["explain", "default/web", "-o", "json"]);
    let answer: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(answer["parts"][0]["endpoints"][1]["verdict"], "terminating");
    assert_eq!(answer["kernel"][0]["real_servers"].as_array().unwrap().len(), 2);
    assert_eq!(answer["refused"][0]["why"], json!({ "special": "loopback" }));

    cluster.write(&service(vec![here(1)]));
    eventually("what drains is in no slice", || {
        let (_, said) = ask_daemon(&cluster, &["explain", "default/web"]);
        let gone = "no longer in any slice, drains with weight 0: 1 active and 0 inactive connections";
        anyhow::ensure!(said.contains(&format!("  {two:width$}  {gone}\n")), "{said}");
        Ok(())
    })
    .unwrap();
    ask_both(&cluster, &["explain", "default/web"]);
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn explain_says_what_the_kernel_lacks_who_has_an_address_and_what_is_not_served() {
    let cluster = Cluster::start(1, &[NO_PERIOD]);
    let first = Service::tcp(V4).endpoints([1]);
    cluster.apply(&first);
    let second = Service::new("second", &json!({ "clusterIPs": [V4, V6], "ports": [{ "port": 80 }] }));
    cluster.write(
        &second.patch(&json!({ "metadata": { "creationTimestamp": "2026-01-01T00:00:00Z" } })).endpoints([1]),
    );
    cluster.serves(tcp(V6, 80), &[1]);
    let said = eventually("the kernel lacks it: the daemon may have repaired that already", || {
        cluster.lab.node.run("ipvsadm", &["-D", "-t", &format!("[{V6}]:80")])?;
        let (_, said) = ask_daemon(&cluster, &["explain", "default/second"]);
        anyhow::ensure!(said.contains(", MISSING in the kernel"), "{said}");
        Ok(said)
    })
    .unwrap();
    assert!(
        said.contains(&format!(
            "ClusterIP, internalTrafficPolicy Cluster, but it belongs to default/{}, whose claim comes first",
            first.name()
        )),
        "{said}"
    );
    assert!(said.contains("ClusterIP, internalTrafficPolicy Cluster, MISSING in the kernel"), "{said}");

    let (code, said) = ask_both(&cluster, &["explain", "default/unknown"]);
    assert_eq!(code, Some(1));
    assert!(
        said.starts_with("default/unknown is not served: no such Service is known (headless ones"),
        "{said}"
    );
    let (code, said) = ask(&cluster, &["explain", "unknown"]);
    assert_eq!(code, Some(64), "{said}");
    assert!(said.contains("invalid name \"unknown\": expected NAMESPACE/NAME"), "{said}");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn after_two_hyphens_there_are_flags_of_a_daemon_and_nothing_else() {
    let cluster = Cluster::without_daemon(0);
    for (flag, complaint) in [
        ("--bogus", "unexpected argument '--bogus'"),
        ("--cleanup", "only flags of a running daemon"),
        ("--init-only", "only flags of a running daemon"),
        ("--write-config-to=/dev/null", "only flags of a running daemon"),
        ("status", "only flags of a running daemon"),
    ] {
        let (code, said) = ask(&cluster, &["explain", "default/web", "--", flag]);
        assert!(code == Some(64) && said.contains(complaint), "{flag}: {code:?} {said}");
        assert_eq!(ask(&cluster, &["diff", "--", flag]).0, Some(64), "{flag}");
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_bad_manifest_is_a_problem_in_the_status_as_long_as_it_is_bad() {
    let cluster = Cluster::start(1, &[NO_PERIOD]);
    let problems = || cluster.daemon().status(&cluster.lab.node).map(|status| status["problems"].clone());
    let bad = cluster.manifests.path().join("bad.yaml");
    fs::write(&bad, "kind: [").unwrap();
    eventually("it is named", || {
        let problems = problems()?;
        let named = problems[0].as_str().is_some_and(|line| line.contains("/bad.yaml:1:"));
        anyhow::ensure!(named, "{problems}");
        Ok(())
    })
    .unwrap();
    let (_, said) = ask_daemon(&cluster, &["diff"]);
    assert!(said.contains("the desired state may be out of date: "), "{said}");
    fs::remove_file(bad).unwrap();
    eventually("it is forgotten", || {
        anyhow::ensure!(problems()? == json!([]));
        Ok(())
    })
    .unwrap();
}
