//! A real kube-apiserver, etcd and kube-proxy for the tests.

use std::path::PathBuf;

use super::Module;

pub(super) const APISERVER: &str = "kube-apiserver";
pub(super) const ETCD: &str = "etcd";
const KUBE_PROXY: &str = "kube-proxy";

/// The programs.
pub const MODULE: Module = Module {
    name: "control-plane",
    tags: "",
    cgo: false,
    programs: &[
        (ETCD, "go.etcd.io/etcd/server/v3", "go.etcd.io/etcd/server/v3"),
        (APISERVER, "k8s.io/kubernetes/cmd/kube-apiserver", "k8s.io/kubernetes"),
        (KUBE_PROXY, "k8s.io/kubernetes/cmd/kube-proxy", "k8s.io/kubernetes"),
    ],
};

/// The directory with kube-apiserver and etcd: the one that `KUBEBUILDER_ASSETS` names, or ours.
pub fn ensure() -> anyhow::Result<PathBuf> {
    given(&[APISERVER, ETCD]).map_or_else(|| MODULE.built(), Ok)
}

/// Where kube-proxy is.
pub fn kube_proxy() -> anyhow::Result<PathBuf> {
    Ok(given(&[KUBE_PROXY]).map_or_else(|| MODULE.built(), Ok)?.join(KUBE_PROXY))
}

/// What `KUBEBUILDER_ASSETS` names, if all of these are there.
fn given(names: &[&str]) -> Option<PathBuf> {
    let assets = std::env::var_os("KUBEBUILDER_ASSETS").map(PathBuf::from)?;
    names.iter().all(|name| assets.join(name).is_file()).then_some(assets)
}
