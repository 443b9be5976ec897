//! Where the demo's daemon gets its Services from: a directory, or an API server.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use guest::workspace;
use testkit::{control_plane::ControlPlane, daemon::Daemon, lab::Host};

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
        Ok(Self::Api(Box::new(crate::control_plane::inside()?)))
    }

    /// Makes the source reachable from `node`.
    pub(super) fn reach_from(&self, node: &Host) -> Result<()> {
        match self {
            Self::Directory(_) => Ok(()),
            Self::Api(server) => node.reach(server.address()?),
        }
    }

    /// Applies a manifest of `manifests/demo`, without the lines that contain `leave_out`.
    pub(super) fn put(&self, name: &str, leave_out: Option<&str>) -> Result<()> {
        let path = manifest(name);
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let kept = |line: &&str| leave_out.is_none_or(|words| !line.contains(words));
        let text: String = text.lines().filter(kept).flat_map(|line| [line, "\n"]).collect();
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
            Self::Api(server) => {
                let kubeconfig = server.proxy_kubeconfig();
                let kubeconfig = kubeconfig.to_string_lossy();
                let arguments: Vec<_> =
                    ["--kubeconfig", &kubeconfig].into_iter().chain(arguments.iter().copied()).collect();
                Daemon::start(node, &arguments)
            }
        }
    }
}

fn manifest(name: &str) -> PathBuf {
    workspace::root().join("manifests/demo").join(name)
}

/// Writes the file whole: a watcher of the directory never sees half of it.
fn write_whole(path: &Path, text: &str) -> Result<()> {
    let half = path.with_extension("half");
    fs::write(&half, text)?;
    fs::rename(&half, path)?;
    Ok(())
}
