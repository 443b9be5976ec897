//! As a systemd service, from the package for Debian: on one node, whose kube-proxy is a service too, as
//! docs/install/systemd.md has it. The package is installed again, as an upgrade is; the node is rebooted; and kube-proxy comes
//! back.

use std::{fs, time::Duration};

use anyhow::{Context as _, Result, ensure};
use guest::{go::control_plane, platform::Platform, programs, workspace};
use serde_json::{Value, json};

use super::{UnderLoad, back, expect_good, expect_nothing_of_kube_proxy};
use crate::{
    documents,
    kubectl::{self, patiently},
    network,
    node::Node,
    proxy,
    scenario::nodes,
    state::Cluster,
    web::{End, Web},
};

/// `CAP_NET_ADMIN` and `CAP_NET_RAW`, which the unit leaves, as `/proc/PID/status` has them.
const CAPABILITIES: &str = "0000000000003000";

/// A node has one processor here, for which services outbid pods: by systemd's weights of 100 and 39, because a kubelet
/// gives pods 39 for each processor. While dpkg, ssh and the daemon's start want all of it, pods keep up with a load
/// like this, and not with that of the other scenarios, of which they alone take a fifth of the processor.
const RATE: u32 = 40;
const HELD: u32 = 10;

/// All of it, and the node is as before.
pub(crate) fn there_and_back(cluster: &Cluster) -> Result<()> {
    let mut package = workspace::cargo();
    package.args(["xtask", "package", "--platform", Platform::HERE.architecture()]);
    programs::run(&mut package).context("cargo xtask package")?;
    let node = cluster.first_worker()?;
    let tried = becomes_a_service(node).and_then(|()| change_and_go_back(cluster, node));
    // Others begin with the DaemonSet on every node.
    tried.and(is_a_pod_again(node))
}

fn change_and_go_back(cluster: &Cluster, node: &Node) -> Result<()> {
    let (prepare, change) = commands_for_the_change(node)?;
    let go_back = commands(node, "Go back", &[])?;
    // Nothing of a proxy changes yet, and dpkg keeps a small node busy.
    documents::run_all(&prepare)?;
    let under_load = UnderLoad { web: Web::deploy(cluster, 4, End::Drained)?, rate: RATE, held: HELD };
    under_load.during(cluster, || {
        documents::run_all(&change)?;
        check(node)?;
        // dpkg does the same as for a newer one.
        let install = prepare.iter().find(|command| command.contains(" install ./")).context("no package")?;
        documents::run(&install.replace(" install ./", " install --reinstall ./"))?;
        check(node)
    })?;
    is_confined(node)?;
    reboot(cluster, &under_load.web, node)?;
    under_load.during(cluster, || documents::run_all(&go_back))?;
    back::expect_no_tables(node)?;
    let look = "! find /etc /usr -name '*kube*ipvs*' | grep .";
    node.run(look).map(drop).context("something of the package stays")
}

/// What docs/install/systemd.md has for the change, before kube-proxy stops and from then on.
fn commands_for_the_change(node: &Node) -> Result<(Vec<String>, Vec<String>)> {
    let words = [
        ("PACKAGE.deb", &*package()?),
        ("scp ", &*format!("scp -q {} ", Node::ssh_options().join(" "))),
        ("NODE:", &*format!("{}:", node.ssh_name())),
        ("=NODE", &*format!("={}", node.name)),
    ];
    let mut prepare = commands(node, "Change", &words)?;
    let stops = prepare.iter().position(|command| command.contains("disable kube-proxy"));
    let change = prepare.split_off(stops.context("no command that stops kube-proxy")?);
    Ok((prepare, change))
}

/// What docs/install/systemd.md has in a section, for this node, without the questions of apt-get.
fn commands(node: &Node, heading: &str, words: &[(&str, &str)]) -> Result<Vec<String>> {
    let ssh = format!("ssh {} {}", Node::ssh_options().join(" "), node.ssh_name());
    let words = [words, &[("ssh NODE", &ssh), ("apt-get ", "apt-get --yes -qq ")]].concat();
    documents::commands("install/systemd.md", heading, &words)
}

/// The name of the package for Debian, which was built alone.
fn package() -> Result<String> {
    let files = fs::read_dir(workspace::root().join("target/package")).context("no packages")?;
    let mut names = files.filter_map(|file| Some(file.ok()?.file_name().to_string_lossy().into_owned()));
    names.find(|name| name.contains(".deb")).context("no package for Debian")
}

/// "Check a node" of docs/install.md, on the node itself.
fn check(node: &Node) -> Result<()> {
    patiently(Duration::from_secs(60), || node.run("curl -sf http://127.0.0.1:10256/readyz"))?;
    let words = [("default/web", "default/kubernetes")];
    for command in documents::commands("install.md", "Check a node", &words)? {
        if let Some(words) = command.strip_prefix("kube-ipvs ") {
            let printed = node.run(&command)?;
            expect_good(words, &printed)?;
            let is_known = words != "status" || printed.contains(&format!(" on {} ", node.name));
            ensure!(is_known, "the node is called otherwise: {printed}");
        }
    }
    expect_nothing_of_kube_proxy(node)
}

