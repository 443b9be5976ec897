//! How scripts of the peer tier are read, and how tables are compared. Needs no root and no cluster; the
//! scripts are played by `tests/peer/scripts.rs`.

use std::{collections::BTreeSet, fs, path::Path};

use serde_json::json;

use crate::support::peer::{
    manifest,
    script::{Action, Kind, Node, Script},
    tables::{Difference, Tables},
};

const SCRIPT: &str = "
# Comments and blank lines say nothing.
flags: --a=1 --b

Everything is done that can be done.
    service web clusterIPs=10.96.0.1 ports=80
    slice web-a service=web ports=8080
        10.244.1.2
        10.244.2.2 ready=false
    delete slice web-a
    node zone= addresses=192.0.2.1,2001:db8::1
    run ip addr del 10.96.0.1/32 dev kube-ipvs0
    wait
    stop
    start
    differ because one of them is right
        kube-proxy: -A -t 10.96.0.1:80 -s rr
        kube-ipvs: address 10.96.0.1/32

Nothing happens.
    nothing changes
";

#[test]
fn a_script_is_read_whole() {
    let script = Script::parse("all", SCRIPT).unwrap();
    assert_eq!(script.flags, ["--a=1", "--b"]);
    let [first, second] = &script.steps[..] else { panic!("{:?}", script.steps) };
    assert_eq!(first.sentence, "Everything is done that can be done.");
    let slice =
        manifest::slice("web-a", "service=web ports=8080", ["10.244.1.2", "10.244.2.2 ready=false"]).unwrap();
    assert_eq!(
        first.actions,
        [
            Action::Apply(manifest::service("web", "clusterIPs=10.96.0.1 ports=80").unwrap()),
            Action::Apply(slice),
            Action::Delete(Kind::EndpointSlice, "web-a".to_owned()),
            Action::Node(Node {
                zone: None,
                addresses: Some(vec!["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()]),
            }),
            Action::Run("ip addr del 10.96.0.1/32 dev kube-ipvs0".to_owned()),
            Action::Wait,
            Action::Stop,
            Action::Start,
        ]
    );
    assert_eq!(first.reason.as_deref(), Some("one of them is right"));
    assert_eq!(first.difference.only_kube_proxy, BTreeSet::from(["-A -t 10.96.0.1:80 -s rr".to_owned()]));
    assert_eq!(first.difference.only_kube_ipvs, BTreeSet::from(["address 10.96.0.1/32".to_owned()]));
    assert!(!first.changes_nothing);
    assert!(second.changes_nothing && second.actions.is_empty() && second.difference.len() == 0);
}

#[test]
fn what_cannot_be_read_is_refused_with_its_line() {
    for (text, line, complaint) in [
        ("", "", "at least one step"),
        ("    stop", "line 1", "begins with a sentence"),
        ("One.\n\nflags: --a", "line 3", "before the first step"),
        ("One.\n    stpo", "line 2", "nothing that can be done"),
        ("One.\n    nothing at all", "line 2", "nothing that can be done"),
        ("One.\n    service web colour=blue", "line 2", "no field colour"),
        ("One.\n    service web ports=80 ports=81", "line 2", "given twice"),
        ("One.\n    service web ports=eighty", "line 2", "no port"),
        ("One.\n    service web ports", "line 2", "not FIELD=VALUE"),
        ("One.\n    service web ingress=lb.example.com/Proxy", "line 2", "only an address has a mode"),
        ("One.\n    stop\n        10.244.1.2", "line 2", "nothing can be below"),
        ("One.\n    slice web\n        10.244.1.2 ready=perhaps", "line 2", "neither true nor false"),
        ("One.\n    slice web\n        10.244.1.2 colour=blue", "line 2", "no field colour"),
        ("One.\n    delete node web", "line 2", "neither service nor slice"),
        ("One.\n    node zone=z1 colour=blue", "line 2", "no field colour"),
        ("One.\n    differ because I say so", "line 2", "no lines below"),
        ("One.\n    differ\n        kube-ipvs: -A -f 7", "line 2", "because WHY"),
        ("One.\n    differ because x\n        iptables: -A -f 7", "line 2", "neither kube-proxy nor"),
        ("One.\n    differ because x\n        kube-ipvs: TCP 10.96.0.1:80", "line 2", "no line of a table"),
        (
            "One.\n    differ because x\n        kube-ipvs: -A -f 7\n        kube-ipvs: -A -f 7",
            "line 2",
            "twice",
        ),
    ] {
        let error = format!("{:#}", Script::parse("bad", text).unwrap_err());
        assert!(error.contains(line) && error.contains(complaint), "{text:?}: {error}");
    }
}

#[test]
fn a_service_in_short_is_the_object_that_its_fields_name() {
    let fields = "type=LoadBalancer clusterIPs=10.96.0.1,fd00::1 ports=http:80@30080,dns:53/UDP,9090 \
                  externalIPs=203.0.113.1 sessionAffinity=ClientIP/60 allocateLoadBalancerNodePorts=false \
                  externalTrafficPolicy=Local internalTrafficPolicy=Cluster \
                  ingress=203.0.113.2,2001:db8::2/Proxy,lb.example.com label:example.com/a=b";
    assert_eq!(
        manifest::service("web", fields).unwrap(),
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "web", "labels": {"example.com/a": "b"}},
            "spec": {
                "type": "LoadBalancer",
                "clusterIP": "10.96.0.1",
                "clusterIPs": ["10.96.0.1", "fd00::1"],
                "ipFamilyPolicy": "RequireDualStack",
                "ports": [
                    {"name": "http", "protocol": "TCP", "port": 80, "nodePort": 30080},
                    {"name": "dns", "protocol": "UDP", "port": 53},
                    {"name": "", "protocol": "TCP", "port": 9090},
                ],
                "externalIPs": ["203.0.113.1"],
                "sessionAffinity": "ClientIP",
                "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}},
                "allocateLoadBalancerNodePorts": false,
                "externalTrafficPolicy": "Local",
                "internalTrafficPolicy": "Cluster",
            },
            "status": {"loadBalancer": {"ingress": [
                {"ip": "203.0.113.2"},
                {"ip": "2001:db8::2", "ipMode": "Proxy"},
                {"hostname": "lb.example.com"},
            ]}},
        })
    );
    let headless = manifest::service("db", "clusterIPs=None").unwrap();
    assert_eq!(headless["spec"], json!({"clusterIP": "None"}));
}

