//! API servers of other versions of Kubernetes than the tests usually have.
//!
//! Each version is a Go module of its own in `tests/api-servers`: in one, all would have the newest of what they need.

use std::os::unix::fs::symlink;

use anyhow::{Context as _, Result};
use tempfile::TempDir;

use super::Module;
use super::control_plane::{self, APISERVER, ETCD};

/// An API server of one version.
pub struct ApiServer(pub(super) Module);

/// The oldest that still meets kube-ipvs somewhere, those before and after WatchList came, and the newest.
pub const ALL: [ApiServer; 5] = [
    from_module("api-servers/1.24"),
    from_module("api-servers/1.28"),
    from_module("api-servers/1.31"),
    from_module("api-servers/1.33"),
    from_module("api-servers/1.37"),
];

const fn from_module(name: &'static str) -> ApiServer {
    let programs = &[(APISERVER, "k8s.io/kubernetes/cmd/kube-apiserver", "k8s.io/kubernetes")];
    ApiServer(Module { name, tags: "", cgo: false, programs })
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

    /// A directory for `KUBEBUILDER_ASSETS`: this kube-apiserver, built from source, and the etcd of the other tests.
    pub fn assets(&self) -> Result<TempDir> {
        let directory = tempfile::tempdir().context("making a directory")?;
        for (program, built) in [(APISERVER, self.0.built()?), (ETCD, control_plane::MODULE.built()?)] {
            symlink(built.join(program), directory.path().join(program)).context("making a link")?;
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
