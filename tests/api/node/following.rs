//! The daemon on a node, with the rights of `system:kube-proxy` at a real kube-apiserver.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::{
    core::v1::{Event, Service},
    discovery::v1::EndpointSlice,
};
use kube::Api;
use serde_json::{Value, json};
use testkit::{
    control_plane::ControlPlane,
    daemon::{Daemon, binary, eventually, eventually_within, ipvsadm_shows},
    lab::Lab,
    metrics::value,
};

use super::{EVENT_WITHIN, daemon, events, lab, register};
use crate::support::cluster::page;

/// A lab, and an API server that its node can reach. Each test has a namespace of its own.
struct Cluster {
    lab: Lab,
    server: ControlPlane,
    namespace: &'static str,
}

impl Cluster {
    /// `None`, said as a skip, where there is no API server.
    fn new(namespace: &'static str) -> Option<Self> {
        let server = ControlPlane::from_env_or_skip().unwrap()?;
        let lab = lab(3, &server);
        register(&lab, &server, "node", Some("z1"));
        server
            .apply(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}))
            .unwrap();
        Some(Self { lab, server, namespace })
    }

    /// The value of a metric.
    fn metric(&self, name: &str) -> Result<f64> {
        value(&page(&self.lab.node, "/metrics")?, name)
    }

    fn daemon(&self) -> Daemon {
        self.daemon_with(&[])
    }

    fn daemon_with(&self, arguments: &[&str]) -> Daemon {
        daemon(&self.lab, &self.server, arguments)
    }

    /// Writes a dual-stack Service. The API server chooses its addresses.
    fn service(&self, name: &str, labels: &Value) {
        self.server
            .apply(&json!({
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"namespace": self.namespace, "name": name, "labels": labels},
                "spec": {
                    "ipFamilyPolicy": "RequireDualStack",
                    "ports": [{"name": "http", "port": 80, "targetPort": 8080}],
                },
            }))
            .unwrap();
    }

    /// Writes a Service at an address from outside as well.
    fn exposed(&self, name: &str, external_ip: &str) {
        self.server
            .apply(&json!({
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"namespace": self.namespace, "name": name},
                "spec": {"externalIPs": [external_ip], "ports": [{"port": 80}]},
            }))
            .unwrap();
    }

    /// The Events that `kubectl describe service` shows: it selects them like this.
    fn events_of(&self, name: &str) -> Vec<Event> {
        let services: Api<Service> = Api::namespaced(self.server.admin_client(), self.namespace);
        let uid = self.server.block_on(services.get(name)).unwrap().metadata.uid.unwrap();
        let about = [("name", name), ("namespace", self.namespace), ("uid", &uid), ("kind", "Service")];
        events(&self.server, self.namespace, &about)
    }

    /// Waits for the one Event of a Service, which has this reason, and returns its message.
    fn event_message(&self, name: &str, reason: &str) -> String {
        let event = eventually_within(EVENT_WITHIN, "the Service has an Event", || {
            self.events_of(name).into_iter().next().ok_or_else(|| anyhow::anyhow!("no Event of {name}"))
        })
        .unwrap();
        assert_eq!((event.type_.as_deref(), event.reason.as_deref()), (Some("Warning"), Some(reason)));
        assert_eq!(event.reporting_component.as_deref(), Some("kube-ipvs"));
        event.message.unwrap()
    }

    /// Writes a slice in each family with these pods, by number from 1.
    fn endpoints(&self, of: &str, pods: &[usize]) {
        for (family, like) in [("IPv4", "0.0.0.0"), ("IPv6", "::")] {
            let like: IpAddr = like.parse().unwrap();
            let endpoint = |number: &usize| {
                json!({
                    "addresses": [self.lab.pods[number - 1].address(like)],
                    "conditions": {"ready": true},
                    "nodeName": "node",
                })
            };
            self.server
                .apply(&json!({
                    "apiVersion": "discovery.k8s.io/v1",
                    "kind": "EndpointSlice",
                    "metadata": {
                        "namespace": self.namespace,
                        "name": format!("{of}-{}", family.to_lowercase()),
                        "labels": {"kubernetes.io/service-name": of},
                    },
                    "addressType": family,
                    "ports": [{"name": "http", "port": 8080}],
                    "endpoints": pods.iter().map(endpoint).collect::<Vec<_>>(),
                }))
                .unwrap();
        }
    }

    /// The two addresses that the API server gave a Service, with its port.
    fn addresses(&self, name: &str) -> Vec<SocketAddr> {
        let api: Api<Service> = Api::namespaced(self.server.admin_client(), self.namespace);
        let service = self.server.block_on(api.get(name)).unwrap();
        let ips = service.spec.unwrap().cluster_ips.unwrap();
        assert_eq!(ips.len(), 2, "{ips:?}");
        ips.iter().map(|ip| SocketAddr::new(ip.parse().unwrap(), 80)).collect()
    }

    /// Waits until both addresses are answered by exactly these pods.
    fn answered_by(&self, addresses: &[SocketAddr], pods: &[usize]) {
        let expected: BTreeSet<_> =
            pods.iter().map(|number| self.lab.pods[number - 1].name.clone()).collect();
        for address in addresses {
            eventually("the pods answer", || {
                let answers: anyhow::Result<BTreeSet<_>> =
                    (0..4).map(|_| Ok(self.lab.client.ask(*address)?.from)).collect();
                anyhow::ensure!(answers.as_ref().is_ok_and(|answers| *answers == expected), "{answers:?}");
                Ok(())
            })
            .unwrap();
        }
    }

    /// Waits until nothing in the kernel is about these addresses.
    fn gone(&self, addresses: &[SocketAddr]) {
        let node = &self.lab.node;
        eventually("nothing is left", || {
            let kernel = [
                node.run("ipvsadm", &["-Ln"])?,
                node.run("ip", &["addr", "show", "dev", "kube-ipvs0"])?,
                node.run("nft", &["list", "ruleset"])?,
            ]
            .concat();
            for address in addresses {
                // Followed by a port, a prefix length or a comma: 10.96.0.1 is not 10.96.0.10.
                let ip = address.ip().to_string();
                let left = kernel.match_indices(&ip).any(|(at, _)| {
                    !kernel[at + ip.len()..].starts_with(|next: char| next.is_ascii_hexdigit())
                });
                anyhow::ensure!(!left, "{ip} is left:\n{kernel}");
            }
            Ok(())
        })
        .unwrap();
    }

    /// The virtual and real servers, without counters, in order.
    fn table(&self) -> Vec<String> {
        let saved = self.lab.node.run("ipvsadm", &["-Sn"]).unwrap();
        let mut lines: Vec<_> = saved.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    }

    /// Keeps the node from its API server: open connections go silent, new ones are refused.
    fn cut(&self) {
        self.cut_at(&["sport", "dport"]);
    }

    /// The same; before that open connections break, because the node's answer to a change of each resource is
    /// refused. The changes have to do with nothing that is programmed.
    fn break_off(&self, service: &str, pods: &[usize]) {
        self.cut_at(&["dport"]);
        self.service(service, &json!({"outage": "begins"}));
        self.endpoints(service, pods);
        let node = json!({"name": "node", "labels": {"outage": self.namespace}});
        self.server.apply(&json!({"apiVersion": "v1", "kind": "Node", "metadata": node})).unwrap();
    }

    /// Rejects what goes to this end of a connection with the API server.
    fn cut_at(&self, ends: &[&str]) {
        let server = self.server.address().unwrap();
        let connection = format!("ip saddr {0} ip daddr {0}", server.ip());
        let mut commands = vec![
            "add table ip outage".to_owned(),
            "add chain ip outage out { type filter hook output priority -300; }".to_owned(),
        ];
        commands.extend(ends.iter().map(|end| {
            format!("add rule ip outage out {connection} tcp {end} {} reject with tcp reset", server.port())
        }));
        for command in &commands {
            self.lab.node.run("nft", &[command]).unwrap();
        }
    }

    fn heal(&self) {
        self.lab.node.run("nft", &["delete table ip outage"]).unwrap();
    }
}

