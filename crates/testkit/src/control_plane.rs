//! A real kube-apiserver and etcd, thrown away after the test.
//!
//! A fake API server answers what its author thought of; the real one has admission, defaulting,
//! RBAC and the watch protocol of the release that operators run. One is ready in two to five
//! seconds; in a guest, tests share one.
//!
//! No controllers run: a Service gets its ClusterIP from the API server, but its EndpointSlices
//! and the Nodes are not created. That is the point: the test writes exactly what the proxy sees.

mod identity;
mod port;

use std::{
    future::Future,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use identity::{ADMIN, KUBE_PROXY};
use k8s_openapi::{
    NamespaceResourceScope,
    api::core::v1::{Namespace, Node},
};
use kube::{
    Api, Client, Resource,
    api::{ApiResource, DeleteParams, DynamicObject, GetParams, GroupVersionKind, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use port::Port;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::process::{Process, last_lines};

/// How long the API server may take. It needs two to five seconds on an idle machine.
const READY_WITHIN: Duration = Duration::from_secs(120);
/// How much of a server's log is worth showing.
const LAST_LINES: usize = 15;

/// Where etcd and the API server listen. It cannot be an endpoint, so the Service `default/kubernetes` has none.
const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// The ranges ClusterIPs come from, the default family first.
const CLUSTER_IPS: &str = "10.96.0.0/16,fd00:10:96::/112";
/// Every name by which a client may call the API server; the last ones are the Service `default/kubernetes`.
const NAMES: [&str; 7] =
    ["127.0.0.1", "::1", "localhost", "kubernetes", "kubernetes.default.svc", "10.96.0.1", "fd00:10:96::1"];

/// An API server to test against, and the test's administrator access to it.
///
/// The methods block. They, and the drop, panic inside an async runtime; a test that is async
/// itself makes its own [`Client`] from a kubeconfig.
///
/// The servers that it started are killed on drop, and its directory is removed. A `static` is never dropped,
/// so keep it in the test.
pub struct ControlPlane {
    // The fields are dropped in this order: connections, servers, their files.
    admin: Client,
    runtime: Runtime,
    directory: PathBuf,
    own: Option<Own>,
}

/// What has to be cleaned up; nothing if the API server was already running.
struct Own {
    apiserver: Mutex<Process>,
    _etcd: Process,
    etcd_port: Port,
    /// A restarted API server listens at its own again.
    _other_ports: [Port; 2],
    _directory: TempDir,
}

impl Own {
    fn api_server(&self) -> MutexGuard<'_, Process> {
        self.apiserver.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ControlPlane {
    /// The control plane that the environment names.
    ///
    /// - `KUBE_IPVS_TEST_API`: a directory with the two kubeconfigs of a running one. If [`Self::start`] has started it,
    ///   tests share it, one after the other: what a proxy sees of the tests before is deleted. Any other API server is
    ///   used as it is, including other objects in it.
    /// - `KUBEBUILDER_ASSETS`: a directory with kube-apiserver and etcd, which are started.
    /// - Neither: `None`.
    pub fn from_env_or_start() -> anyhow::Result<Option<Self>> {
        if let Some(directory) = std::env::var_os("KUBE_IPVS_TEST_API") {
            let running = Self::connect(directory.into())?;
            if running.directory.join(port::MARK).exists() {
                running.block_on(port::clear(&running.admin))?;
            }
            return Ok(Some(running));
        }
        let assets = std::env::var_os("KUBEBUILDER_ASSETS");
        assets.map(|assets| Self::start(Path::new(&assets), &[])).transpose()
    }

    /// The control plane that the environment names, for a test that needs one: prints `None` as a skip.
    pub fn from_env_or_skip() -> anyhow::Result<Option<Self>> {
        let found = Self::from_env_or_start()?;
        if found.is_none() {
            println!("SKIP: no kube-apiserver: KUBEBUILDER_ASSETS is not set");
        }
        Ok(found)
    }

    /// Uses the API server that the kubeconfigs in `directory` name, and leaves it running.
    pub fn connect(directory: PathBuf) -> anyhow::Result<Self> {
        let runtime = runtime()?;
        let admin = client(&runtime, &ADMIN.kubeconfig(&directory))?;
        Ok(Self { admin, runtime, directory, own: None })
    }

    /// Starts etcd and kube-apiserver on free ports and waits until they serve.
    ///
    /// `assets` is the directory with the executables, `more_names` are names and addresses of the API server that its
    /// certificate has beside the usual ones. They run in the network namespace of the calling thread.
    pub fn start(assets: &Path, more_names: &[String]) -> anyhow::Result<Self> {
        let directory = tempfile::Builder::new().prefix("kube-ipvs-control-plane-").tempdir()?;
        let path = directory.path().to_owned();
        let (port, etcd_port, peer_port) = (Port::any(LOOPBACK)?, Port::any(LOOPBACK)?, Port::any(LOOPBACK)?);
        let names = NAMES.iter().map(|name| (*name).to_owned()).chain(more_names.iter().cloned());
        let authority = identity::write_certificates(&path, names.collect())?;
        identity::write(&path, port.address(), &authority)?;
        std::fs::write(path.join(port::MARK), "")?;

        let start = |name: &str, arguments| {
            let mut command = Command::new(assets.join(name));
            command.args(arguments).current_dir(&path);
            Process::start(command, path.join(name).with_extension("log"))
        };
        let mut etcd = start("etcd", etcd_arguments(etcd_port.address(), peer_port.address()))?;
        let arguments = apiserver_arguments(port.address(), etcd_port.address());
        let mut apiserver = start("kube-apiserver", arguments)?;

        let runtime = runtime()?;
        let admin = client(&runtime, &ADMIN.kubeconfig(&path))?;
        let deadline = Instant::now() + READY_WITHIN;
        while let Err(error) = runtime.block_on(is_ready(&admin)) {
            for (name, server) in [("etcd", &mut etcd), ("kube-apiserver", &mut apiserver)] {
                if let Some(status) = server.ended()? {
                    bail!("{name} ended ({status}):\n{}", last_lines(&server.log(), LAST_LINES));
                }
            }
            if Instant::now() > deadline {
                let log = last_lines(&apiserver.log(), LAST_LINES);
                bail!("kube-apiserver is not ready: {error:#}\n{log}");
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        let own = Own {
            apiserver: Mutex::new(apiserver),
            _etcd: etcd,
            etcd_port,
            _other_ports: [port, peer_port],
            _directory: directory,
        };
        Ok(Self { admin, runtime, directory: path, own: Some(own) })
    }

    /// Kills the API server and restarts it at the same address, with the same etcd. Does not wait until it
    /// serves.
    pub fn restart_api_server(&self) -> anyhow::Result<()> {
        self.own()?.api_server().restart()
    }

    /// Compacts etcd: it forgets all versions but the last.
    pub fn compact(&self) -> anyhow::Result<()> {
        let etcd = self.own()?.etcd_port.address();
        self.block_on(compact(etcd)).context("compacting etcd")
    }

    /// The process id of the API server.
    pub fn api_server_process(&self) -> anyhow::Result<u32> {
        Ok(self.own()?.api_server().id())
    }

    fn own(&self) -> anyhow::Result<&Own> {
        self.own.as_ref().context("the API server was started elsewhere")
    }

    /// The directory of the kubeconfigs and, if the servers were started here, of their logs. To let other
    /// processes use this control plane, pass them this as `KUBE_IPVS_TEST_API`.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// A kubeconfig with every right. It holds its certificates, so it can be copied.
    pub fn admin_kubeconfig(&self) -> PathBuf {
        ADMIN.kubeconfig(&self.directory)
    }

    /// A kubeconfig of the user `system:kube-proxy`, with the rights of the role
    /// `system:node-proxier` and no others. It holds its certificates, so it can be copied.
    pub fn proxy_kubeconfig(&self) -> PathBuf {
        KUBE_PROXY.kubeconfig(&self.directory)
    }

    /// A client with every right.
    pub fn admin_client(&self) -> Client {
        self.admin.clone()
    }

    /// A client with the rights of `kubeconfig`, which lives as long as this control plane.
    pub fn client_for(&self, kubeconfig: &Path) -> anyhow::Result<Client> {
        client(&self.runtime, kubeconfig)
    }

    /// Waits for a future, such as a request of a client.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.runtime.block_on(future)
    }

    /// Creates the object, or replaces the one of that name, and then writes its `status` if it has
    /// one: the API server takes the two in separate requests.
    ///
    /// What the API server allocated before (ClusterIPs, NodePorts) stays if the object leaves it out; so
    /// does the status. An object of a namespaced kind must have a namespace.
    ///
    /// This is not server-side apply, which refuses a Node with two addresses of one type, because the key of
    /// that list is only the type.
    pub fn apply(&self, object: &Value) -> anyhow::Result<()> {
        let object: DynamicObject = serde_json::from_value(object.clone()).context("reading the object")?;
        let (Some(types), Some(name)) = (&object.types, &object.metadata.name) else {
            bail!("the object lacks apiVersion, kind or metadata.name");
        };
        let resource = ApiResource::from_gvk(&GroupVersionKind::try_from(types)?);
        let api = api(&self.admin, &resource, object.metadata.namespace.as_deref());
        self.block_on(write(&api, name, &object)).with_context(|| format!("writing {} {name}", resource.kind))
    }

    /// The minor version of Kubernetes that the server has.
    pub fn minor_version(&self) -> anyhow::Result<u32> {
        let version = self.block_on(self.admin.apiserver_version())?.git_version;
        let minor = version.split('.').nth(1).and_then(|minor| minor.parse().ok());
        minor.with_context(|| format!("{version:?} is not a version of Kubernetes"))
    }

    /// Where the server listens, as the kubeconfigs have it.
    pub fn address(&self) -> anyhow::Result<SocketAddr> {
        let kubeconfig = Kubeconfig::read_from(self.admin_kubeconfig())?;
        let cluster = kubeconfig.clusters.into_iter().find_map(|named| named.cluster);
        let server = cluster.and_then(|cluster| cluster.server).context("the kubeconfig names no server")?;
        let authority = server.trim_start_matches("https://").trim_end_matches('/');
        authority.parse().with_context(|| format!("{server} is not an address and a port"))
    }

    /// Deletes a namespaced object: `delete::<Service>("default", "web")`.
    pub fn delete<K>(&self, namespace: &str, name: &str) -> anyhow::Result<()>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        self.delete_object(&ApiResource::erase::<K>(&()), Some(namespace), name)
    }

    /// Deletes a Node.
    pub fn delete_node(&self, name: &str) -> anyhow::Result<()> {
        self.delete_object(&ApiResource::erase::<Node>(&()), None, name)
    }

    fn delete_object(&self, kind: &ApiResource, namespace: Option<&str>, name: &str) -> anyhow::Result<()> {
        let deleted = self.block_on(api(&self.admin, kind, namespace).delete(name, &DeleteParams::default()));
        deleted.map(drop).with_context(|| format!("deleting {} {name} of {namespace:?}", kind.kind))
    }

    /// Creates a Node, or changes the one of that name, with the hostname label, the zone label if
    /// it has a zone, and `labels`.
    pub fn create_node(
        &self,
        name: &str,
        internal_ips: &[IpAddr],
        zone: Option<&str>,
        labels: &[(&str, &str)],
    ) -> anyhow::Result<()> {
        let zone = zone.map(|zone| ("topology.kubernetes.io/zone", zone));
        let labels: serde_json::Map<String, Value> = [("kubernetes.io/hostname", name)]
            .into_iter()
            .chain(zone)
            .chain(labels.iter().copied())
            .map(|(label, value)| (label.to_owned(), value.into()))
            .collect();
        let addresses: Vec<Value> =
            internal_ips.iter().map(|ip| json!({"type": "InternalIP", "address": ip})).collect();
        self.apply(&json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": labels},
            "status": {"addresses": addresses},
        }))
    }
}

/// Objects of a kind: in a namespace, or of a kind that has none.
fn api(client: &Client, resource: &ApiResource, namespace: Option<&str>) -> Api<DynamicObject> {
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, resource),
        None => Api::all_with(client.clone(), resource),
    }
}

