//! manifests/ as operators apply it, with the real kubectl, kubeadm and Helm, at a real kube-apiserver.

mod chart_settings;

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Result;
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use serde_json::{Value, json};
use testkit::{control_plane::ControlPlane, daemon::eventually};

use crate::support::operator::Clients;

/// The image, where no registry has been chosen.
const IMAGE: &str = concat!("registry.example/kube-ipvs:", env!("CARGO_PKG_VERSION"));

/// Runs a program in manifests/, and returns what it printed.
fn run(clients: &Clients, program: &str, arguments: &[impl AsRef<OsStr>], input: &str) -> Result<String> {
    clients.run(Command::new(program).args(arguments).current_dir(manifests()), input)
}

fn kustomize(clients: &Clients, directory: &str) -> String {
    run(clients, "kubectl", &["kustomize", directory], "").unwrap()
}

/// The chart with the values of docs/install/helm.md and these settings, as `helm install` would send it to the cluster
/// of the kustomization.
fn chart(clients: &Clients, settings: &[&str]) -> Result<String> {
    let settings = settings.iter().flat_map(|setting| ["--set", setting]);
    helm(clients, "template", &VALUES.into_iter().chain(settings).collect::<Vec<_>>())
}

/// What has no default, as manifests/base has it.
const VALUES: [&str; 2] = ["--values", "helm/cluster.yaml"];

/// What Helm prints of the chart with nothing but these flags.
fn helm(clients: &Clients, verb: &str, flags: &[&str]) -> Result<String> {
    let name = (verb == "template").then_some("kube-ipvs");
    let mut arguments = vec![verb];
    arguments.extend(name);
    arguments.extend(["helm/kube-ipvs", "--namespace", "kube-system"]);
    arguments.extend(flags);
    run(clients, "helm", &arguments, "")
}

/// An API server, and the administrator's kubectl.
struct Cluster {
    clients: Clients,
    server: ControlPlane,
}

impl Cluster {
    /// `None`, said as a skip, where something for it is missing.
    fn new() -> Option<Self> {
        let clients = Clients::from_env_or_skip()?;
        let server = ControlPlane::from_env_or_skip().unwrap()?;
        let namespaces: Api<Namespace> = Api::all(server.admin_client());
        let kube_system = || Ok(server.block_on(namespaces.get("kube-system"))?);
        eventually("there is the namespace kube-system", kube_system).unwrap();
        Some(Self { clients, server })
    }

    /// The objects as the API server would store them, by kind and name; it stores nothing.
    fn dry_run(&self, manifest: &str) -> BTreeMap<String, Value> {
        let kubeconfig = self.server.admin_kubeconfig();
        let arguments = [
            "apply".as_ref(),
            "--kubeconfig".as_ref(),
            kubeconfig.as_os_str(),
            "--dry-run=server".as_ref(),
            "--output=json".as_ref(),
            "--filename=-".as_ref(),
        ];
        let printed = run(&self.clients, "kubectl", &arguments, manifest).unwrap();
        let list: Value = serde_json::from_str(&printed).unwrap();
        // One object is printed without a list around it.
        let items = list["items"].as_array().cloned().unwrap_or_else(|| vec![list]);
        items.into_iter().map(|object| (key(&object), object)).collect()
    }
}

fn manifests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests")
}

fn key(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    format!("{}/{}", text(&object["kind"]), text(&object["metadata"]["name"]))
}

/// The objects of a YAML stream.
fn read(yaml: &str) -> BTreeMap<String, Value> {
    let objects: Vec<Value> = serde_saphyr::from_multiple(yaml).unwrap();
    objects.into_iter().filter(|object| !object.is_null()).map(|object| (key(&object), object)).collect()
}

/// Each directory with a kustomization that installs the daemon, as a path below manifests/.
fn kustomizations() -> Vec<String> {
    let mut found = vec![".".to_owned()];
    for entry in fs::read_dir(manifests()).unwrap() {
        let entry = entry.unwrap();
        if !["monitoring", "cleanup", "preflight"].contains(&entry.file_name().to_str().unwrap())
            && entry.path().join("kustomization.yaml").is_file()
        {
            found.push(entry.file_name().into_string().unwrap());
        }
    }
    found
}

#[test]
#[ignore = "needs kube-apiserver and kubectl: cargo xtask test --tier api"]
fn an_api_server_accepts_every_kustomization() {
    let Some(cluster) = Cluster::new() else { return };
    let kustomizations = kustomizations();
    assert!(kustomizations.len() > 5, "{kustomizations:?}");
    for directory in kustomizations {
        let objects = cluster.dry_run(&kustomize(&cluster.clients, &directory));
        let name = if directory == "kubeadm" { "DaemonSet/kube-proxy" } else { "DaemonSet/kube-ipvs" };
        let image = &objects[name]["spec"]["template"]["spec"]["containers"][0]["image"];
        assert_eq!(image, IMAGE, "{directory}");
    }
}