#[test]
#[ignore = "needs root, ip_vs and kube-apiserver: cargo xtask test --tier api"]
fn services_are_served_as_the_api_server_tells() {
    let Some(cluster) = Cluster::new("daemon-services") else { return };
    cluster.service("web", &json!({}));
    cluster.endpoints("web", &[1, 2]);
    let web = cluster.addresses("web");
    let _daemon = cluster.daemon();
    cluster.answered_by(&web, &[1, 2]);
    // The API server's own Service has no endpoint here: the server listens on loopback.
    let kubernetes = |table: &str| table.contains("TCP  10.96.0.1:443 rr");
    ipvsadm_shows(&cluster.lab.node, "default/kubernetes", kubernetes).unwrap();

    // While the daemon runs: an endpoint goes, another Service comes, the first one goes.
    cluster.endpoints("web", &[2]);
    cluster.answered_by(&web, &[2]);
    cluster.service("late", &json!({}));
    cluster.endpoints("late", &[3]);
    let late = cluster.addresses("late");
    cluster.answered_by(&late, &[3]);
    cluster.server.delete::<Service>(cluster.namespace, "web").unwrap();
    cluster.gone(&web);

    // A label that gives it to another proxy takes it from us; without, it is ours again.
    cluster.service("late", &json!({"service.kubernetes.io/service-proxy-name": "another"}));
    cluster.gone(&late);
    cluster.service("late", &json!({}));
    cluster.answered_by(&cluster.addresses("late"), &[3]);

    cluster.server.delete::<EndpointSlice>(cluster.namespace, "late-ipv4").unwrap();
    eventually("no endpoint is left in one family", || {
        let refused =
            format!("{:#}", cluster.lab.client.ask(late[0]).err().unwrap_or(anyhow::anyhow!("an answer")));
        anyhow::ensure!(refused.contains("refused"), "{refused}");
        Ok(())
    })
    .unwrap();
    cluster.answered_by(&late[1..], &[3]);
    cluster.server.delete::<Service>(cluster.namespace, "late").unwrap();
}