#[test]
fn a_slice_in_short_is_the_object_that_its_fields_name() {
    let endpoints = [
        "10.244.1.2,10.244.1.3 ready=false serving=true terminating=true",
        "10.244.2.2 node=other zones=z1,z2 nodes=node",
    ];
    assert_eq!(
        manifest::slice("web", "ports=http:8080,dns:53/UDP", endpoints).unwrap(),
        json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": "web", "labels": {"kubernetes.io/service-name": "web"}},
            "addressType": "IPv4",
            "ports": [
                {"name": "http", "protocol": "TCP", "port": 8080},
                {"name": "dns", "protocol": "UDP", "port": 53},
            ],
            "endpoints": [
                {
                    "addresses": ["10.244.1.2", "10.244.1.3"],
                    "conditions": {"ready": false, "serving": true, "terminating": true},
                },
                {
                    "addresses": ["10.244.2.2"],
                    "nodeName": "other",
                    "hints": {"forZones": [{"name": "z1"}, {"name": "z2"}], "forNodes": [{"name": "node"}]},
                },
            ],
        })
    );
    let v6 = manifest::slice("web-v6", "service=web", ["fd00::2"]).unwrap();
    assert_eq!(v6["addressType"], "IPv6");
    assert_eq!(v6["metadata"]["labels"]["kubernetes.io/service-name"], "web");
    let names = manifest::slice("web", "addressType=FQDN", ["www.example.com"]).unwrap();
    assert_eq!(names["addressType"], "FQDN");
}

const SERVERS: &str = "\
-A -t 10.96.0.1:443 -s rr
-a -t 10.96.0.1:443 -r 10.96.0.10:6443 -m -w 1
-A -t 10.96.0.10:53 -s rr -p 60
-A -t [fd00::1]:443 -s rr
-a -t [fd00::1]:443 -r [fd00:10::2]:6443 -m -w 1
-A -f 7 -s rr
";

