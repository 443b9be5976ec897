//! The three watches against a real kube-apiserver, with the rights of `system:kube-proxy`.

use std::{
    io,
    net::{Ipv4Addr, Shutdown, TcpListener, TcpStream},
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc::{Receiver, channel},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use http::{HeaderValue, Request, header::ACCEPT};
use ipvs::Protocol;
use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use kube::{
    Client, Config,
    client::Body,
    config::{KubeConfigOptions, Kubeconfig},
};
use rustc_hash::FxHashSet;
use serde_json::{Value, json};
use service::{Change, Event, ObjectName};
use testkit::control_plane::ControlPlane;

/// What the server writes.
#[derive(Clone, Copy, PartialEq)]
enum Encoding {
    /// As asked for.
    Protobuf,
    /// As if nothing else had been asked for.
    Json,
}

/// The changes from a watch that runs in a thread of its own until the tests end.
///
/// Tests may share a server: each has a namespace of its own, and a Node of the same name.
struct Watching {
    changes: Receiver<Change>,
    namespace: &'static str,
}

impl Watching {
    fn start(kubeconfig: PathBuf, namespace: &'static str) -> anyhow::Result<Self> {
        Self::start_through(kubeconfig, namespace, |_| Ok(()))
    }

    fn start_through(
        kubeconfig: PathBuf,
        namespace: &'static str,
        change: impl FnOnce(&mut Config) -> anyhow::Result<()>,
    ) -> anyhow::Result<Self> {
        Self::start_in(kubeconfig, namespace, Encoding::Protobuf, change)
    }

    fn start_in(
        kubeconfig: PathBuf,
        namespace: &'static str,
        encoding: Encoding,
        change: impl FnOnce(&mut Config) -> anyhow::Result<()>,
    ) -> anyhow::Result<Self> {
        let (send, changes) = channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let client = runtime.block_on(async {
            let file = Kubeconfig::read_from(kubeconfig)?;
            let mut config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
            change(&mut config)?;
            let client = kubernetes::api::client(&config)?;
            let ask = tower::service_fn(move |mut request: Request<Body>| {
                if encoding == Encoding::Json {
                    request.headers_mut().insert(ACCEPT, HeaderValue::from_static("application/json"));
                }
                let client = client.clone();
                async move { client.send(request).await }
            });
            anyhow::Ok(Client::new(ask, config.default_namespace))
        })?;
        thread::spawn(move || {
            runtime.block_on(kubernetes::api::watch(
                client,
                namespace,
                &kubernetes::api::Watches::default(),
                move |change| {
                    // Fails once the test is over.
                    _ = send.send(change);
                },
            ))
        });
        Ok(Self { changes, namespace })
    }

    /// What `wanted` makes of the first change that it takes; the others are passed over.
    fn expect<T>(&self, what: &str, wanted: impl FnMut(Change) -> Option<T>) -> anyhow::Result<T> {
        self.expect_within(Duration::from_secs(30), what, wanted)
    }

    fn expect_within<T>(
        &self,
        patience: Duration,
        what: &str,
        mut wanted: impl FnMut(Change) -> Option<T>,
    ) -> anyhow::Result<T> {
        let deadline = Instant::now() + patience;
        while let Some(left) = deadline.checked_duration_since(Instant::now()) {
            let change = self.changes.recv_timeout(left).with_context(|| format!("waiting for {what}"))?;
            if let Some(found) = wanted(change) {
                return Ok(found);
            }
        }
        bail!("no {what} within {} s", patience.as_secs())
    }

    /// The names of our Services and of our slices in the first lists, and the zone of our Node.
    fn expect_lists(&self) -> anyhow::Result<(Vec<String>, Vec<String>, String)> {
        let (mut services, mut slices, mut zone) = (None, None, None);
        self.expect("the lists and the Node", |change| {
            match change {
                Change::Services(Event::InitDone(names)) => services = Some(self.ours(names)),
                Change::Slices(Event::InitDone(names)) => slices = Some(self.ours(names)),
                Change::Node(Some(node)) => zone = node.zone,
                _ => {}
            }
            Some((services.clone()?, slices.clone()?, zone.as_deref()?.to_owned()))
        })
    }

    /// Waits until a slice of ours is deleted.
    fn expect_slice_deleted(&self, name: &str, patience: Duration) -> anyhow::Result<()> {
        let deleted = Change::Slices(Event::Delete(ObjectName::new(self.namespace, name)));
        self.expect_within(patience, "the deleted slice", |change| (change == deleted).then_some(()))
    }

    fn ours(&self, names: FxHashSet<ObjectName>) -> Vec<String> {
        let ours = names.into_iter().filter(|name| name.namespace() == &*self.namespace);
        let mut names: Vec<_> = ours.map(|name| name.name().to_owned()).collect();
        names.sort_unstable();
        names
    }
}

/// A TCP relay to the API server that can be cut.
struct Relay {
    port: u16,
    /// How often it was connected to.
    asked: Arc<AtomicUsize>,
    /// Both ends of every connection; `None` while it is cut.
    connections: Arc<Mutex<Option<Vec<[TcpStream; 2]>>>>,
    /// Whether a connection ends without notice to the client.
    is_silent: Arc<AtomicBool>,
}

impl Relay {
    fn start(server: String) -> anyhow::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        let connections = Arc::new(Mutex::new(Some(Vec::new())));
        let asked = Arc::new(AtomicUsize::new(0));
        let is_silent = Arc::new(AtomicBool::new(false));
        let (open, count, silent) = (Arc::clone(&connections), Arc::clone(&asked), Arc::clone(&is_silent));
        thread::spawn(move || {
            for client in listener.incoming() {
                count.fetch_add(1, Ordering::Relaxed);
                if let Some(open) = open.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
                    open.extend(client.and_then(|client| connect(client, &server, &silent)));
                }
            }
        });
        Ok(Self { port, asked, connections, is_silent })
    }

    /// Leads a client through this.
    fn lead(&self, config: &mut Config) -> anyhow::Result<()> {
        config.cluster_url = format!("https://{}:{}", Ipv4Addr::LOCALHOST, self.port).parse()?;
        Ok(())
    }

    /// All connections that there are fall silent, as when a firewall has forgotten them.
    fn forget_connections(&self) {
        self.is_silent.store(true, Ordering::Relaxed);
        let connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        for [_, server] in connections.iter().flatten() {
            _ = server.shutdown(Shutdown::Both);
        }
    }

    fn set(&self, connections: Option<Vec<[TcpStream; 2]>>) {
        let before = {
            let mut now = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *now, connections)
        };
        for connection in before.into_iter().flatten().flatten() {
            // It may be closed already.
            _ = connection.shutdown(Shutdown::Both);
        }
    }
}