#[test]
#[ignore = "needs kube-apiserver, kubectl and helm: cargo xtask test --tier api"]
fn the_chart_installs_what_the_kustomization_does() {
    let Some(cluster) = Cluster::new() else { return };
    let chart = cluster.dry_run(&chart(&cluster.clients, &[]).unwrap());
    let kustomization = cluster.dry_run(&kustomize(&cluster.clients, "."));
    let essence = |mut objects: BTreeMap<String, Value>| {
        // Each makes a hash of its own.
        let configuration = objects.remove(&config_map(&objects)).unwrap();
        *mounted(objects.get_mut("DaemonSet/kube-ipvs").unwrap()) = Value::Null;
        objects.insert("ConfigMap".to_owned(), configuration);
        objects.into_iter().map(essence).collect::<Vec<_>>()
    };
    assert_eq!(essence(chart), essence(kustomization));
}

#[test]
#[ignore = "needs kubectl and helm: cargo xtask test --tier api"]
fn another_configuration_is_rolled_out_like_an_image() {
    let Some(clients) = Clients::from_env_or_skip() else { return };
    let chart = |settings: &[&str]| read(&chart(&clients, settings).unwrap());
    let kustomized = |directory| read(&kustomize(&clients, directory));
    let (usual, k3s) = (kustomized("."), kustomized("k3s"));
    assert_ne!(config_map(&usual), config_map(&k3s), "what a distribution has is in the hash");

    let charts = [
        chart(&[]),
        chart(&["config.ipvs.scheduler=lc"]),
        chart(&["server=https://10.0.0.1:6443"]),
        chart(&["image.tag=1.2.3"]),
    ];
    let [before, scheduler, server, image] = &charts;
    assert_ne!(config_map(before), config_map(scheduler));
    assert_ne!(config_map(before), config_map(server));
    assert_eq!(config_map(before), config_map(image));
    for objects in charts.iter().chain([&usual, &k3s]) {
        let configuration = &objects[&config_map(objects)];
        assert_eq!(configuration["immutable"], true, "no name has another content");
    }
}

#[test]
#[ignore = "needs kubectl: cargo xtask test --tier api"]
fn a_directory_s_own_configuration_takes_the_place_of_the_base_s() {
    let Some(clients) = Clients::from_env_or_skip() else { return };
    let own = kustomizations().into_iter().filter_map(|directory| {
        let file = fs::read_to_string(manifests().join(&directory).join("config.conf")).ok()?;
        Some((directory, file))
    });
    let own: Vec<_> = own.collect();
    assert_eq!(own.len(), 5, "{own:?}");
    for (directory, file) in own {
        let objects = read(&kustomize(&clients, &directory));
        let configuration = &objects[&config_map(&objects)];
        assert_eq!(configuration["data"]["config.conf"], file, "{directory}");
        assert!(configuration["data"]["kubeconfig.conf"].is_string(), "{directory}");
        assert_eq!(configuration["immutable"], true, "{directory}");
    }
}

/// The one thing by which the daemons of different manifests keep each other waiting.
#[test]
#[ignore = "needs kubectl and helm: cargo xtask test --tier api"]
fn every_daemon_may_lock_the_file_that_all_of_a_node_see() {
    let Some(clients) = Clients::from_env_or_skip() else { return };
    let kustomized =
        kustomizations().into_iter().map(|directory| (kustomize(&clients, &directory), directory));
    let charts =
        ["hardened=true", "hardened=false"].map(|set| (chart(&clients, &[set]).unwrap(), set.to_owned()));
    let file = json!({"path": "/run/xtables.lock", "type": "FileOrCreate"});
    for (yaml, name) in kustomized.chain(charts) {
        let objects = read(&yaml);
        let daemon_set = objects.iter().find(|(key, _)| key.starts_with("DaemonSet/")).unwrap().1;
        let pod = &daemon_set["spec"]["template"]["spec"];
        let one = |list: &Value, is_it: &dyn Fn(&Value) -> bool| {
            let found = list.as_array().unwrap().iter().find(|one| is_it(one)).cloned();
            found.unwrap_or_else(|| panic!("{name}: {list}"))
        };
        let volume = one(&pod["volumes"], &|volume| volume["hostPath"] == file);
        let mount = one(&pod["containers"][0]["volumeMounts"], &|mount| mount["name"] == volume["name"]);
        assert_eq!(mount["mountPath"], file["path"], "{name}");
        assert_ne!(mount["readOnly"], true, "{name}");
    }
}