const ADDRESSES: &str = "\
1: lo    inet 127.0.0.1/8 scope host lo\\       valid_lft forever preferred_lft forever
7: kube-ipvs0    inet 10.96.0.1/32 scope global kube-ipvs0\\       valid_lft forever preferred_lft forever
7: kube-ipvs0    inet6 fd00::1/128 scope global \\       valid_lft forever preferred_lft forever
";

#[test]
fn tables_are_the_virtual_servers_and_the_addresses_of_kube_ipvs0() {
    let Tables(lines) = Tables::read(SERVERS, ADDRESSES);
    assert_eq!(lines.len(), 8, "{lines:?}");
    assert!(lines.contains("-A -f 7 -s rr"));
    assert!(lines.contains("address 10.96.0.1/32") && lines.contains("address fd00::1/128"));
}

#[test]
fn an_address_is_left_out_with_its_real_servers_and_no_other_is() {
    let rest = Tables::read(SERVERS, ADDRESSES).without(&["10.96.0.1", "fd00::1"]);
    assert_eq!(rest, Tables::read("-A -t 10.96.0.10:53 -s rr -p 60\n-A -f 7 -s rr\n", ""));
    let all = Tables::read(SERVERS, ADDRESSES);
    assert_eq!(all.clone().without(&["10.96.0", "fd00::", "fd00:10::2"]), all);
}

#[test]
fn an_undeclared_difference_is_a_fault_and_so_is_a_declared_one_that_is_missing() {
    let tables = |servers| Tables::read(servers, "");
    let seen = Difference::between(&tables("-A -f 1\n-A -f 2\n"), &tables("-A -f 2\n-A -f 3\n"));
    let declared = |lines: &[&str]| Difference::parse(lines).unwrap();
    let none: [&str; 0] = [];
    assert_eq!(seen.faults(&declared(&["kube-proxy: -A -f 1", "kube-ipvs: -A -f 3"])), none);
    assert_eq!(
        seen.faults(&declared(&["kube-proxy: -A -f 1", "kube-ipvs: -A -f 4"])),
        ["not declared: kube-ipvs: -A -f 3", "not seen: kube-ipvs: -A -f 4"]
    );
    let swapped = seen.faults(&declared(&["kube-ipvs: -A -f 1", "kube-proxy: -A -f 3"]));
    assert_eq!(swapped.len(), 4, "{swapped:#?}");
    assert_eq!(Difference::default().faults(&Difference::default()), none);
}

fn scripts() -> Vec<Script> {
    Script::all(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peer/scripts")).unwrap()
}

#[test]
fn scripts_with_the_same_flags_are_next_to_each_other() {
    let scripts = scripts();
    let groups: Vec<_> = scripts.chunk_by(|one, other| one.flags == other.flags).collect();
    let flags: BTreeSet<_> = groups.iter().map(|group| &group[0].flags).collect();
    assert_eq!(groups.len(), flags.len());
    assert!(scripts[0].flags.is_empty());
}

#[test]
fn every_step_of_every_script_does_something() {
    let steps: Vec<_> = scripts().into_iter().flat_map(|script| script.steps).collect();
    assert!(steps.len() >= 60, "{} steps", steps.len());
    let idle: Vec<_> = steps.iter().filter(|step| step.actions.is_empty()).collect();
    assert!(idle.is_empty(), "{idle:#?}");
}

#[test]
fn the_readme_lists_the_scripts_that_declare_a_difference() {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peer/README.md");
    let readme = fs::read_to_string(readme).unwrap();
    let (_, table) = readme.split_once("## Where they differ").unwrap();
    let cells = table.lines().filter_map(|line| line.strip_suffix("` |")?.rsplit(" | `").next());
    let listed: BTreeSet<&str> = cells.collect();
    let scripts = scripts();
    let differ = scripts.iter().filter(|script| script.steps.iter().any(|step| step.reason.is_some()));
    assert_eq!(listed, differ.map(|script| script.name.as_str()).collect());
}
