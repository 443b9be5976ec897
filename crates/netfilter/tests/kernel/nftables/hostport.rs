//! hostPorts of another table on the ports of Services. Such a table redirects what goes to any address of
//! the node, and a VIP is one.

use std::net::SocketAddr;

use ipvs::{Family, Protocol, ServiceAddress};
use netfilter::{Element, Operation};

use crate::support::{
    cluster::{Addresses, Cluster, PORT, addresses, cluster_cidr, policy},
    host::Outcome,
    programs::nft,
};

const NODE_PORT: u16 = 30080;
/// Where the pod listens that has the hostPorts.
const POD_PORT: u16 = 7070;

/// What Services serve: the element says where.
fn served(at: &Addresses) -> [Element; 4] {
    let tcp = |ip, port| ServiceAddress { protocol: Protocol::Tcp, ip, port };
    [
        Element::ClusterIp(tcp(at.vip, PORT)),
        Element::External(tcp(at.external, PORT)),
        Element::External(tcp(at.node_towards_client, NODE_PORT)),
        Element::ExternalLocal(tcp(at.external, NODE_PORT)),
    ]
}

fn address(element: &Element) -> SocketAddr {
    let of = element.virtual_server().unwrap();
    SocketAddr::new(of.ip, of.port)
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_host_port_of_another_table_takes_nothing_that_a_service_serves() {
    let cluster = Cluster::new();
    cluster.pod1.serve(POD_PORT, |_| "hostPort".to_owned());
    cluster.pod2.serve(POD_PORT, |_| "Service".to_owned());
    let mut changes: Vec<_> = Family::BOTH.map(Operation::InstallTable).into();
    cluster.apply(&policy(cluster_cidr()), changes.clone());
    for (family, name) in [(Family::V4, "ip"), (Family::V6, "ip6")] {
        let at = addresses(family);
        changes.extend([at.vip, at.external].map(|vip| Operation::AddElement(Element::Vip(vip))));
        for element in served(&at) {
            cluster.balance(address(&element), SocketAddr::new(at.pod2, POD_PORT));
            changes.push(Operation::AddElement(element));
        }
        let pod = SocketAddr::new(at.pod1, POD_PORT);
        let host_port = format!("fib daddr type local tcp dport {{ {PORT}, {NODE_PORT} }} dnat to {pod}");
        let table = format!(
            "table {name} hostports {{
                chain prerouting {{ type nat hook prerouting priority -100; {host_port}; }}
                chain output {{ type nat hook output priority -100; {host_port}; }}
                chain postrouting {{ type nat hook postrouting priority 100; ct status dnat masquerade; }}
            }}"
        );
        cluster.node.inside(move || nft(&table));
    }
    let answers = |at: &Addresses, expected: &str| {
        for (who, host) in
            [("a client outside", &cluster.client), ("a pod", &cluster.pod1), ("the node", &cluster.node)]
        {
            for server in served(at).iter().map(address) {
                let expected = Outcome::Heard(expected.to_owned());
                assert_eq!(host.answer_of(server), expected, "{who} at {server}");
            }
        }
    };
    for at in Family::BOTH.map(addresses) {
        answers(&at, "hostPort");
    }
    cluster.apply(&policy(cluster_cidr()), changes);
    for at in Family::BOTH.map(addresses) {
        answers(&at, "Service");
        let elsewhere = SocketAddr::new(at.node_towards_client, PORT);
        assert_eq!(cluster.client.answer_of(elsewhere), Outcome::Heard("hostPort".to_owned()));
    }
}
