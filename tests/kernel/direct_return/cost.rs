//! What direct return costs beside masquerading and the policy Local, on one lab: the packets of the entrance are counted,
//! and that is tested; processor time and latency are printed, for docs/evidence/conformance.md.

use std::{collections::BTreeMap, fs, net::SocketAddr, time::Instant};

use serde_json::{Value, json};
use testkit::lab::Host;

use super::cluster::{Cluster, parsed, tunnelled};
use crate::support::cluster::at;

const ROUNDS: usize = 8;
const NEW_CONNECTIONS: u32 = 100;
const REQUESTS: u32 = 1_000;

/// A Service with its external address, and the node by which its clients come in.
struct Variant {
    name: &'static str,
    external: &'static str,
    cluster_ip: &'static str,
    policy: &'static str,
    annotations: Value,
    entrance: usize,
}

/// The pod is on the first node; only with the policy Local its clients come in there.
fn variants() -> [Variant; 3] {
    let variant = |name, external, cluster_ip, policy, annotations, entrance| Variant {
        name,
        external,
        cluster_ip,
        policy,
        annotations,
        entrance,
    };
    [
        variant("Cluster, masqueraded", "203.0.113.21", "10.96.0.21", "Cluster", json!({}), 1),
        variant("direct return", "203.0.113.22", "10.96.0.22", "Cluster", tunnelled(), 1),
        variant("Local", "203.0.113.23", "10.96.0.23", "Local", json!({}), 0),
    ]
}

fn write(cluster: &Cluster, variant: &Variant) {
    let name = format!("shop-{}", &variant.cluster_ip["10.96.0.".len()..]);
    let mut items = cluster.service(&variant.annotations);
    items.truncate(2);
    items[0]["metadata"]["name"] = json!(name);
    items[0]["spec"]["clusterIP"] = json!(variant.cluster_ip);
    items[0]["spec"]["clusterIPs"] = json!([variant.cluster_ip]);
    items[0]["spec"]["ipFamilies"] = json!(["IPv4"]);
    items[0]["spec"]["externalTrafficPolicy"] = json!(variant.policy);
    items[0]["status"]["loadBalancer"]["ingress"] = json!([{ "ip": variant.external }]);
    items[1]["metadata"]["name"] = json!(name);
    items[1]["metadata"]["labels"]["kubernetes.io/service-name"] = json!(name);
    cluster.write(&name, &items);
}

/// What so many requests took.
#[derive(Clone, Copy, Default)]
struct Cost {
    /// Of the whole guest, in milliseconds.
    processor: f64,
    /// Received and sent by the entrance.
    packets: f64,
    /// In milliseconds.
    elapsed: f64,
}

fn cost(entrance: &Host, requests: impl FnOnce()) -> Cost {
    let (processor, packets, begin) = (busy(), packets(entrance), Instant::now());
    requests();
    Cost {
        elapsed: begin.elapsed().as_secs_f64() * 1_000.0,
        processor: busy() - processor,
        packets: self::packets(entrance) - packets,
    }
}

/// How long the guest's processors were busy since its start, in milliseconds: user, nice, system, irq, softirq.
fn busy() -> f64 {
    let stat = fs::read_to_string("/proc/stat").unwrap();
    let ticks: Vec<f64> =
        stat.lines().next().unwrap().split_whitespace().skip(1).map(|it| it.parse().unwrap()).collect();
    [0, 1, 2, 5, 6].iter().map(|field| ticks[*field]).sum::<f64>() * 10.0
}

/// How many packets a node has received and sent by its link.
fn packets(node: &Host) -> f64 {
    let devices = node.run("cat", &["/proc/net/dev"]).unwrap();
    let link = devices.lines().find_map(|line| line.trim().strip_prefix("eth0:")).unwrap();
    let numbers: Vec<f64> = link.split_whitespace().map(|it| it.parse().unwrap()).collect();
    numbers[1] + numbers[9]
}

fn median(costs: &[Cost], part: impl Fn(&Cost) -> f64) -> f64 {
    let mut parts: Vec<_> = costs.iter().map(part).collect();
    parts.sort_by(f64::total_cmp);
    parts[parts.len() / 2]
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn the_entrance_has_only_the_requests_to_forward() {
    let cluster = Cluster::start(&[1, 0], &tunnelled());
    let variants = variants();
    for variant in &variants {
        write(&cluster, variant);
    }
    cluster.tunnels(1, variants[1].external);
    for variant in &variants {
        cluster.fabric.enter_by(parsed(variant.external), variant.entrance).unwrap();
        testkit::daemon::eventually("the Service answers", || {
            cluster.fabric.client.ask(at(variant.external, 80)).map(drop)
        })
        .unwrap();
    }
    let (client, nodes) = (&cluster.fabric.client, &cluster.fabric.nodes);
    let mut found: BTreeMap<&str, [Vec<Cost>; 2]> = BTreeMap::new();
    for round in 0..ROUNDS {
        for position in 0..variants.len() {
            let variant = &variants[(round + position) % variants.len()];
            let (to, entrance): (SocketAddr, _) = (at(variant.external, 80), &nodes[variant.entrance]);
            let new = cost(entrance, || {
                for _ in 0..NEW_CONNECTIONS {
                    client.ask(to).unwrap();
                }
            });
            let mut connection = client.connect(to).unwrap();
            let open = cost(entrance, || {
                for _ in 0..REQUESTS {
                    connection.still_works().unwrap();
                }
            });
            let [of_new, of_open] = found.entry(variant.name).or_default();
            of_new.push(new);
            of_open.push(open);
        }
    }
    let mut by_request = BTreeMap::new();
    for (what, index, count) in
        [("new connection", 0, NEW_CONNECTIONS), ("request on an open one", 1, REQUESTS)]
    {
        for variant in &variants {
            let costs = &found[variant.name][index];
            let each = |part: fn(&Cost) -> f64| median(costs, part) / f64::from(count);
            let packets = each(|it| it.packets);
            println!(
                "{what}, {}: {:.0} µs of processor, {:.0} µs until the answer, {packets:.2} packets at the entrance",
                variant.name,
                each(|it| it.processor) * 1_000.0,
                each(|it| it.elapsed) * 1_000.0
            );
            by_request.insert((index, variant.name), packets);
        }
    }
    for index in [0, 1] {
        let share = by_request[&(index, "direct return")] / by_request[&(index, "Cluster, masqueraded")];
        assert!(share < 0.65, "{share}");
    }
}
