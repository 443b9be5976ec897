//! What ejects an endpoint: refusals where that is asked for, silence in SCTP too, and the silence of its node.

use std::time::Duration;

use anyhow::ensure;
use ipvs::{Protocol, ServiceAddress};
use serde_json::json;
use testkit::{daemon::eventually, lab::Lab};

use super::{addresses, clients, ejecting, falls_silent, named, weighs};
use crate::support::cluster::{Cluster, Endpoint, NO_PERIOD, Service, V4, elsewhere, here, tcp};

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_refusing_endpoint_leaves_only_services_that_eject_refusing_ones() {
    let cluster = Cluster::start(3, &[NO_PERIOD]);
    cluster.write(&ejecting(named("both", 10), "silent,refusing").endpoints([1, 2, 3]));
    cluster.write(&ejecting(named("silent", 11), "silent").endpoints([1, 2, 3]));
    let [both, silent] = [addresses(10), addresses(11)];
    let all = [both, silent].concat();
    weighs(&cluster, &all, 2, |weight| weight == 100);
    cluster.answers_by(2, "tcp", "reject with tcp reset");
    eventually("the pod is ejected", || {
        for address in &all {
            drop(cluster.lab.client.ask_at(*address));
        }
        for address in both {
            ensure!(cluster.weight(address, 2)? == Some(0), "{address}");
        }
        Ok(())
    })
    .unwrap();
    let pod_2 = cluster.lab.pods[1].name.as_str();
    for address in both {
        for _ in 0..4 {
            assert_ne!(cluster.lab.client.ask_at(address).unwrap().from, pod_2, "{address}");
        }
    }
    for address in silent {
        assert_eq!(cluster.weight(address, 2).unwrap(), Some(100), "{address}");
        let refused = (0..3).filter(|_| cluster.lab.client.ask_at(address).is_err()).count();
        assert_eq!(refused, 1, "one of three clients of {address}");
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn an_sctp_client_of_a_silent_endpoint_is_served_by_another() {
    if !Lab::protocols().contains(&Protocol::Sctp) {
        println!("ABSENT: this kernel has no SCTP");
        return;
    }
    let cluster = Cluster::start(2, &[NO_PERIOD]);
    // The client repeats its INIT each second, instead of after 3, 9 and 21 s, and as long as its patience lasts.
    let parameters = ["rto_initial=1000", "rto_max=1000", "max_init_retransmits=40"];
    for parameter in parameters {
        cluster.lab.client.run("sysctl", &["-qw", &format!("net.sctp.{parameter}")]).unwrap();
    }
    let port = json!({ "protocol": "SCTP", "port": 80 });
    let web = Service::new("web", &json!({ "clusterIPs": [V4], "ports": [port] }));
    cluster.write(&ejecting(web, "silent").endpoints([1, 2]));
    let address = ServiceAddress { protocol: Protocol::Sctp, ..tcp(V4, 80) };
    weighs(&cluster, &[address], 2, |weight| weight == 100);
    let slowest = falls_silent(&cluster, &[2], &cluster.lab.client, &[address]).unwrap();
    println!("slowest client: {slowest:?}");
    assert!(slowest > Duration::from_secs(1), "no client was sent to the silent endpoint");
    weighs(&cluster, &[address], 2, |weight| weight < 100);
}

/// Two pods of one node fall silent. Each of three namespaces has clients there, and a fourth has not been used yet: at
/// `10.96.0.13` a Service ejects silent endpoints, at `10.96.0.14` one does not.
fn two_pods_fall_silent(run: fn(usize) -> Endpoint) -> Cluster {
    let cluster = Cluster::start(4, &[NO_PERIOD]);
    let service = |namespace: &str, last, pods: &[Endpoint]| {
        let in_namespace = json!({ "metadata": { "namespace": namespace } });
        named(&format!("of-{namespace}-{last}"), last).patch(&in_namespace).endpoints(pods.to_vec())
    };
    let asked = [("a", 10, [run(1), elsewhere(3)]), ("b", 11, [run(2), elsewhere(4)])];
    for (namespace, last, pods) in asked.into_iter().chain([("c", 12, [run(1), elsewhere(4)])]) {
        cluster.write(&ejecting(service(namespace, last, &pods), "silent"));
    }
    let all = [run(1), run(2), elsewhere(3), elsewhere(4)];
    cluster.write(&ejecting(service("d", 13, &all), "silent"));
    cluster.write(&service("d", 14, &all));
    let asked = [10, 11, 12].map(|last| addresses(last)[0]);
    for (address, pod) in asked.iter().zip([1, 2, 1]) {
        weighs(&cluster, &[*address], pod, |weight| weight == 100);
    }
    weighs(&cluster, &addresses(13), 2, |weight| weight == 100);
    println!("slowest client: {:?}", falls_silent(&cluster, &[1, 2], &cluster.lab.client, &asked).unwrap());
    for (address, pod) in asked.iter().zip([1, 2, 1]) {
        weighs(&cluster, &[*address], pod, |weight| weight < 100);
    }
    cluster
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn endpoints_of_a_dead_node_leave_services_without_clients_too() {
    let cluster = two_pods_fall_silent(|pod| here(pod).on("dead"));
    let (unasked, off) = (addresses(13), addresses(14));
    for pod in [1, 2] {
        weighs(&cluster, &unasked, pod, |weight| weight < 100);
        weighs(&cluster, &off, pod, |weight| weight == 1);
        weighs(&cluster, &unasked, pod + 2, |weight| weight == 100);
    }
    for address in unasked {
        for _ in 0..4 {
            let slowest = clients(&cluster.lab.client, &[address], Duration::from_millis(1)).unwrap();
            assert!(slowest < Duration::from_secs(1), "{address}: {slowest:?}");
        }
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn endpoints_of_this_node_leave_only_services_where_clients_asked() {
    let cluster = two_pods_fall_silent(here);
    for pod in [1, 2] {
        weighs(&cluster, &addresses(13), pod, |weight| weight == 100);
    }
}
