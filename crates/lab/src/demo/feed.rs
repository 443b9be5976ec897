//! The source of the demo's Services: a directory, or an API server.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};
use guest::workspace;
use testkit::{control_plane::ControlPlane, daemon::Daemon, lab::Host};

use crate::control_plane;

/// The source of Services.
pub(super) enum Feed {
    /// Manifests in a directory.
    Directory(tempfile::TempDir),
    /// A real kube-apiserver.
    Api(Box<ControlPlane>),
}

impl Feed {
    /// An empty directory.
    pub(super) fn directory() -> Result<Self> {
        Ok(Self::Directory(tempfile::tempdir()?))
    }

    /// An API server: the one that the environment names, or a new one.
    pub(super) fn api() -> Result<Self> {
        Ok(Self::Api(Box::new(control_plane::inside()?)))
    }

    /// Makes the source reachable from `node`.
    pub(super) fn reach_from(&self, node: &Host) -> Result<()> {
        match self {
            Self::Directory(_) => Ok(()),
            Self::Api(server) => node.reach(server.address()?),
        }
    }

    /// Applies a manifest of `manifests/demo`.
    pub(super) fn put(&self, name: &str) -> Result<()> {
        self.put_changed(name, str::to_owned)
    }

    /// The same with a changed text.
    pub(super) fn put_changed(&self, name: &str, change: impl FnOnce(&str) -> String) -> Result<()> {
        let path = workspace::root().join("manifests/demo").join(name);
        let text = change(&fs::read_to_string(&path).with_context(|| path.display().to_string())?);
        match self {
            Self::Directory(directory) => write_whole(&directory.path().join(name), &text),
            Self::Api(server) => {
                for object in &serde_saphyr::from_multiple(&text)? {
                    server.apply(object)?;
                }
                Ok(())
            }
        }
    }

    /// Starts the daemon on `node`, fed from here.
    pub(super) fn daemon(&self, node: &Host, arguments: &[&str]) -> Result<Daemon> {
        match self {
            Self::Directory(directory) => Daemon::with_manifests(node, directory.path(), arguments),
            Self::Api(server) => Daemon::with_kubeconfig(node, &server.proxy_kubeconfig(), arguments),
        }
    }
}

/// Writes the file whole: a watcher of the directory never sees half of it.
fn write_whole(path: &Path, text: &str) -> Result<()> {
    let half = path.with_extension("half");
    fs::write(&half, text)?;
    fs::rename(&half, path)?;
    Ok(())
}
