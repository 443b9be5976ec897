//! Ejection where a policy keeps traffic on the node, and where the client is an endpoint itself.

use std::{thread, time::Duration};

use ipvs::ServiceAddress;
use serde_json::json;
use testkit::lab::Manner;

use super::{PATIENCE, addresses, clients, ejecting, falls_silent, named, printed, weighs};
use crate::support::cluster::{Cluster, NO_PERIOD, Service, elsewhere, here, tcp};

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn under_external_policy_local_the_last_local_endpoint_stays() {
    let cluster = Cluster::start(3, &[NO_PERIOD]);
    let local = |name, last: u16| {
        let spec = json!({
            "type": "LoadBalancer",
            "externalTrafficPolicy": "Local",
            "clusterIPs": [format!("10.96.0.{last}")],
            "ports": [{ "port": 80, "nodePort": 30_000 + last }],
        });
        let ingress = json!([{ "ip": format!("192.0.2.{last}") }]);
        let status = json!({ "status": { "loadBalancer": { "ingress": ingress } } });
        ejecting(Service::new(name, &spec), "silent").patch(&status)
    };
    cluster.write(&local("one", 1).endpoints([here(1), elsewhere(3)]));
    cluster.write(&local("two", 2).endpoints([here(1), here(2), elsewhere(3)]));
    let node = cluster.lab.node.ipv4.to_string();
    let [inside_one, inside_two] = [tcp("10.96.0.1", 80), tcp("10.96.0.2", 80)];
    let of_one = [tcp("192.0.2.1", 80), tcp(&node, 30_001)];
    let of_two = [tcp("192.0.2.2", 80), tcp(&node, 30_002)];
    let all = [&[inside_one, inside_two][..], &of_one, &of_two].concat();
    weighs(&cluster, &all, 1, |weight| weight == 100);

    let lab = &cluster.lab;
    clients(&lab.client, &all, Duration::from_secs(3)).unwrap();
    cluster.answers_by(1, "tcp", "drop");
    thread::scope(|scope| {
        // A client outside of the Service with one local endpoint waits in vain.
        for address in of_one {
            let manner = Manner { patience: Duration::from_secs(5), ..Manner::default() };
            scope.spawn(move || lab.client.ask_in(manner, address).unwrap_err());
        }
        let rescued = [&[inside_one][..], &of_two].concat();
        scope.spawn(move || {
            println!("slowest client: {:?}", clients(&lab.client, &rescued, Duration::from_secs(5)).unwrap());
        });
        // Before its trial, in which it has a tenth of its weight everywhere.
        cluster.shows("pod 1 ejected, but not where it is the last", |table| {
            let pod = cluster.pod_address(1, inside_one.ip);
            let is_whole = |address: &ServiceAddress| table[address].real_servers[&pod].weight == 100;
            let ejected = [&[inside_one, inside_two][..], &of_two].concat();
            of_one.iter().all(is_whole) && !ejected.iter().any(is_whole)
        });
    });
    let history = printed(&cluster, &["history", "default/one"]);
    let ejections: Vec<_> = history.lines().filter(|line| line.contains("gets no new connections")).collect();
    let is_inside = |line: &&str| line.contains("10.96.0.1:80") && !line.contains(" more");
    assert!(cluster.daemon().log().contains("default/one: TCP 10.244.1.2:8080 gets no new connections"));
    assert!(!ejections.is_empty() && ejections.iter().all(is_inside), "{history}");

    cluster.answers_again(1);
    for address in of_one {
        assert_eq!(lab.client.ask_at(address).unwrap().from, lab.pods[0].name);
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_client_that_is_an_endpoint_itself_is_served_when_it_or_the_other_is_silent() {
    let cluster = Cluster::start(4, &[NO_PERIOD]);
    cluster.write(&ejecting(named("other", 10), "silent").endpoints([1, 2]));
    cluster.write(&ejecting(named("own", 11), "silent").endpoints([3, 4]));
    let (other, own) = (addresses(10)[0], addresses(11)[0]);
    weighs(&cluster, &[other], 2, |weight| weight == 100);
    weighs(&cluster, &[own], 3, |weight| weight == 100);
    let [client_of_other, _, client_of_own, _] = &cluster.lab.pods[..] else { panic!() };
    let cluster = &cluster;
    thread::scope(|scope| {
        for (client, address, silent) in [(client_of_other, other, 2), (client_of_own, own, 3)] {
            scope.spawn(move || {
                let slowest = falls_silent(cluster, &[silent], client, &[address]).unwrap();
                println!("slowest client of {address}: {slowest:?}");
                assert!(slowest > Duration::from_secs(1), "no client was sent to the silent endpoint");
            });
        }
    });
    weighs(cluster, &[other], 2, |weight| weight < 100);
    weighs(cluster, &[own], 3, |weight| weight < 100);
    // A pod that is sent to itself sees the node as the client, so that the answer passes the node.
    let manner = Manner { patience: PATIENCE, ..Manner::default() };
    let answer = client_of_other.ask_in(manner, other).unwrap();
    assert_eq!((answer.from.as_str(), answer.seen_as), ("pod-1", client_of_other.gateway(other.ip)));
    assert_eq!(client_of_own.ask_in(manner, own).unwrap().from, "pod-4");
}
