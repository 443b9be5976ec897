//! The three watches against a real kube-apiserver, with the rights of `system:kube-proxy`.

use std::{
    path::PathBuf,
    sync::mpsc::{Receiver, channel},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};
use service::{Change, ObjectName};
use testkit::control_plane::{ControlPlane, Options};

/// The server may have other objects: these are ours.
const NAMESPACE: &str = "watcher";
const NODE: &str = "watcher-node";

/// The news of a watcher that runs in a thread of its own until the tests end.
struct News(Receiver<Change>);

impl News {
    fn start(kubeconfig: PathBuf) -> anyhow::Result<Self> {
        let (send, changes) = channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let client = runtime.block_on(async {
            let file = Kubeconfig::read_from(kubeconfig)?;
            let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
            anyhow::Ok(Client::try_from(config)?)
        })?;
        thread::spawn(move || {
            runtime.block_on(watcher::api::watch(client, NODE, move |change| {
                // Fails once the test is over.
                _ = send.send(change);
            }))
        });
        Ok(Self(changes))
    }

    /// What `wanted` makes of the first change that it takes; the others are passed over.
    fn expect<T>(&self, what: &str, mut wanted: impl FnMut(Change) -> Option<T>) -> anyhow::Result<T> {
        let deadline = Instant::now() + Duration::from_secs(30);
        while let Some(left) = deadline.checked_duration_since(Instant::now()) {
            let change = self.0.recv_timeout(left).with_context(|| format!("waiting for {what}"))?;
            if let Some(found) = wanted(change) {
                return Ok(found);
            }
        }
        bail!("no {what} within 30 s")
    }

    /// The names of our Services and of our slices in the first lists, and the zone of our Node.
    fn expect_lists(&self) -> anyhow::Result<(Vec<String>, Vec<String>, String)> {
        let (mut services, mut slices, mut zone) = (None, None, None);
        self.expect("the lists and the Node", |change| {
            match change {
                Change::ReplaceServices(all) => services = Some(ours(all.into_iter().map(|service| service.name))),
                Change::ReplaceSlices(all) => slices = Some(ours(all.into_iter().map(|slice| slice.name))),
                Change::ApplyNode(node) => zone = node.zone,
                _ => {}
            }
            Some((services.clone()?, slices.clone()?, zone.as_deref()?.to_owned()))
        })
    }
}

fn ours(names: impl Iterator<Item = ObjectName>) -> Vec<String> {
    names.filter(|name| *name.namespace == *NAMESPACE).map(|name| name.name.to_string()).collect()
}

fn service(name: &str, cluster_ip: &str, labels: &Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": NAMESPACE, "name": name, "labels": labels},
        "spec": {"clusterIP": cluster_ip, "ports": [{"port": 80}]},
    })
}

/// Its only port has no name: the API server fills in the empty one.
fn slice(name: &str, labels: &Value, addresses: &[&str]) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"namespace": NAMESPACE, "name": name, "labels": labels},
        "addressType": "IPv4",
        "ports": [{"port": 8080}],
        "endpoints": addresses.iter().map(|ip| json!({"addresses": [ip]})).collect::<Value>(),
    })
}

/// One Service with its slice for us, and what other selectors keep away.
fn populate(server: &ControlPlane) -> anyhow::Result<()> {
    server.apply(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}))?;
    server.create_node(NODE, &["192.0.2.1".parse()?], Some("z1"), &[])?;
    server.create_node("watcher-other-node", &["192.0.2.2".parse()?], Some("z2"), &[])?;
    server.apply(&service("web", "10.96.77.7", &json!({})))?;
    server.apply(&service("headless", "None", &json!({})))?;
    let other_proxy = json!({"service.kubernetes.io/service-proxy-name": "another"});
    server.apply(&service("foreign", "10.96.77.8", &other_proxy))?;
    server.apply(&slice("web-1", &json!({"kubernetes.io/service-name": "web"}), &["10.244.0.5", "10.244.0.6"]))?;
    let headless =
        json!({"kubernetes.io/service-name": "headless", "service.kubernetes.io/headless": ""});
    server.apply(&slice("headless-1", &headless, &["10.244.0.7"]))
}