#[test]
#[ignore = "needs root, ip_vs and kube-apiserver: cargo xtask test --tier api"]
fn without_the_api_server_traffic_goes_on_and_nothing_is_deleted() {
    let Some(cluster) = Cluster::new("daemon-outage") else { return };
    cluster.service("web", &json!({}));
    cluster.endpoints("web", &[1, 2]);
    let web = cluster.addresses("web");
    let daemon = cluster.daemon_with(&["--ipvs-sync-period=1s"]);
    cluster.answered_by(&web, &[1, 2]);
    let mut connection = cluster.lab.client.connect(web[0]).unwrap();
    let before = cluster.table();

    // The daemon reports how long the API server has been silent. After more than two periods it is still healthy: it does
    // what it can.
    cluster.break_off("web", &[2, 1]);
    // A new connection is waited for as long as there is no answer.
    eventually_within(Duration::from_secs(60), "nothing has been heard for three seconds", || {
        let status = daemon.status(&cluster.lab.node)?;
        let watches = status["daemon"]["source"]["watches"].as_array().context("watches")?;
        let heard_nothing = |watch: &Value| watch["state"] == "failing" && watch["age"].as_f64() >= Some(3.0);
        ensure!(watches.len() == 3 && watches.iter().all(heard_nothing), "{watches:#?}");
        Ok(())
    })
    .unwrap();
    let status = daemon.ask(&cluster.lab.node, "status").unwrap();
    for resource in ["endpointslices", "nodes", "services"] {
        assert!(status.contains(&format!("{resource} NOT watched for ")), "{status}");
        assert!(status.contains(&format!("API server: {resource} not watched for ")), "{status}");
    }
    let health = cluster.lab.node.get("127.0.0.1:10256".parse().unwrap(), "/healthz").unwrap();
    assert_eq!(health.status, 200, "{health:?}");

    cluster.cut();
    cluster.server.delete::<EndpointSlice>(cluster.namespace, "web-ipv6").unwrap();
    // An operator's resync must not take silence for an empty cluster.
    let said = daemon.ask(&cluster.lab.node, "resync").unwrap();
    assert!(said.starts_with("resynced: 0 operations"), "{said}");
    cluster.answered_by(&web, &[1, 2]);
    assert_eq!(cluster.table(), before);

    // One that starts now knows nothing, and so does nothing.
    daemon.kill().unwrap();
    let daemon = cluster.daemon();
    let node = &cluster.lab.node;
    eventually("the daemon answers", || daemon.ask(node, "status")).unwrap();
    let [unwatched, heard] =
        ["kube_ipvs_unwatched_resources", "kube_ipvs_api_server_last_heard_timestamp_seconds"];
    // There is no answer, so that it waits for a connection for half a minute.
    eventually_within(Duration::from_secs(60), "watches count as failed", || {
        ensure!(cluster.metric(unwatched)? > 0.0);
        Ok(())
    })
    .unwrap();
    assert!(cluster.metric(heard).unwrap() < 1.0, "the API server has never answered");
    let refused = format!("{:#}", daemon.ask(node, "resync").unwrap_err());
    assert!(refused.contains("have not arrived"), "{refused}");
    cluster.answered_by(&web, &[1, 2]);
    assert_eq!(cluster.table(), before);

    // What changed meanwhile is seen afterwards, and nothing else is changed.
    cluster.heal();
    let v6 = format!("[{}]:80", web[1].ip());
    eventually("the slice deleted meanwhile is noticed", || {
        let table = cluster.table();
        let kept = |line: &&String| !(line.contains(&v6) && line.contains(" -r ") && !line.contains("-w 0"));
        anyhow::ensure!(table.iter().filter(kept).count() == table.len(), "{table:#?}");
        Ok(())
    })
    .unwrap();
    connection.still_works().unwrap();
    let v4 = format!("{}:80", web[0].ip());
    let of_v4 = |table: Vec<String>| table.into_iter().filter(|line| line.contains(&v4)).collect::<Vec<_>>();
    assert_eq!(of_v4(cluster.table()), of_v4(before));
    eventually("no watch counts as failed", || {
        ensure!(cluster.metric(unwatched)? < 1.0 && cluster.metric(heard)? > 1.0);
        Ok(())
    })
    .unwrap();
    cluster.server.delete::<Service>(cluster.namespace, "web").unwrap();
}