async fn write(api: &Api<DynamicObject>, name: &str, object: &DynamicObject) -> kube::Result<()> {
    let params = PostParams::default();
    // The order matters: creating an existing Service with a fixed ClusterIP is not "already exists" but
    // "invalid", because its own address is taken.
    if api.get_opt(name).await?.is_some() {
        api.replace(name, &params, object).await?;
    } else {
        api.create(&params, object).await?;
    }
    if object.data.get("status").is_some() {
        api.replace_status(name, &params, object).await?;
    }
    Ok(())
}

/// One worker, so that a client's unfinished work continues between two blocking calls.
fn runtime() -> anyhow::Result<Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(1).enable_all().build().context("starting an async runtime")
}

fn client(runtime: &Runtime, kubeconfig: &Path) -> anyhow::Result<Client> {
    let load = async {
        let file = Kubeconfig::read_from(kubeconfig)?;
        let config = kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
        anyhow::Ok(Client::try_from(config)?)
    };
    runtime.block_on(load).with_context(|| format!("making a client from {}", kubeconfig.display()))
}

/// `/readyz` covers the RBAC bindings and the allocation of ClusterIPs; the namespace `default` is
/// created after it.
async fn is_ready(admin: &Client) -> anyhow::Result<()> {
    let readyz = kube::core::Request::new("").get("readyz", &GetParams::default())?;
    admin.request_text(readyz).await?;
    Api::<Namespace>::all(admin.clone()).get("default").await?;
    Ok(())
}