const SKIP: &str = "SKIP: no kube-apiserver: KUBEBUILDER_ASSETS is not set";

#[test]
#[ignore = "needs kube-apiserver: cargo xtask test --tier api"]
fn what_the_administrator_changes_is_told() {
    let Some(server) = ControlPlane::from_env_or_start().unwrap() else {
        println!("{SKIP}");
        return;
    };
    populate(&server).unwrap();
    let news = News::start(server.proxy_kubeconfig()).unwrap();
    let lists = news.expect_lists().unwrap();
    assert_eq!(lists, (vec!["web".to_owned()], vec!["web-1".to_owned()], "z1".to_owned()));

    let owner = json!({"kubernetes.io/service-name": "web"});
    server.apply(&slice("web-1", &owner, &["10.244.0.6"])).unwrap();
    let applied = |change| match change {
        Change::ApplySlice(slice) if *slice.name.name == *"web-1" => Some(slice),
        _ => None,
    };
    let changed = news.expect("the changed slice", applied).unwrap();
    assert_eq!(changed.endpoints.len(), 1);
    assert_eq!(changed.endpoints[0].address.to_string(), "10.244.0.6");
    assert_eq!((&*changed.ports[0].name, changed.ports[0].port), ("", 8080));
    assert_eq!(changed.problems, Vec::<String>::new());

    // A label that takes it out of the selection is a deletion, and the other way round.
    let web = ObjectName::new(NAMESPACE, "web");
    let other_proxy = json!({"service.kubernetes.io/service-proxy-name": ""});
    server.apply(&service("web", "10.96.77.7", &other_proxy)).unwrap();
    let gone = |change| (change == Change::DeleteService(web.clone())).then_some(());
    news.expect("the Service given to another proxy", gone).unwrap();
    server.apply(&service("web", "10.96.77.7", &json!({}))).unwrap();
    let back = |change| match change {
        Change::ApplyService(service) if service.name == web => Some(service),
        _ => None,
    };
    let back = news.expect("the Service given back", back).unwrap();
    assert_eq!(back.cluster_ips, ["10.96.77.7".parse::<std::net::IpAddr>().unwrap()]);
    assert!(back.created.is_some());
    assert_eq!(back.problems, Vec::<String>::new());

    server.create_node(NODE, &["192.0.2.1".parse().unwrap()], Some("z9"), &[]).unwrap();
    let moved = |change| match change {
        Change::ApplyNode(node) => (node.zone.as_deref() == Some("z9")).then_some(()),
        _ => None,
    };
    news.expect("the Node's new zone", moved).unwrap();

    server.delete::<EndpointSlice>(NAMESPACE, "web-1").unwrap();
    let name = ObjectName::new(NAMESPACE, "web-1");
    let gone = |change| (change == Change::DeleteSlice(name.clone())).then_some(());
    news.expect("the deleted slice", gone).unwrap();
    server.delete::<Service>(NAMESPACE, "web").unwrap();
    let gone = |change| (change == Change::DeleteService(web.clone())).then_some(());
    news.expect("the deleted Service", gone).unwrap();
}

#[test]
#[ignore = "needs kube-apiserver: cargo xtask test --tier api"]
fn a_server_without_watch_list_is_asked_for_a_list() {
    let Some(assets) = std::env::var_os("KUBEBUILDER_ASSETS") else {
        println!("{SKIP}");
        return;
    };
    let mut options = Options::new(assets);
    options.extra_args.push("--feature-gates=WatchList=false".to_owned());
    let server = ControlPlane::start(&options).unwrap();
    populate(&server).unwrap();
    let news = News::start(server.proxy_kubeconfig()).unwrap();
    let lists = news.expect_lists().unwrap();
    assert_eq!(lists, (vec!["web".to_owned()], vec!["web-1".to_owned()], "z1".to_owned()));

    server.delete::<EndpointSlice>(NAMESPACE, "web-1").unwrap();
    let name = ObjectName::new(NAMESPACE, "web-1");
    let gone = |change| (change == Change::DeleteSlice(name.clone())).then_some(());
    news.expect("the deleted slice", gone).unwrap();
}