#[test]
#[ignore = "needs kube-apiserver and kubectl: cargo xtask test --tier api"]
fn the_cleanup_job_runs_once_on_one_node_with_the_rights_of_the_daemon() {
    let Some(cluster) = Cluster::new() else { return };
    let (_, pod, daemon) = job_on_one_node(&cluster, "cleanup", "ipvs-cleanup");
    assert_eq!(pod["restartPolicy"], "Never");
    let container = &pod["containers"][0];
    assert_eq!(container["args"], json!(["cleanup", "--keep-ipvs"]));
    assert_eq!(pod["securityContext"], daemon["securityContext"]);
    assert_eq!(pod["securityContext"]["seLinuxOptions"]["type"], "spc_t");
    let file = json!({"path": "/run/xtables.lock", "type": "FileOrCreate"});
    assert_eq!(pod["volumes"][0]["hostPath"], file);
    assert_eq!(container["volumeMounts"][0]["mountPath"], file["path"]);
}

#[test]
#[ignore = "needs kube-apiserver and kubectl: cargo xtask test --tier api"]
fn the_preflight_job_looks_at_one_node_and_may_read_what_the_daemon_reads() {
    let Some(cluster) = Cluster::new() else { return };
    let (objects, pod, _) = job_on_one_node(&cluster, "preflight", "preflight");
    assert_eq!(pod["hostNetwork"], true);
    let container = &pod["containers"][0];
    let arguments: Vec<String> = serde_json::from_value(container["args"].clone()).unwrap();
    assert_eq!(arguments[0], "preflight");
    let command_line = ["kube-ipvs".to_owned()].into_iter().chain(arguments);
    kube_ipvs::cli::parse(command_line.map(Into::into)).unwrap();
    let binding = &objects["ClusterRoleBinding/kube-ipvs-preflight"];
    assert_eq!(binding["roleRef"]["name"], "kube-ipvs-preflight");
    let reads = |rules: &Value| -> Vec<Value> {
        let rules = rules.as_array().unwrap().iter();
        rules.filter(|rule| rule["verbs"] == json!(["list", "watch"])).cloned().collect()
    };
    let role = &objects["ClusterRole/kube-ipvs-preflight"]["rules"];
    let daemon = &cluster.dry_run(&kustomize(&cluster.clients, "."))["ClusterRole/kube-ipvs"]["rules"];
    assert_eq!(role.as_array(), Some(&reads(daemon)));
    assert_eq!(binding["subjects"][0]["name"], pod["serviceAccountName"]);
    let mounts = container["volumeMounts"].as_array().unwrap();
    assert!(mounts.iter().all(|mount| mount["readOnly"] == true), "{mounts:?}");
}

/// What is in a directory with a Job for one node: all objects, and the Job's pod; and the daemon's. The Job is tried once,
/// because its exit code is the answer, on that node, with the daemon's image and rights.
fn job_on_one_node(
    cluster: &Cluster,
    directory: &str,
    name: &str,
) -> (BTreeMap<String, Value>, Value, Value) {
    // As long as names of nodes are on the clouds.
    let node = "ip-255-255-255-255.ap-southeast-1.compute.internal";
    let objects = cluster.dry_run(&kustomize(&cluster.clients, directory).replace("NODE", node));
    let job = &objects[&format!("Job/{name}-{node}")];
    assert_eq!(job["spec"]["backoffLimit"], 0);
    let pod = job["spec"]["template"]["spec"].clone();
    let container = &pod["containers"][0];
    assert_eq!((&pod["nodeName"], &container["image"]), (&json!(node), &json!(IMAGE)));
    let ours = cluster.dry_run(&kustomize(&cluster.clients, "."));
    let daemon = ours["DaemonSet/kube-ipvs"]["spec"]["template"]["spec"].clone();
    assert_eq!(container["securityContext"], daemon["containers"][0]["securityContext"]);
    (objects, pod, daemon)
}

/// The ConfigMap whose files the daemon reads, by kind and name.
fn config_map(objects: &BTreeMap<String, Value>) -> String {
    let name = mounted(&mut objects["DaemonSet/kube-ipvs"].clone()).clone();
    let key = format!("ConfigMap/{}", name.as_str().unwrap());
    assert!(objects.contains_key(&key), "{key}");
    key
}

/// What its DaemonSet calls it.
fn mounted(daemon_set: &mut Value) -> &mut Value {
    let volumes = daemon_set["spec"]["template"]["spec"]["volumes"].as_array_mut().unwrap();
    let volume = volumes.iter_mut().find(|volume| volume["name"] == "config").unwrap();
    &mut volume["configMap"]["name"]
}

