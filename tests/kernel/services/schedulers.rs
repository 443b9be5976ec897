//! Every scheduler serves, and those that hash refuse no client.

use std::collections::BTreeSet;

use ipvs::Scheduler;
use serde_json::json;
use testkit::lab::{Connection, Host};

use crate::support::cluster::{Cluster, NO_PERIOD, Service, Table, V4, V6, at, tcp};

/// Whether the kernel has a scheduler.
fn has(node: &Host, scheduler: Scheduler) -> bool {
    let known = node.run("ipvsadm", &["-A", "-t", "192.0.2.1:80", "-s", scheduler.as_str()]).is_ok();
    if known {
        node.run("ipvsadm", &["-D", "-t", "192.0.2.1:80"]).unwrap();
    } else {
        println!("ABSENT: this kernel has no scheduler {scheduler}");
    }
    known
}

/// What ipvsadm shows for a scheduler: those that hash go on to the next real server where one has weight 0.
fn shown(scheduler: Scheduler) -> String {
    match scheduler.as_str() {
        "sh" => "sh (sh-fallback)".to_owned(),
        "mh" => "mh (mh-fallback,mh-port)".to_owned(),
        other => other.to_owned(),
    }
}

/// The pods at the other ends.
fn answered(connections: &[Connection]) -> BTreeSet<String> {
    connections.iter().map(|connection| connection.answer.from.clone()).collect()
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn every_scheduler_of_the_kernel_serves_clients() {
    let mut cluster = Cluster::start(2, &[NO_PERIOD]);
    let web = Service::new("web", &json!({ "clusterIPs": [V4, V6], "ports": [{ "port": 80 }] }));
    cluster.apply(&web.endpoints([1, 2]));
    for scheduler in Scheduler::ALL {
        if !has(&cluster.lab.node, scheduler) {
            continue;
        }
        cluster.restart(&[NO_PERIOD, "--ipvs-scheduler", scheduler.as_str()]);
        for vip in [V4, V6] {
            let how = shown(scheduler);
            cluster.shows(&how, |table| table[&tcp(vip, 80)].how == how);
            for _ in 0..3 {
                cluster.lab.client.ask(at(vip, 80)).unwrap();
            }
        }
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn with_sh_and_mh_no_client_is_refused_while_a_real_server_drains() {
    let mut cluster = Cluster::start(3, &[NO_PERIOD]);
    let sources: Vec<_> = (100..150).map(|last| format!("192.168.50.{last}")).collect();
    for source in &sources {
        cluster.lab.client.ip(&format!("addr add {source}/24 dev eth0")).unwrap();
    }
    let web = Service::tcp(V4);
    for scheduler in [Scheduler::SH, Scheduler::MH] {
        if !has(&cluster.lab.node, scheduler) {
            continue;
        }
        cluster.restart(&[NO_PERIOD, "--ipvs-scheduler", scheduler.as_str()]);
        cluster.apply(&web.clone().endpoints([1, 2, 3]));
        cluster.shows("the scheduler", |table| table[&tcp(V4, 80)].how == shown(scheduler));
        let from_everywhere = || -> Vec<Connection> {
            let connect = |source| cluster.lab.client.connect_from(at(source, 0), at(V4, 80)).unwrap();
            sources.iter().map(|source| connect(source)).collect()
        };
        let connections = from_everywhere();
        assert_eq!(answered(&connections), cluster.names(&[1, 2, 3]), "{scheduler}");

        cluster.write(&web.clone().endpoints([1, 2]));
        cluster.weighs(tcp(V4, 80), 3, Some(0));
        assert_eq!(answered(&from_everywhere()), cluster.names(&[1, 2]), "{scheduler}");
    }
}

/// The pod that each of 200 clients reaches, when the endpoints have come and gone like this. Nothing of it is left.
fn choices(cluster: &Cluster, clients: &[String], history: &[&[usize]]) -> Vec<String> {
    let web = Service::tcp(V4);
    for endpoints in history {
        cluster.apply(&web.clone().endpoints(endpoints.iter().copied()));
    }
    let connect = |client: &String| cluster.lab.client.connect_from(at(client, 40_000), at(V4, 80)).unwrap();
    let chosen: Vec<_> = clients.iter().map(|client| connect(client).answer.from).collect();
    assert_eq!(chosen.iter().collect::<BTreeSet<_>>().len(), 4, "{chosen:?}");
    cluster.delete(&web);
    cluster.shows("nothing", Table::is_empty);
    // Connections that have ended are remembered, and a client that comes back goes where it went.
    cluster.lab.node.run("ipvsadm", &["-C"]).unwrap();
    chosen
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn with_sh_and_mh_a_client_reaches_the_same_pod_through_any_node() {
    let clients: Vec<_> = (20..220).map(|last| format!("192.168.51.{last}")).collect();
    let mut nodes = ["node-x", "node-y"].map(|name| (name, Cluster::without_daemon(4)));
    for (_, cluster) in &nodes {
        cluster.lab.node.ip("addr add 192.168.51.1/24 dev eth0").unwrap();
        for client in &clients {
            cluster.lab.client.ip(&format!("addr add {client}/24 dev eth0")).unwrap();
        }
    }
    for scheduler in [Scheduler::SH, Scheduler::MH] {
        if !has(&nodes[0].1.lab.node, scheduler) {
            continue;
        }
        for (name, cluster) in &mut nodes {
            let scheduler = ["--ipvs-scheduler", scheduler.as_str()];
            cluster.restart(&[&[NO_PERIOD, "--hostname-override", name], &scheduler[..]].concat());
        }
        let [x, y] = nodes.each_ref().map(|(_, cluster)| cluster);
        let chosen = |history: &[&[usize]]| {
            let [on_x, on_y] = [x, y].map(|cluster| choices(cluster, &clients, history));
            assert_eq!(on_x, on_y, "{scheduler}: {history:?}");
            on_x
        };
        let at_once = chosen(&[&[1, 2, 3, 4]]);
        chosen(&[&[1, 2, 3, 4], &[1, 3, 4], &[1, 2, 3, 4]]);
        // What another history costs is only printed.
        let one_by_one = chosen(&[&[4], &[2, 4], &[1, 2, 4], &[1, 2, 3, 4]]);
        let differ = at_once.iter().zip(&one_by_one).filter(|(one, other)| one != other).count();
        println!(
            "{scheduler}: {differ} of 200 clients reach another pod where endpoints came in another order"
        );
    }
}