#[test]
#[ignore = "needs root, ip_vs and kube-apiserver: cargo xtask test --tier api"]
fn a_service_that_asks_for_the_api_server_s_vip_is_refused_in_an_event() {
    let Some(cluster) = Cluster::new("daemon-refused") else { return };
    let services: Api<Service> = Api::namespaced(cluster.server.admin_client(), "default");
    let kubernetes = cluster.server.block_on(services.get("kubernetes")).unwrap();
    let vip = kubernetes.spec.and_then(|spec| spec.cluster_ip).unwrap();
    cluster.exposed("thief", &vip);
    let daemon = cluster.daemon();
    assert_eq!(
        cluster.event_message("thief", "AddressRefused"),
        format!("spec.externalIPs: {vip} is not served: it is another Service's ClusterIP")
    );
    let status = daemon.ask(&cluster.lab.node, "status").unwrap();
    let says = |line: &str| {
        line.starts_with("problem:") && line.contains(&format!("thief: spec.externalIPs: {vip}"))
    };
    assert!(status.lines().any(says), "{status}");
    cluster.server.delete::<Service>(cluster.namespace, "thief").unwrap();
}

#[test]
#[ignore = "needs root, ip_vs and kube-apiserver: cargo xtask test --tier api"]
fn a_service_whose_address_is_taken_has_one_event_that_says_so() {
    let Some(cluster) = Cluster::new("daemon-events") else { return };
    let taken = "203.0.113.10";
    // Within one second their names decide.
    cluster.exposed("elder", taken);
    cluster.exposed("younger", taken);
    let daemon = cluster.daemon();
    let message = cluster.event_message("younger", "AddressTaken");
    assert!(message.contains(taken) && message.contains("daemon-events/elder"), "{message}");
    let status = daemon.ask(&cluster.lab.node, "status").unwrap();
    let says = |line: &str| {
        line.starts_with("problem:") && [taken, "/elder", "/younger"].iter().all(|word| line.contains(word))
    };
    assert!(status.lines().any(says), "{status}");

    // A daemon that starts finds out the same again, and what is new after that.
    daemon.kill().unwrap();
    cluster.exposed("youngest", taken);
    let _daemon = cluster.daemon();
    cluster.event_message("youngest", "AddressTaken");
    assert_eq!(cluster.events_of("younger").len(), 1);
    assert_eq!(cluster.events_of("elder").len(), 0);
    for name in ["elder", "younger", "youngest"] {
        cluster.server.delete::<Service>(cluster.namespace, name).unwrap();
    }
}