/// What an object does, apart from who made it: without its metadata, and with its configuration read.
fn essence((key, mut object): (String, Value)) -> (String, Value) {
    object["metadata"] = Value::Null;
    for file in object["data"].as_object_mut().into_iter().flat_map(|data| data.values_mut()) {
        *file = serde_saphyr::from_str(file.as_str().unwrap()).unwrap();
    }
    (key, object)
}

#[test]
#[ignore = "needs kubectl and kubeadm: cargo xtask test --tier api"]
fn on_a_kubeadm_cluster_the_image_is_all_that_changes() {
    let Some(clients) = Clients::from_env_or_skip() else { return };
    let printed = run(&clients, "kubeadm", &KUBEADM, "").unwrap();
    let (mut theirs, ours) = (read(&printed), read(&kustomize(&clients, "kubeadm")));

    // Its ConfigMap leaves nearly every field empty, null or zero, and is taken as it is but for the mode: kubeadm 1.37
    // writes one where it was given none.
    let configuration = theirs["ConfigMap/kube-proxy"]["data"]["config.conf"].as_str().unwrap();
    assert!(configuration.contains("\nmode: iptables\n"), "{configuration}");
    let file = |name| clients.home.path().join(name);
    fs::write(file("config.conf"), configuration.replace("mode: iptables", "mode: ipvs")).unwrap();
    let read_back = Command::new(env!("CARGO_BIN_EXE_kube-ipvs"))
        .arg("--config")
        .arg(file("config.conf"))
        .arg("--hostname-override=node")
        .arg("--write-config-to")
        .arg(file("effective.conf"))
        .output()
        .unwrap();
    assert!(read_back.status.success(), "{}", String::from_utf8_lossy(&read_back.stderr));
    let effective: Value =
        serde_saphyr::from_str(&fs::read_to_string(file("effective.conf")).unwrap()).unwrap();
    assert_eq!(effective["clusterCIDR"], "10.244.0.0/16");
    assert_eq!(effective["conntrack"]["maxPerCore"], 32768);

    let theirs = theirs.get_mut("DaemonSet/kube-proxy").unwrap();
    let copy = read(&fs::read_to_string(manifests().join("kubeadm/daemonset.yaml")).unwrap());
    assert_eq!(&copy["DaemonSet/kube-proxy"], theirs);
    theirs["spec"]["template"]["spec"]["containers"][0]["image"] = IMAGE.into();
    assert_eq!(ours.len(), 1);
    assert_eq!(&ours["DaemonSet/kube-proxy"], theirs);
}

#[test]
#[ignore = "needs kube-apiserver and kubectl: cargo xtask test --tier api"]
fn the_patches_for_kubeadm_add_the_image_and_a_probe_and_differ_in_their_pace() {
    let Some(cluster) = Cluster::new() else { return };
    let patched = |patch: &str| {
        let file = format!("kubeadm/{patch}.yaml");
        let arguments =
            ["patch", "--local", "-f", "kubeadm/daemonset.yaml", "--patch-file", &file, "--output=yaml"];
        let patched = run(&cluster.clients, "kubectl", &arguments, "").unwrap();
        cluster.dry_run(&patched).remove("DaemonSet/kube-proxy").unwrap()
    };
    let ours = &cluster.dry_run(&kustomize(&cluster.clients, "."))["DaemonSet/kube-ipvs"]["spec"];
    let probe = &ours["template"]["spec"]["containers"][0]["readinessProbe"];
    let theirs = fs::read_to_string(manifests().join("kubeadm/daemonset.yaml")).unwrap();
    let mut template = cluster.dry_run(&theirs)["DaemonSet/kube-proxy"]["spec"]["template"].clone();
    let container = &mut template["spec"]["containers"][0];
    container["image"] = IMAGE.into();
    container["readinessProbe"] = probe.clone();
    for (patch, strategy) in
        [("one-node", &json!({"type": "OnDelete"})), ("all-nodes", &ours["updateStrategy"])]
    {
        let patched = patched(patch);
        assert_eq!(&patched["spec"]["updateStrategy"], strategy, "{patch}");
        assert_eq!(patched["spec"]["template"], template, "{patch}");
    }
}

/// What a cluster made by kubeadm has for kube-proxy. Without a version and an address it would look for them.
const KUBEADM: [&str; 8] = [
    "init",
    "phase",
    "addon",
    "kube-proxy",
    "--print-manifest",
    "--kubernetes-version=v1.37.2",
    "--apiserver-advertise-address=192.0.2.1",
    "--pod-network-cidr=10.244.0.0/16",
];
