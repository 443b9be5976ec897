//! The images of all containers of the cluster and of Kubernetes' tests, under the names that are asked for.
//!
//! There is no registry: they are made of programs built from source, over a layer of the distribution's own packages.
//! What a test asks for but does not look into, such as nginx, is agnhost under that name.

use std::{collections::BTreeSet, fs, os::unix::fs::symlink, path::Path, process::Command};

use anyhow::{Context as _, Result};
use guest::{
    debian_root,
    files::{self, copy},
    go::{CLIENTS, CLUSTER, COREDNS, FLANNEL, control_plane},
    oci::{Compression, Labels, Layer, Layout},
    platform::Platform,
    programs::{printed, run},
};
use serde_json::json;

use crate::network::pods;

/// What is in containers beside their program: what tests call in them, and what kube-proxy calls.
const TOOLS: &[&str] = &[
    "bind9-dnsutils",
    "bind9-host",
    "ca-certificates",
    "conntrack",
    "curl",
    "iperf",
    "iproute2",
    "ipset",
    "iptables",
    "iputils-ping",
    "kmod",
    "net-tools",
    "netcat-openbsd",
    "nftables",
    "procps",
    "wget",
];

/// Users that tests expect in agnhost.
const USERS: &str = "user-defined-in-image:x:1000:1000::/home/user-defined-in-image:/bin/sh\n";
const GROUPS: &str = "user-defined-in-image:x:1000:\ngroup-defined-in-image:x:50000:user-defined-in-image\n";

/// The release of Kubernetes, such as `v1.37.2`.
pub(crate) fn kubernetes_version() -> Result<String> {
    control_plane::MODULE.version("k8s.io/kubernetes")
}

/// The image of a pod's first container, which holds its namespaces.
pub(crate) fn pause() -> Result<String> {
    let images = kubeadm_images()?;
    images.into_iter().find(|image| image.contains("/pause:")).context("kubeadm names no pause image")
}

/// The images that kubeadm asks for.
fn kubeadm_images() -> Result<Vec<String>> {
    let mut kubeadm = Command::new(CLIENTS.program("kubeadm")?);
    kubeadm.args(["config", "images", "list", "--kubernetes-version", &kubernetes_version()?]);
    Ok(printed(&mut kubeadm)?.lines().map(str::to_owned).collect())
}

/// The images that Flannel's manifest asks for.
fn flannel_images() -> Result<BTreeSet<String>> {
    let manifest = pods::flannel_manifest()?;
    let images = manifest.lines().filter_map(|line| line.trim().strip_prefix("image: "));
    Ok(images.map(str::to_owned).collect())
}

/// Writes all of them as one archive.
pub(crate) fn write(archive: &Path) -> Result<()> {
    let mut images = Layout::new(Labels::new())?;
    let (servers, programs) = (control_plane::ensure()?, CLUSTER.built()?);
    let (coredns, agnhost) = (COREDNS.built()?.join("coredns"), programs.join("agnhost"));
    let tools = debian_root::ensure(TOOLS)?;
    let tools_layer = images.layer(&tools, Compression::None)?;
    let agnhost_layer = layer(&images, |root| agnhost_files(root, &agnhost, &coredns, &tools))?;
    let pause_layer = layer(&images, |root| pause_program(&root.join("pause")))?;

    for image in kubeadm_images()? {
        let name = image.rsplit('/').next().and_then(|last| last.split(':').next()).unwrap_or_default();
        let (program, place) = match name {
            "pause" => {
                add(&mut images, &image, &[&pause_layer], &Call::to(&["/pause"]))?;
                continue;
            }
            "coredns" => (coredns.clone(), "coredns".to_owned()),
            "kube-controller-manager" | "kube-scheduler" => {
                (programs.join(name), format!("usr/local/bin/{name}"))
            }
            "kube-proxy" => (control_plane::kube_proxy()?, format!("usr/local/bin/{name}")),
            _ => (servers.join(name), format!("usr/local/bin/{name}")),
        };
        let layer = layer(&images, |root| copy(&program, &root.join(&place)))?;
        // CoreDNS' manifest gives arguments alone; the others are called by name.
        let call = if name == "coredns" { Call::to(&["/coredns"]) } else { Call::default() };
        add(&mut images, &image, &[&tools_layer, &layer], &call)?;
    }

    let with_agnhost = [&tools_layer, &agnhost_layer];
    for name in [AGNHOST, "registry.k8s.io/e2e-test-images/agnhost:2.55"] {
        let call = Call { entrypoint: &["/agnhost"], command: &["pause"] };
        add(&mut images, name, &with_agnhost, &call)?;
    }
    for tag in ["1.27.0-2", "1.28.0-2"] {
        let call = Call::to(&["/agnhost", "netexec", "--http-port=80"]);
        add(&mut images, &format!("{TESTS}/nginx:{tag}"), &with_agnhost, &call)?;
    }
    let shell = Call { entrypoint: &[], command: &["sh"] };
    for name in ["busybox:1.36.1-1", "busybox:1.37.0-2", "glibc-dns-testing:2.1.1"] {
        add(&mut images, &format!("{TESTS}/{name}"), &[&tools_layer], &shell)?;
    }
    add(&mut images, "registry.k8s.io/build-image/distroless-iptables:v0.9.9", &[&tools_layer], &shell)?;
    let program = "regression-issue-74839";
    let server = layer(&images, |root| copy(&programs.join(program), &root.join(program)))?;
    let call = Call::to(&["/regression-issue-74839"]);
    add(&mut images, &format!("{TESTS}/{program}:1.5"), &[&server], &call)?;
    let flannel = FLANNEL.built()?;
    let plugin = layer(&images, |root| copy(&flannel.join("flannel"), &root.join("flannel")))?;
    let daemon = layer(&images, |root| {
        let programs = ["flanneld", "install-conf"];
        programs.iter().try_for_each(|name| copy(&flannel.join(name), &root.join("opt/bin").join(name)))
    })?;
    for image in flannel_images()? {
        let layer = if image.contains("plugin") { &plugin } else { &daemon };
        add(&mut images, &image, &[&tools_layer, layer], &Call::default())?;
    }
    images.write(archive)
}

