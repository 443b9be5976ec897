//! The daemon's description of itself, for `kube-ipvs status`.

use std::{path::PathBuf, time::Instant};

use kubernetes::api::Watches;

use crate::{serve::control, source::Source, version::VERSION};

/// What is known about the daemon.
#[derive(Clone)]
pub(super) struct Identity {
    node_name: String,
    begin: Instant,
    source: Kind,
    kernel: Option<control::KernelInfo>,
}

#[derive(Clone)]
enum Kind {
    Api { address: String, watches: Watches },
    Directory(PathBuf),
}

impl Identity {
    /// Describes a daemon that has been the node's proxy since `begin`. The state of its source is in `watches`.
    pub(super) fn new(node_name: &str, begin: Instant, source: &Source, watches: &Watches) -> Self {
        let source = match source {
            Source::Api(server) => Kind::Api { address: server.address.clone(), watches: watches.clone() },
            Source::Directory { path, .. } => Kind::Directory(path.clone()),
        };
        Self { node_name: node_name.to_owned(), begin, source, kernel: None }
    }

    /// This description with the kernel that the daemon writes to, once it has been prepared.
    pub(super) fn with(self, kernel: Option<control::KernelInfo>) -> Self {
        Self { kernel, ..self }
    }

    /// The description as of now.
    pub(super) fn now(&self) -> control::DaemonInfo {
        let source = match &self.source {
            Kind::Api { address, watches } => {
                control::SourceInfo::ApiServer { address: address.clone(), watches: watches.all() }
            }
            Kind::Directory(path) => control::SourceInfo::Manifests { directory: path.clone() },
        };
        control::DaemonInfo {
            version: VERSION.to_owned(),
            node: self.node_name.clone(),
            uptime: self.begin.elapsed(),
            source,
            kernel: self.kernel.clone(),
        }
    }
}
