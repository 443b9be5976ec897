//! A real kube-apiserver, etcd and kube-proxy for the tests.

use std::path::PathBuf;

use super::{Module, Program};

pub(super) const APISERVER: Program =
    ("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver", "k8s.io/kubernetes");
pub(super) const ETCD: Program = ("etcd", "go.etcd.io/etcd/server/v3", "go.etcd.io/etcd/server/v3");
pub(super) const KUBE_PROXY: Program =
    ("kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy", "k8s.io/kubernetes");

/// The programs.
pub const MODULE: Module =
    Module { name: "control-plane", tags: "", cgo: false, programs: &[ETCD, APISERVER, KUBE_PROXY] };

/// The directory with kube-apiserver and etcd: the one that `KUBEBUILDER_ASSETS` names, or ours.
pub fn ensure() -> anyhow::Result<PathBuf> {
    given(&[APISERVER, ETCD]).map_or_else(|| MODULE.built(), Ok)
}

/// Where kube-proxy is.
pub fn kube_proxy() -> anyhow::Result<PathBuf> {
    Ok(given(&[KUBE_PROXY]).map_or_else(|| MODULE.built(), Ok)?.join(KUBE_PROXY.0))
}

/// What `KUBEBUILDER_ASSETS` names, if all of these are there.
fn given(programs: &[Program]) -> Option<PathBuf> {
    let assets = std::env::var_os("KUBEBUILDER_ASSETS").map(PathBuf::from)?;
    programs.iter().all(|(name, ..)| assets.join(name).is_file()).then_some(assets)
}