/// The daemon has no more than the unit says, although it is root's.
fn is_confined(node: &Node) -> Result<()> {
    let status = node.run("cat /proc/$(systemctl show --property=MainPID --value kube-ipvs)/status")?;
    for expected in [&*format!("CapEff:\t{CAPABILITIES}"), "NoNewPrivs:\t1", "Seccomp:\t2"] {
        ensure!(status.lines().any(|line| line == expected), "not {expected:?}: {status}");
    }
    let log = node.run("journalctl --quiet --unit=kube-ipvs")?;
    ensure!(!log.contains(" ERROR "), "{log}");
    Ok(())
}

/// The service starts with the node, after which the lock below /run is another file.
fn reboot(cluster: &Cluster, web: &Web, node: &Node) -> Result<()> {
    node.shut_down()?;
    nodes::boot(node)?;
    nodes::answers(cluster, web, node)?;
    check(node)
}

/// Where its files are.
const DIRECTORY: &str = "/var/lib/kube-proxy";
const PROGRAM: &str = "/usr/local/bin/kube-proxy";
const UNIT: &str = "/etc/systemd/system/kube-proxy.service";

/// Where pods find what proves who they are.
const OF_PODS: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// The pod goes from the node, and the service starts.
fn becomes_a_service(node: &Node) -> Result<()> {
    let program = control_plane::kube_proxy()?;
    let mut scp = network::on_router("scp");
    scp.arg("-q").args(Node::ssh_options()).arg(program).arg(format!("{}:{PROGRAM}", node.ssh_name()));
    programs::run(&mut scp).context("copying kube-proxy")?;
    let files = kubectl::json("--namespace=kube-system get configmap kube-proxy")?;
    let file = |pointer: &str| files.pointer(pointer).and_then(Value::as_str).context("kubeadm's ConfigMap");
    let configuration = file("/data/config.conf")?;
    let kubeconfig = file("/data/kubeconfig.conf")?;
    ensure!(kubeconfig.contains(OF_PODS), "kubeadm's kubeconfig is another: {kubeconfig}");
    let token = kubectl::output("--namespace=kube-system create token kube-proxy --duration=24h")?;
    let authority = kubectl::output(
        "--namespace=kube-system get configmap kube-root-ca.crt --output=jsonpath={.data.ca\\.crt}",
    )?;
    for (name, text) in [
        ("config.conf", configuration),
        ("kubeconfig.conf", &kubeconfig.replace(OF_PODS, DIRECTORY)),
        ("token", &token),
        ("ca.crt", &authority),
    ] {
        node.write(&format!("{DIRECTORY}/{name}"), text)?;
    }
    node.write(UNIT, &unit(node))?;
    let elsewhere = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": [
            {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": [node.name]},
        ]}],
    }}});
    choose_nodes(&elsewhere)?;
    // Only a flag says how the node is called then, until it is rebooted.
    node.run("hostname elsewhere; systemctl daemon-reload && systemctl enable --now kube-proxy 2>&1")?;
    serves(node)
}

/// The service goes from the node, with whatever a failure has left, and the pod returns.
fn is_a_pod_again(node: &Node) -> Result<()> {
    let stop = "systemctl disable --now kube-proxy kube-ipvs; kube-ipvs cleanup --keep-ipvs; apt-get --yes purge kube-ipvs";
    let forget = format!("rm -rf {DIRECTORY} {PROGRAM} {UNIT} /etc/kube-ipvs /etc/default/kube-ipvs");
    node.run(&format!("{{ {stop}; }} >/dev/null 2>&1; {forget} && systemctl daemon-reload"))?;
    choose_nodes(&Value::Null)?;
    serves(node)
}

/// Waits until kube-proxy answers, and has synced in both families.
fn serves(node: &Node) -> Result<()> {
    patiently(Duration::from_secs(60), || node.run("curl -sf http://127.0.0.1:10256/healthz"))?;
    back::wait_for_kube_proxy(node)
}

fn unit(node: &Node) -> String {
    format!(
        "[Service]
ExecStart={PROGRAM} --config={DIRECTORY}/config.conf --hostname-override={}
Restart=always
[Install]
WantedBy=multi-user.target
",
        node.name
    )
}

/// Where kubeadm's DaemonSet has pods.
fn choose_nodes(affinity: &Value) -> Result<()> {
    let patch = json!({"spec": {"template": {"spec": {"affinity": affinity}}}}).to_string();
    kubectl::output_of(&["--namespace=kube-system", "patch", "daemonset", "kube-proxy", "--patch", &patch])?;
    proxy::wait()
}
