//! A Service that asks for too much gets its limit, and the others are served meanwhile.

use std::{
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

use serde_json::{Value, json};
use testkit::daemon::{eventually, eventually_within};

use crate::support::cluster::{Cluster, Service, V4, at, tcp};

const GREEDY: &str = "10.96.0.66";
const BALANCER: &str = "203.0.113.66";

/// How long either Service may take, on a machine that does other work as well. Without limits, what is asked
/// for here takes minutes.
const PATIENCE: Duration = Duration::from_secs(20);

/// Writes the Service, which is to be served as far as it may be, and then another one, which is to be served
/// too.
fn beside_another(cluster: &Cluster, greedy: &Service) {
    let web = Service::tcp(V4).endpoints([1]);
    for service in [greedy, &web] {
        cluster.write(service);
        let answer =
            eventually_within(PATIENCE, service.name(), || cluster.lab.client.ask(service.address()));
        assert_eq!(answer.unwrap().from, "pod-1");
    }
}

fn problems(cluster: &Cluster) -> Value {
    cluster.daemon().status(&cluster.lab.node).unwrap()["problems"].clone()
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_hundred_thousand_source_ranges_admit_no_client_and_delay_no_service() {
    let cluster = Cluster::start(1, &[]);
    let client: IpAddr = cluster.lab.client.address(V4.parse().unwrap());
    let restricted = |ranges: Vec<String>| {
        let ports = json!([{ "name": "a", "port": 80 }, { "name": "b", "port": 81 }]);
        let spec = json!({
            "type": "LoadBalancer", "clusterIPs": [GREEDY], "ports": ports, "loadBalancerSourceRanges": ranges,
        });
        Service::new("greedy", &spec)
            .patch(&json!({ "status": { "loadBalancer": { "ingress": [{ "ip": BALANCER }] } } }))
            .endpoints([1])
    };
    let its_own = [format!("{client}/32")];
    let apart = (0..100_000).map(|number| format!("{}/32", Ipv4Addr::from_bits(0x0a00_0000 + 2 * number)));
    beside_another(&cluster, &restricted(apart.chain(its_own.clone()).collect()));

    assert!(cluster.lab.client.ask(at(BALANCER, 80)).is_err(), "it is closed, and not open");
    let reported = problems(&cluster);
    assert_eq!(reported.as_array().map(Vec::len), Some(1), "{reported}");
    assert!(
        reported[0].as_str().unwrap().starts_with("default/greedy: spec.loadBalancerSourceRanges: no client"),
        "{reported}"
    );

    cluster.apply(&restricted(its_own.into()));
    eventually("it is open", || cluster.lab.client.ask(at(BALANCER, 80))).unwrap();
    assert_eq!(problems(&cluster), json!([]));
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_thousand_external_ips_with_four_hundred_ports_delay_no_service() {
    let cluster = Cluster::start(1, &[]);
    let external_ips: Vec<_> = (0..1_000).map(|number| Ipv4Addr::from_bits(0xcb00_0000 + number)).collect();
    let ports: Vec<_> = (0..400).map(|n| json!({ "name": format!("p{n}"), "port": 80 + n })).collect();
    let spec = json!({ "clusterIPs": [GREEDY], "externalIPs": external_ips, "ports": ports });
    beside_another(&cluster, &Service::new("greedy", &spec).endpoints([1]));
    cluster.serves(tcp(GREEDY, 479), &[1]);
    let reported = problems(&cluster);
    assert!(
        reported[0].as_str().unwrap().contains("spec.externalIPs: of 400000 addresses with a port"),
        "{reported}"
    );
}