#[test]
#[ignore = "needs root, ip_vs and kube-apiserver: cargo xtask test --tier api"]
fn explain_is_answered_by_the_daemon_and_without_one_from_the_api_server() {
    let Some(cluster) = Cluster::new("explained") else { return };
    cluster.service("web", &json!({}));
    cluster.endpoints("web", &[1, 2]);
    let daemon = cluster.daemon();
    let run = |arguments: &[&str]| cluster.lab.node.run(&binary()?.to_string_lossy(), arguments);
    let socket = daemon.socket().to_str().unwrap();
    let from_the_daemon = eventually("the Service is served", || {
        let said = run(&["explain", "explained/web", "--control-socket", socket])?;
        ensure!(said.matches("used, explained/web-ipv").count() == 4 && !said.contains("MISSING"), "{said}");
        Ok(said)
    })
    .unwrap();

    let kubeconfig = cluster.server.proxy_kubeconfig();
    let flags = ["--", "--kubeconfig", kubeconfig.to_str().unwrap(), "--hostname-override"];
    let from_the_server = |node| run(&[&["explain", "explained/web"], &flags[..], &[node]].concat()).unwrap();
    // Only the daemon checks the node.
    let about_the_service = from_the_daemon.split("note: ").next().unwrap();
    assert_eq!(from_the_server("node"), about_the_service);
    let elsewhere = from_the_server("nowhere");
    assert!(
        elsewhere.contains("problem: there is no Node nowhere: check --hostname-override."),
        "{elsewhere}"
    );
    cluster.server.delete::<Service>(cluster.namespace, "web").unwrap();
}

/// The name of the slice is not that which the API server writes to, and leaves alone.
fn kubernetes_is_at(cluster: &Cluster, pods: &[usize]) {
    let endpoint = |number: &usize| json!({"addresses": [cluster.lab.pods[number - 1].ipv4]});
    cluster
        .server
        .apply(&json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "namespace": "default",
                "name": "kubernetes-of-the-test",
                "labels": {"kubernetes.io/service-name": "kubernetes"},
            },
            "addressType": "IPv4",
            "ports": [{"name": "https", "port": 8080}],
            "endpoints": pods.iter().map(endpoint).collect::<Vec<_>>(),
        }))
        .unwrap();
}

#[test]
#[ignore = "needs root, ip_vs and kube-apiserver: cargo xtask test --tier api"]
fn new_endpoints_are_served_after_the_service_kubernetes_lost_its_endpoints() {
    let Some(cluster) = Cluster::new("daemon-kubernetes") else { return };
    let vip = SocketAddr::new("10.96.0.1".parse().unwrap(), 443);
    kubernetes_is_at(&cluster, &[1]);
    let daemon = cluster.daemon();
    cluster.answered_by(&[vip], &[1]);

    kubernetes_is_at(&cluster, &[]);
    eventually("no endpoint is behind the VIP", || {
        let answer = cluster.lab.client.ask(vip).map(|answer| answer.from);
        let refused = answer.as_ref().is_err_and(|error| format!("{error:#}").contains("refused"));
        anyhow::ensure!(refused, "{answer:?}");
        Ok(())
    })
    .unwrap();
    // Its own way to the API server is the kubeconfig's.
    cluster.service("web", &json!({}));
    cluster.endpoints("web", &[2]);
    cluster.answered_by(&cluster.addresses("web"), &[2]);
    let status = daemon.ask(&cluster.lab.node, "status").unwrap();
    assert!(!status.contains("problem:"), "{status}");
    kubernetes_is_at(&cluster, &[3]);
    cluster.answered_by(&[vip], &[3]);
    cluster.server.delete::<EndpointSlice>("default", "kubernetes-of-the-test").unwrap();
    cluster.server.delete::<Service>(cluster.namespace, "web").unwrap();
}

#[test]
#[ignore = "needs root, ip_vs and kube-apiserver: cargo xtask test --tier api"]
fn kube_ipvs0_is_there_before_the_api_server_has_answered() {
    let Some(cluster) = Cluster::new("daemon-device") else { return };
    cluster.cut();
    // With NodeCIDR nothing is programmed before the Node is known, but for this.
    for arguments in [&[][..], &["--detect-local-mode=NodeCIDR"]] {
        let daemon = cluster.daemon_with(arguments);
        eventually("the device", || cluster.lab.node.run("ip", &["link", "show", "kube-ipvs0"])).unwrap();
        daemon.kill().unwrap();
        cluster.lab.node.run("ip", &["link", "delete", "kube-ipvs0"]).unwrap();
    }
    cluster.heal();
}
