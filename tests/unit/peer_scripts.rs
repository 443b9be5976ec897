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
        ("One.\n    service web colour=blue", "line 2", "no field colour"),
        ("One.\n    service web ports=80 ports=81", "line 2", "given twice"),
        ("One.\n    slice web\n        10.244.1.2 ready=perhaps", "line 2", "neither true nor false"),
        ("One.\n    slice web\n        10.244.1.2 colour=blue", "line 2", "no field colour"),
        ("One.\n    differ because I say so", "line 2", "no lines below"),
        ("One.\n    differ\n        kube-ipvs: -A -f 7", "line 2", "because WHY"),
        (
            "One.\n    differ because x\n        kube-ipvs: TCP 10.96.0.1:80",
            "line 2",
            "not a line of a table",
        ),
    ] {
        let error = format!("{:#}", Script::parse("bad", text).unwrap_err());
        assert!(error.contains(line) && error.contains(complaint), "{text:?}: {error}");
    }
}

#[test]
fn what_is_written_in_short_is_in_the_object() {
    let service = manifest::service(
        "web",
        "type=LoadBalancer clusterIPs=10.96.0.1,fd00::1 ports=http:80@30080,dns:53/UDP externalIPs=203.0.113.1 \
         sessionAffinity=ClientIP/60 allocateLoadBalancerNodePorts=false externalTrafficPolicy=Local \
         ingress=203.0.113.2,2001:db8::2/Proxy label:example.com/a=b",
    );
    let endpoints =
        ["10.244.1.2 ready=false terminating=true", "10.244.2.2 node=other zones=z1,z2 nodes=node"];
    let slice = manifest::slice("web-1", "service=web ports=http:8080,dns:53/UDP", endpoints);
    let v6 = manifest::slice("web", "", ["fd00::2"]).unwrap();
    let (service, slice) = (service.unwrap(), slice.unwrap());
    for (object, pointer, value) in [
        (&service, "/metadata/labels/example.com~1a", json!("b")),
        (&service, "/spec/type", json!("LoadBalancer")),
        (&service, "/spec/clusterIP", json!("10.96.0.1")),
        (&service, "/spec/clusterIPs", json!(["10.96.0.1", "fd00::1"])),
        (&service, "/spec/ipFamilyPolicy", json!("RequireDualStack")),
        (
            &service,
            "/spec/ports/0",
            json!({"name": "http", "protocol": "TCP", "port": 80, "nodePort": 30_080}),
        ),
        (&service, "/spec/ports/1", json!({"name": "dns", "protocol": "UDP", "port": 53})),
        (&service, "/spec/externalIPs", json!(["203.0.113.1"])),
        (&service, "/spec/sessionAffinity", json!("ClientIP")),
        (&service, "/spec/sessionAffinityConfig/clientIP/timeoutSeconds", json!(60)),
        (&service, "/spec/allocateLoadBalancerNodePorts", json!(false)),
        (&service, "/spec/externalTrafficPolicy", json!("Local")),
        (&service, "/status/loadBalancer/ingress/0", json!({"ip": "203.0.113.2"})),
        (&service, "/status/loadBalancer/ingress/1", json!({"ip": "2001:db8::2", "ipMode": "Proxy"})),
        (&slice, "/metadata/labels/kubernetes.io~1service-name", json!("web")),
        (&slice, "/addressType", json!("IPv4")),
        (&slice, "/ports/1", json!({"name": "dns", "protocol": "UDP", "port": 53})),
        (&slice, "/endpoints/0/conditions", json!({"ready": false, "terminating": true})),
        (&slice, "/endpoints/1/nodeName", json!("other")),
        (&slice, "/endpoints/1/hints/forZones/1", json!({"name": "z2"})),
        (&slice, "/endpoints/1/hints/forNodes/0", json!({"name": "node"})),
        (&v6, "/addressType", json!("IPv6")),
        (&v6, "/metadata/labels/kubernetes.io~1service-name", json!("web")),
    ] {
        assert_eq!(object.pointer(pointer), Some(&value), "{pointer}: {object:#}");
    }
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
fn tables_are_virtual_servers_and_bound_addresses_and_one_can_be_left_out() {
    let all = Tables::read(SERVERS, ADDRESSES);
    assert_eq!(all.0.len(), 8, "{all:?}");
    assert!(all.0.contains("-A -f 7 -s rr") && all.0.contains("address fd00::1/128"));
    let rest = all.clone().without(&["10.96.0.1", "fd00::1"]);
    assert_eq!(rest, Tables::read("-A -t 10.96.0.10:53 -s rr -p 60\n-A -f 7 -s rr\n", ""));
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
fn scripts_are_in_order_of_flags_and_every_step_does_something() {
    let scripts = scripts();
    let steps: Vec<_> = scripts.iter().flat_map(|script| &script.steps).collect();
    assert!(steps.len() >= 60, "{} steps", steps.len());
    let idle: Vec<_> = steps.iter().filter(|step| step.actions.is_empty()).collect();
    assert!(idle.is_empty(), "{idle:#?}");
    let groups: Vec<_> = scripts.chunk_by(|one, other| one.flags == other.flags).collect();
    let flags: BTreeSet<_> = groups.iter().map(|group| &group[0].flags).collect();
    assert_eq!(groups.len(), flags.len());
    assert!(scripts[0].flags.is_empty());
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