/// Copies between the client and the server until either end closes.
fn connect(client: TcpStream, server: &str, is_silent: &Arc<AtomicBool>) -> io::Result<[TcpStream; 2]> {
    let server = TcpStream::connect(server)?;
    for (from, to) in [(&client, &server), (&server, &client)] {
        let (mut from, mut to, is_silent) = (from.try_clone()?, to.try_clone()?, Arc::clone(is_silent));
        thread::spawn(move || {
            _ = io::copy(&mut from, &mut to);
            if !is_silent.load(Ordering::Relaxed) {
                _ = to.shutdown(Shutdown::Both);
            }
        });
    }
    Ok([client, server])
}

/// Without an address, the API server gives it one.
fn service(namespace: &str, name: &str, cluster_ip: Option<&str>, labels: &Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": namespace, "name": name, "labels": labels},
        "spec": {"clusterIP": cluster_ip, "ports": [{"port": 80}]},
    })
}

/// Its only port has no name: the API server fills in the empty one.
fn slice(namespace: &str, name: &str, labels: &Value, addresses: &[&str]) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"namespace": namespace, "name": name, "labels": labels},
        "addressType": "IPv4",
        "ports": [{"port": 8080}],
        "endpoints": addresses.iter().map(|ip| json!({"addresses": [ip]})).collect::<Value>(),
    })
}