/// Uses etcd's gateway for JSON. Any key will do: the answer contains the last version.
async fn compact(etcd: SocketAddr) -> anyhow::Result<()> {
    let client = Client::try_from(kube::Config::new(format!("http://{etcd}").parse()?))?;
    let ask = async |what: &str, question: Value| {
        let path = format!("/v3/kv/{what}");
        let request =
            kube::core::Request::new(path).create(&PostParams::default(), question.to_string().into())?;
        anyhow::Ok(client.request::<Value>(request).await?)
    };
    let answer = ask("range", json!({"key": "AA=="})).await?;
    let last = answer.pointer("/header/revision").context("the answer has no revision")?;
    ask("compaction", json!({"revision": last})).await?;
    Ok(())
}

fn etcd_arguments(client: SocketAddr, peer: SocketAddr) -> Vec<String> {
    vec![
        "--name=test".into(),
        "--data-dir=etcd".into(),
        format!("--listen-client-urls=http://{client}"),
        format!("--advertise-client-urls=http://{client}"),
        format!("--listen-peer-urls=http://{peer}"),
        format!("--initial-advertise-peer-urls=http://{peer}"),
        format!("--initial-cluster=test=http://{peer}"),
        "--socket-reuse-port".into(),
        // Its data is thrown away, so nothing has to reach a disk.
        "--unsafe-no-fsync".into(),
        "--log-level=warn".into(),
    ]
}