/// Where Kubernetes' tests get their images from.
const TESTS: &str = "registry.k8s.io/e2e-test-images";

/// What answers requests, in Kubernetes' tests and in ours.
pub(crate) const AGNHOST: &str = "registry.k8s.io/e2e-test-images/agnhost:2.66.1";

/// What a container of an image runs.
#[derive(Default)]
struct Call<'a> {
    entrypoint: &'a [&'a str],
    command: &'a [&'a str],
}

impl<'a> Call<'a> {
    fn to(entrypoint: &'a [&'a str]) -> Self {
        Self { entrypoint, command: &[] }
    }
}

/// A layer of the files that `write` puts into a directory.
fn layer(layout: &Layout, write: impl FnOnce(&Path) -> Result<()>) -> Result<Layer> {
    let root = tempfile::tempdir().context("making a directory for a layer")?;
    write(root.path())?;
    layout.layer(root.path(), Compression::None)
}

/// An image of these layers, the lowest first, under this name.
fn add(layout: &mut Layout, name: &str, layers: &[&Layer], call: &Call<'_>) -> Result<()> {
    let config = json!({
        "Entrypoint": call.entrypoint,
        "Cmd": call.command,
        "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
        "WorkingDir": "/",
    });
    let image = layout.image(Platform::HERE.architecture(), config, layers)?;
    layout.name(image, name);
    Ok(())
}

/// What upstream's image of agnhost has beside the tools.
fn agnhost_files(root: &Path, agnhost: &Path, coredns: &Path, tools: &Path) -> Result<()> {
    copy(agnhost, &root.join("agnhost"))?;
    copy(coredns, &root.join("coredns"))?;
    symlink("agnhost", root.join("agnhost-2")).context("linking agnhost")?;
    fs::create_dir(root.join("uploads")).context("making a directory for uploads")?;
    let sources = CLUSTER.sources_of("k8s.io/kubernetes")?.join("test/images/agnhost/porter");
    for name in ["localhost.crt", "localhost.key"] {
        copy(&sources.join(name), &root.join(name))?;
    }
    for (name, more) in [("passwd", USERS), ("group", GROUPS)] {
        let text = files::read(&tools.join("etc").join(name))?;
        files::write(&root.join("etc").join(name), text + more)?;
    }
    Ok(())
}

/// Compiles Kubernetes' own.
fn pause_program(destination: &Path) -> Result<()> {
    let source = CLUSTER.sources_of("k8s.io/kubernetes")?.join("build/pause/linux/pause.c");
    let mut compiler = Command::new("gcc");
    compiler.args(["-Os", "-Wall", "-static", "-DVERSION=kube-ipvs", "-o"]).arg(destination).arg(source);
    run(&mut compiler).context("compiling pause")
}