/// One Service with its slice for us, and what other selectors keep away.
fn populate(server: &ControlPlane, namespace: &str) -> anyhow::Result<()> {
    server.apply(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}))?;
    server.create_node(namespace, &["192.0.2.1".parse()?], Some("z1"), &[])?;
    server.create_node(&format!("{namespace}-other"), &["192.0.2.2".parse()?], Some("z2"), &[])?;
    server.apply(&service(namespace, "web", None, &json!({})))?;
    server.apply(&service(namespace, "headless", Some("None"), &json!({})))?;
    let other_proxy = json!({"service.kubernetes.io/service-proxy-name": "another"});
    server.apply(&service(namespace, "foreign", None, &other_proxy))?;
    server.apply(&slice(
        namespace,
        "web-1",
        &json!({"kubernetes.io/service-name": "web"}),
        &["10.244.0.5", "10.244.0.6"],
    ))?;
    let headless = json!({"kubernetes.io/service-name": "headless", "service.kubernetes.io/headless": ""});
    server.apply(&slice(namespace, "headless-1", &headless, &["10.244.0.7"]))
}

/// A populated server that is watched through a relay, after its lists.
fn relayed(namespace: &'static str) -> anyhow::Result<Option<(ControlPlane, Relay, Watching)>> {
    let Some(server) = ControlPlane::from_env_or_skip()? else { return Ok(None) };
    populate(&server, namespace)?;
    let relay = Relay::start(server.address()?.to_string())?;
    let watching =
        Watching::start_through(server.proxy_kubeconfig(), namespace, |config| relay.lead(config))?;
    watching.expect_lists()?;
    Ok(Some((server, relay, watching)))
}

/// The lists that then come. A server before 1.31 cannot select by ClusterIP and sends headless Services too
/// (`pkg/apis/core/v1/conversion.go` of Kubernetes).
fn populated(server: &ControlPlane) -> anyhow::Result<(Vec<String>, Vec<String>, String)> {
    let services: &[&str] = if server.minor_version()? >= 31 { &["web"] } else { &["headless", "web"] };
    let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    Ok((names(services), names(&["web-1"]), "z1".to_owned()))
}

#[test]
#[ignore = "needs kube-apiserver: cargo xtask test --tier api"]
fn what_the_administrator_changes_is_sent() {
    const NAMESPACE: &str = "watch-changes";
    let Some(server) = ControlPlane::from_env_or_skip().unwrap() else { return };
    populate(&server, NAMESPACE).unwrap();
    let watching = Watching::start(server.proxy_kubeconfig(), NAMESPACE).unwrap();
    let lists = watching.expect_lists().unwrap();
    assert_eq!(lists, populated(&server).unwrap());

    let owner = json!({"kubernetes.io/service-name": "web"});
    server.apply(&slice(NAMESPACE, "web-1", &owner, &["10.244.0.6"])).unwrap();
    let applied = |change| match change {
        Change::Slices(Event::Apply(slice)) if slice.name.name() == "web-1" => Some(slice),
        _ => None,
    };
    let changed = watching.expect("the changed slice", applied).unwrap();
    assert_eq!(changed.endpoints.len(), 1);
    assert_eq!(changed.endpoints[0].address.to_string(), "10.244.0.6");
    assert_eq!((&*changed.ports[0].name, changed.ports[0].port), ("", 8080));
    assert_eq!(changed.problems, Vec::<String>::new());

    // A label that takes it out of the selection is a deletion, and the other way round.
    let web = ObjectName::new(NAMESPACE, "web");
    let other_proxy = json!({"service.kubernetes.io/service-proxy-name": ""});
    server.apply(&service(NAMESPACE, "web", None, &other_proxy)).unwrap();
    let gone = |change| (change == Change::Services(Event::Delete(web.clone()))).then_some(());
    watching.expect("the Service given to another proxy", gone).unwrap();
    server.apply(&service(NAMESPACE, "web", None, &json!({}))).unwrap();
    let back = |change| match change {
        Change::Services(Event::Apply(service)) if service.name == web => Some(service),
        _ => None,
    };
    let back = watching.expect("the Service given back", back).unwrap();
    assert_eq!(back.cluster_ips.len(), 1);
    assert_eq!((&*back.ports[0].name, back.ports[0].protocol, back.ports[0].port), ("", Protocol::Tcp, 80));
    assert!(back.created.is_some());
    assert_eq!(back.problems, Vec::<String>::new());

    server.create_node(NAMESPACE, &["192.0.2.1".parse().unwrap()], Some("z9"), &[]).unwrap();
    let moved = |change| match change {
        Change::Node(Some(node)) => (node.zone.as_deref() == Some("z9")).then_some(()),
        _ => None,
    };
    watching.expect("the Node's new zone", moved).unwrap();

    server.delete::<EndpointSlice>(NAMESPACE, "web-1").unwrap();
    watching.expect_slice_deleted("web-1", Duration::from_secs(30)).unwrap();
    server.delete::<Service>(NAMESPACE, "web").unwrap();
    let gone = |change| (change == Change::Services(Event::Delete(web.clone()))).then_some(());
    watching.expect("the deleted Service", gone).unwrap();
}

