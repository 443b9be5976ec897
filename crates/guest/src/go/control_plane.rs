//! A real kube-apiserver, etcd and kube-proxy for the tests.

use std::{os::unix::fs::symlink, path::PathBuf};

use anyhow::{Context as _, Result};
use tempfile::TempDir;

use super::{Module, Program};

pub(super) const APISERVER: Program =
    ("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver", "k8s.io/kubernetes");
pub(super) const ETCD: Program = ("etcd", "go.etcd.io/etcd/server/v3", "go.etcd.io/etcd/server/v3");
pub(super) const KUBE_PROXY: Program =
    ("kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy", "k8s.io/kubernetes");

/// The programs.
pub const MODULE: Module = Module::plain("control-plane", &[ETCD, APISERVER, KUBE_PROXY]);

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

/// An API server of one version.
pub struct ApiServer(pub(crate) Module);

/// The oldest that kube-ipvs supports, those before and after WatchList came, and the one before that of the
/// other tests, with its kube-proxy.
pub const ALL: [ApiServer; 5] = [
    from_module("api-servers/1.24", &[APISERVER]),
    from_module("api-servers/1.28", &[APISERVER]),
    from_module("api-servers/1.31", &[APISERVER]),
    from_module("api-servers/1.33", &[APISERVER]),
    from_module("api-servers/1.36", &[APISERVER, KUBE_PROXY]),
];

const fn from_module(name: &'static str, programs: &'static [Program]) -> ApiServer {
    ApiServer(Module::plain(name, programs))
}

impl ApiServer {
    /// The minor version, such as `1.24`: the name of the module's directory.
    pub fn minor(&self) -> &'static str {
        self.0.name.trim_start_matches("api-servers/")
    }

    /// The whole version, such as `v1.24.17`.
    pub fn version(&self) -> Result<String> {
        self.0.version("k8s.io/kubernetes")
    }

    /// Whether the kube-proxy of this version is built too.
    pub fn has_kube_proxy(&self) -> bool {
        self.0.programs.contains(&KUBE_PROXY)
    }

    /// A directory for `KUBEBUILDER_ASSETS`: what there is of this version, built from source, and the etcd of the
    /// other tests.
    pub fn assets(&self) -> Result<TempDir> {
        let directory = tempfile::tempdir().context("making a directory")?;
        let (these, others) = (self.0.built()?, MODULE.built()?);
        let programs = self.0.programs.iter().map(|program| (&these, program));
        for (built, (name, ..)) in programs.chain([(&others, &ETCD)]) {
            symlink(built.join(name), directory.path().join(name)).context("making a link")?;
        }
        Ok(directory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_has_the_version_that_its_name_says() {
        for server in &ALL {
            let version = server.version().unwrap();
            assert!(version.starts_with(&format!("v{}.", server.minor())), "{}: {version}", server.minor());
        }
    }
}
