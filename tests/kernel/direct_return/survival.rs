//! How many of many open flows keep their endpoint when another node gets their packets.
//!
//! Datagrams from many ports of a client are flows; the endpoints need not exist, since what counts is what IPVS of each
//! node has chosen.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, UdpSocket},
    ops::Range,
};

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use testkit::daemon::eventually;

use super::cluster::{Cluster, EXTERNAL, parsed, tunnelled};

/// How many flows are looked at, each from a port of its own.
const FLOWS: u16 = 10_000;

/// The first port that flows come from.
const FIRST_PORT: u16 = 20_000;

/// The endpoint that each flow has got, by the client's port.
type Choices = BTreeMap<u16, String>;

/// Two nodes behind a router, and a Service with endpoints elsewhere.
struct Survival {
    cluster: Cluster,
    /// What flows come from. It has ports for four times as many.
    client: Ipv4Addr,
    next_port: u16,
}

impl Survival {
    fn start() -> Self {
        let cluster = Cluster::without_daemons(&[0, 0], &tunnelled());
        Self { client: cluster.fabric.client.ipv4, cluster, next_port: FIRST_PORT }
    }

    /// Flows come from another client from now on, with all its ports.
    fn next_client(&mut self) {
        let bits = self.client.to_bits() + 10;
        (self.client, self.next_port) = (Ipv4Addr::from_bits(bits), FIRST_PORT);
        let address = format!("{}/24", self.client);
        self.cluster.fabric.client.run("ip", &["addr", "add", &address, "dev", "eth0"]).unwrap();
    }

    /// Flows that no node knows.
    fn new_flows(&mut self) -> Range<u16> {
        let first = self.next_port;
        self.next_port += FLOWS;
        first..self.next_port
    }

    /// Gives the Service these endpoints and waits until both nodes have them.
    fn endpoints(&self, numbers: impl Iterator<Item = usize>, nodes: &[usize]) {
        let ips: BTreeSet<_> = numbers.map(ip).collect();
        let endpoint = |ip: &String| json!({ "addresses": [ip], "conditions": { "ready": true } });
        let mut items = self.cluster.service(&tunnelled());
        items[1]["endpoints"] = ips.iter().map(endpoint).collect::<Value>();
        self.cluster.write("shop", &items);
        for node in nodes {
            eventually("the endpoints are programmed", || {
                let shown = self.cluster.fabric.nodes[*node]
                    .run("ipvsadm", &["-Ln", "-u", &format!("{}:80", EXTERNAL[0])])?;
                let found: BTreeSet<_> = shown
                    .lines()
                    .filter_map(|line| line.trim().strip_prefix("-> 10.")?.split_once(':'))
                    .map(|(ip, _)| format!("10.{ip}"))
                    .collect();
                ensure!(found == ips, "{} of {}", found.len(), ips.len());
                Ok(())
            })
            .unwrap();
        }
    }

    /// Sends a datagram of each flow by a node, and returns what it has chosen.
    fn choices(&self, node: usize, flows: &Range<u16>) -> Result<Choices> {
        let fabric = &self.cluster.fabric;
        let address: IpAddr = parsed(EXTERNAL[0]);
        fabric.enter_by(address, node)?;
        let (source, ports) = (self.client, flows.clone());
        fabric.client.inside(move || -> Result<()> {
            for port in ports {
                UdpSocket::bind((source, port))?.send_to(b"x", (address, 80))?;
            }
            Ok(())
        })??;
        let source = format!("{:08X}", source.to_bits());
        let connections = fabric.nodes[node].run("cat", &["/proc/net/ip_vs_conn"])?;
        let client = connections.lines().filter_map(|line| {
            let fields: Vec<_> = line.split_whitespace().collect();
            let (&"UDP", Ok(port)) = (fields.first()?, u16::from_str_radix(fields.get(2)?, 16)) else {
                return None;
            };
            let is_ours = *fields.get(1)? == source && flows.contains(&port);
            is_ours.then(|| Some((port, (*fields.get(5)?).to_owned())))?
        });
        Ok(client.collect())
    }

    /// Starts the daemon of a node anew in an empty kernel.
    fn fresh(&mut self, node: usize) {
        if self.cluster.has_daemon(node) {
            self.cluster.kill(node);
        }
        self.cluster.fabric.nodes[node].run("ipvsadm", &["-C"]).unwrap();
        self.cluster.run(node);
    }
}

/// An endpoint's address.
fn ip(number: usize) -> String {
    format!("10.9.{}.{}", number / 200, number % 200 + 1)
}

/// How many of the flows to other endpoints than those that have gone have another endpoint on the second node, of
/// 10,000.
fn moved(first: &Choices, second: &Choices, gone: Range<usize>) -> usize {
    let gone: BTreeSet<_> = gone
        .map(|number| {
            let ip: Ipv4Addr = ip(number).parse().unwrap();
            format!("{:08X}", u32::from(ip))
        })
        .collect();
    let stays: Vec<_> = first.iter().filter(|(_, endpoint)| !gone.contains(*endpoint)).collect();
    assert!(stays.len() > usize::from(FLOWS) / 2, "{} flows", stays.len());
    let moved = stays.iter().filter(|(port, endpoint)| second.get(port) != Some(endpoint)).count();
    moved * 10_000 / stays.len()
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn flows_keep_their_endpoint_at_another_entrance_and_nearly_all_if_endpoints_change() {
    let mut survival = Survival::start();
    for count in [5, 20, 100] {
        let one = count / 2;
        survival.next_client();
        let without = || (0..count).filter(move |it| *it != one);
        survival.endpoints(0..count, &[]);
        (0..2).for_each(|node| survival.fresh(node));
        survival.endpoints(0..count, &[0, 1]);
        let flows = survival.new_flows();
        let entered = survival.choices(0, &flows).unwrap();
        assert_eq!(moved(&entered, &survival.choices(1, &flows).unwrap(), 0..0), 0, "{count} endpoints");

        let flows = survival.new_flows();
        let before = survival.choices(0, &flows).unwrap();
        survival.endpoints(without(), &[0, 1]);
        let with_one_gone = moved(&before, &survival.choices(1, &flows).unwrap(), one..one + 1);

        // The second node has seen that endpoint come back, the first has not.
        survival.endpoints(0..count, &[0, 1]);
        survival.fresh(0);
        survival.endpoints(0..count, &[0]);
        let flows = survival.new_flows();
        let fresh = survival.choices(0, &flows).unwrap();
        let with_another_history = moved(&fresh, &survival.choices(1, &flows).unwrap(), 0..0);

        // One endpoint after the other is replaced, as the second node sees it.
        for replaced in 1..=count {
            survival.endpoints(replaced..count + replaced, &[1]);
        }
        survival.fresh(0);
        survival.endpoints(count..2 * count, &[0]);
        let flows = survival.new_flows();
        let fresh = survival.choices(0, &flows).unwrap();
        let after_a_roll_out = moved(&fresh, &survival.choices(1, &flows).unwrap(), 0..0);
        // With any other scheduler nearly all would have moved.
        let all = [with_one_gone, with_another_history, after_a_roll_out];
        assert!(all.iter().all(|moved| *moved < 1_000), "{count} endpoints: {all:?}");
        println!(
            "MOVED {count} endpoints: {with_one_gone} {with_another_history} {after_a_roll_out} of 10,000"
        );
    }
}