/// With everything that is read, and more.
fn rich_service(namespace: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "namespace": namespace,
            "name": "rich",
            "labels": {"app": "rich"},
            "annotations": {"kube-ipvs.io/scheduler": "sh", "long": "x".repeat(5000)},
        },
        "spec": {
            "type": "LoadBalancer",
            "selector": {"app": "rich"},
            "externalIPs": ["198.51.100.7"],
            "externalTrafficPolicy": "Local",
            "internalTrafficPolicy": "Local",
            "sessionAffinity": "ClientIP",
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 77}},
            "loadBalancerSourceRanges": ["192.0.2.0/24"],
            "ports": [
                {"name": "tcp", "port": 80, "targetPort": "web"},
                {"name": "udp", "port": 53, "protocol": "UDP", "targetPort": 5353},
            ],
        },
        "status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.7"}, {"hostname": "lb.example"}]}},
    })
}

fn rich_slice(namespace: &str) -> Value {
    let endpoint = |ip: &str, ready: bool| {
        json!({
            "addresses": [ip],
            "conditions": {"ready": ready, "serving": true, "terminating": !ready},
            "nodeName": "n1",
            "zone": "z1",
            "hints": {"forZones": [{"name": "z1"}]},
        })
    };
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "namespace": namespace,
            "name": "rich-1",
            "labels": {"kubernetes.io/service-name": "rich"},
            "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": "2026-01-02T03:04:05Z"},
        },
        "addressType": "IPv6",
        "ports": [{"name": "tcp", "port": 8080}, {"name": "udp", "port": 5353, "protocol": "UDP"}],
        "endpoints": [endpoint("fd00::5", true), endpoint("fd00::6", false)],
    })
}

#[test]
#[ignore = "needs kube-apiserver: cargo xtask test --tier api"]
fn what_comes_in_protobuf_is_what_comes_in_json() {
    const NAMESPACE: &str = "watch-encodings";
    let Some(server) = ControlPlane::from_env_or_skip().unwrap() else { return };
    server.apply(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})).unwrap();
    server.create_node(NAMESPACE, &["192.0.2.1".parse().unwrap()], Some("z1"), &[]).unwrap();
    server.apply(&rich_service(NAMESPACE)).unwrap();
    server.apply(&rich_slice(NAMESPACE)).unwrap();

    let kubeconfig = server.proxy_kubeconfig();
    let changes = [Encoding::Protobuf, Encoding::Json].map(|encoding| {
        let watching = Watching::start_in(kubeconfig.clone(), NAMESPACE, encoding, |_| Ok(())).unwrap();
        let (mut node, mut services, mut slices) = (None, None, None);
        watching
            .expect("the lists", |change| {
                match change {
                    Change::Node(Some(this)) => node = Some(this),
                    Change::Services(Event::InitApply(some)) => {
                        services = some.into_iter().find(|it| it.name.name() == "rich").or(services.take());
                    }
                    Change::Slices(Event::InitApply(some)) => {
                        slices = some.into_iter().find(|it| it.name.name() == "rich-1").or(slices.take());
                    }
                    _ => {}
                }
                Some((node.clone()?, services.clone()?, slices.clone()?))
            })
            .unwrap()
    });
    let [protobuf, json] = changes;
    assert_eq!(protobuf, json);
    let (node, service, slice) = json;
    assert_eq!((node.zone.as_deref(), node.problems), (Some("z1"), vec![]));
    assert_eq!((service.ports.len(), service.session_affinity), (2, Some(77)));
    assert!(service.created.is_some() && slice.triggered_at.is_some());
    assert_eq!(slice.endpoints.len(), 2);
}