fn apiserver_arguments(address: SocketAddr, etcd: SocketAddr) -> Vec<String> {
    vec![
        format!("--etcd-servers=http://{etcd}"),
        format!("--bind-address={}", address.ip()),
        format!("--advertise-address={}", address.ip()),
        format!("--secure-port={}", address.port()),
        "--permit-port-sharing".into(),
        format!("--service-cluster-ip-range={CLUSTER_IPS}"),
        format!("--tls-cert-file={}", identity::SERVING_CERTIFICATE),
        format!("--tls-private-key-file={}", identity::SERVING_KEY),
        format!("--service-account-key-file={}", identity::SERVICE_ACCOUNT_PUBLIC_KEY),
        format!("--service-account-signing-key-file={}", identity::SERVICE_ACCOUNT_KEY),
        "--service-account-issuer=https://kubernetes.default.svc".into(),
        format!("--token-auth-file={}", identity::TOKENS),
        "--authorization-mode=RBAC".into(),
        // It would refuse every pod, because no controller creates the accounts.
        "--disable-admission-plugins=ServiceAccount".into(),
        "--allow-privileged=true".into(),
        // From 1.37 on it refuses to start where it would have to make an endpoint of a loopback address.
        "--endpoint-reconciler-type=none".into(),
    ]
}
