//! As a systemd service, from the package for Debian: on one node, whose kube-proxy is a service too, as docs/install.md has
//! it. The package is installed again, as an upgrade is; the node is rebooted; and kube-proxy comes back.

mod kube_proxy;

use std::{fs, time::Duration};

use anyhow::{Context as _, Result, ensure};
use guest::{platform::Platform, programs, workspace};

use super::{UnderLoad, back, expect_good, expect_nothing_of_kube_proxy};
use crate::{
    documents,
    kubectl::patiently,
    node::Node,
    scenario::nodes,
    state::Cluster,
    web::{End, Web},
};

/// `CAP_NET_ADMIN` and `CAP_NET_RAW`, which the unit leaves, as `/proc/PID/status` has them.
const CAPABILITIES: &str = "0000000000003000";

/// A node has one processor here, for which services outbid pods: by systemd's weights of 100 and 39, because a kubelet
/// gives pods 39 for each processor. While dpkg, ssh and the daemon's start want all of it, pods keep up with a load like
/// this, and not with that of the other scenarios, of which they alone take a fifth of the processor.
const RATE: u32 = 40;
const HELD: u32 = 10;

/// All of it, and the node is as before.
pub(crate) fn there_and_back(cluster: &Cluster) -> Result<()> {
    let mut package = workspace::cargo();
    package.args(["xtask", "package", "--platform", Platform::HERE.architecture()]);
    programs::run(&mut package).context("cargo xtask package")?;
    let node = cluster.first_worker()?;
    let tried = kube_proxy::becomes_a_service(cluster, node).and_then(|()| change_and_go_back(cluster, node));
    // Others begin with the DaemonSet on every node.
    tried.and(kube_proxy::is_a_pod_again(cluster, node))
}

fn change_and_go_back(cluster: &Cluster, node: &Node) -> Result<()> {
    let commands = commands(cluster, node)?;
    let before = |words: &str| {
        let found = commands.iter().position(|command| command.contains(words));
        found.with_context(|| format!("install.md has no {words:?} for a service"))
    };
    let (prepare, rest) = commands.split_at(before("disable kube-proxy")?);
    let (change, go_back) = rest.split_at(before("disable kube-ipvs")? - prepare.len());
    // Nothing of a proxy changes yet, and dpkg keeps a small node busy.
    typed(prepare)?;
    let under_load = UnderLoad { web: Web::deploy(cluster, 4, End::Drained)?, rate: RATE, held: HELD };
    under_load.during(cluster, || {
        typed(change)?;
        check(cluster, node)?;
        // dpkg does the same as for a newer one.
        let install = prepare.iter().find(|command| command.contains(" install ./")).context("no package")?;
        typed(&[install.replace(" install ./", " install --reinstall ./")])?;
        check(cluster, node)
    })?;
    is_confined(cluster, node)?;
    reboot(cluster, &under_load.web, node)?;
    under_load.during(cluster, || typed(go_back))?;
    back::expect_no_tables(cluster, node)?;
    let look = "! find /etc /usr -name '*kube*ipvs*' | grep .";
    node.run(cluster, look).map(drop).context("something of the package stays")
}

/// What docs/install.md has, for this node, without the questions of apt-get.
fn commands(cluster: &Cluster, node: &Node) -> Result<Vec<String>> {
    let package = package()?;
    let (options, name) = (Node::ssh_options(cluster).join(" "), node.ssh_name());
    let words = [
        ("PACKAGE.deb", &*package),
        ("ssh NODE", &*format!("ssh {options} {name}")),
        ("scp ", &*format!("scp -q {options} ")),
        ("NODE:", &*format!("{name}:")),
        ("=NODE", &*format!("={}", node.name)),
        ("apt-get ", "apt-get --yes -qq "),
    ];
    documents::commands("install.md", "As a systemd service", &words)
}

/// The name of the package for Debian, which was built alone.
fn package() -> Result<String> {
    let files = fs::read_dir(workspace::root().join("target/package")).context("no packages")?;
    let mut names = files.filter_map(|file| Some(file.ok()?.file_name().to_string_lossy().into_owned()));
    names.find(|name| name.contains(".deb")).context("no package for Debian")
}

fn typed(commands: &[String]) -> Result<()> {
    commands.iter().try_for_each(|command| documents::run(&workspace::root(), command).map(drop))
}

/// "Check a node" of docs/install.md, on the node itself.
fn check(cluster: &Cluster, node: &Node) -> Result<()> {
    patiently(Duration::from_secs(60), || node.run(cluster, "curl -sf http://127.0.0.1:10256/readyz"))?;
    for command in
        documents::commands("install.md", "Check a node", &[("default/web", "default/kubernetes")])?
    {
        if let Some(words) = command.strip_prefix("kube-ipvs ") {
            let printed = node.run(cluster, &command)?;
            expect_good(words, &printed)?;
            let is_known = words != "status" || printed.contains(&format!(" on {} ", node.name));
            ensure!(is_known, "the node is called otherwise: {printed}");
        }
    }
    expect_nothing_of_kube_proxy(cluster, node)
}

/// The daemon has no more than the unit says, although it is root's.
fn is_confined(cluster: &Cluster, node: &Node) -> Result<()> {
    let status =
        node.run(cluster, "cat /proc/$(systemctl show --property=MainPID --value kube-ipvs)/status")?;
    for expected in [&*format!("CapEff:\t{CAPABILITIES}"), "NoNewPrivs:\t1", "Seccomp:\t2"] {
        ensure!(status.lines().any(|line| line == expected), "not {expected:?}: {status}");
    }
    let log = node.run(cluster, "journalctl --quiet --unit=kube-ipvs")?;
    ensure!(!log.contains(" ERROR "), "{log}");
    Ok(())
}

/// The service starts with the node, after which the lock below /run is another file.
fn reboot(cluster: &Cluster, web: &Web<'_>, node: &Node) -> Result<()> {
    node.shut_down(cluster)?;
    nodes::boot(cluster, node)?;
    nodes::answers(cluster, web, node)?;
    check(cluster, node)
}