#[test]
#[ignore = "needs kube-apiserver: cargo xtask test --tier api"]
fn changes_while_the_server_is_unreachable_are_sent_afterwards() {
    const NAMESPACE: &str = "watch-outage";
    let Some((server, relay, watching)) = relayed(NAMESPACE).unwrap() else { return };
    assert_eq!(relay.asked.load(Ordering::Relaxed), 1, "all requests take one connection");

    relay.set(None);
    server.delete::<EndpointSlice>(NAMESPACE, "web-1").unwrap();
    let meanwhile = watching.changes.recv_timeout(Duration::from_secs(2));
    assert!(meanwhile.is_err(), "{meanwhile:?}");

    relay.set(Some(Vec::new()));
    watching.expect_slice_deleted("web-1", Duration::from_secs(30)).unwrap();
}

#[test]
#[ignore = "needs kube-apiserver: cargo xtask test --tier api"]
fn a_connection_that_has_fallen_silent_is_given_up_within_a_minute() {
    const NAMESPACE: &str = "watch-silence";
    let Some((server, relay, watching)) = relayed(NAMESPACE).unwrap() else { return };

    relay.forget_connections();
    server.delete::<EndpointSlice>(NAMESPACE, "web-1").unwrap();
    watching.expect_slice_deleted("web-1", Duration::from_secs(60)).unwrap();
    assert_eq!(relay.asked.load(Ordering::Relaxed), 2);
}

/// How often one watch may ask within this time: at once when it has ended, and then after the pauses of client-go,
/// 0.8 s doubling to 30 s.
fn most_attempts(time: Duration) -> usize {
    let (mut attempts, mut at, mut pause) = (1, Duration::ZERO, Duration::from_millis(800));
    while at + pause <= time {
        (attempts, at) = (attempts + 1, at + pause);
        pause = (2 * pause).min(Duration::from_secs(30));
    }
    attempts
}

#[test]
#[ignore = "needs kube-apiserver: cargo xtask test --tier api"]
fn thirty_watchers_spare_a_restarting_server_and_all_get_the_next_change() {
    const NAMESPACE: &str = "watch-crowd";
    const WATCHERS: usize = 30;
    /// The longest pause there may be by the time the server is back, twice as long by its jitter, and some.
    const PATIENCE: Duration = Duration::from_secs(90);
    let Some(assets) = std::env::var_os("KUBEBUILDER_ASSETS") else {
        println!("SKIP: no kube-apiserver of its own: KUBEBUILDER_ASSETS is not set");
        return;
    };
    let server = ControlPlane::start(assets.as_ref(), &[]).unwrap();
    populate(&server, NAMESPACE).unwrap();
    let relay = Relay::start(server.address().unwrap().to_string()).unwrap();
    let crowd: Vec<_> = (0..WATCHERS)
        .map(|_| {
            Watching::start_through(server.proxy_kubeconfig(), NAMESPACE, |config| relay.lead(config))
                .unwrap()
        })
        .collect();
    for watching in &crowd {
        watching.expect_lists().unwrap();
    }

    let (begin, before) = (Instant::now(), relay.asked.load(Ordering::Relaxed));
    server.restart_api_server().unwrap();
    let owner = json!({"kubernetes.io/service-name": "web"});
    while let Err(error) = server.apply(&slice(NAMESPACE, "web-1", &owner, &["10.244.0.9"])) {
        assert!(begin.elapsed() < PATIENCE, "{error:#}");
        thread::sleep(Duration::from_millis(200));
    }
    let is_changed =
        |slice: &service::EndpointSlice| slice.name.name() == "web-1" && slice.endpoints.len() == 1;
    let changed = |change| match change {
        Change::Slices(Event::Apply(slice)) => is_changed(&slice).then_some(()),
        Change::Slices(Event::Replace(slices)) => slices.iter().any(is_changed).then_some(()),
        _ => None,
    };
    for watching in &crowd {
        watching.expect_within(PATIENCE, "the change after the server was back", changed).unwrap();
    }
    let asked = relay.asked.load(Ordering::Relaxed) - before;
    // Each of the three watches may try to make the one connection.
    let most = WATCHERS * 3 * most_attempts(begin.elapsed());
    assert!((WATCHERS..=most).contains(&asked), "{asked} connections, {most} at most");
}
