//! Where Services come from, opened.

pub mod api_server;
pub(crate) mod known_node;

use std::path::{Path, PathBuf};

use kubernetes::{api::Watches, directory};
use service::Change;
use tracing::info;

use crate::{
    config::{self, Settings},
    events,
    serve::health::UnknownNode,
};

/// A source that is known to be usable.
pub(crate) enum Source {
    /// An API server, not asked yet.
    Api(Box<api_server::Server>),
    /// A directory whose manifests parse.
    Directory(PathBuf),
}

impl Source {
    /// Finds out whether the configured source can be used. Nothing is sent to an API server yet.
    pub(crate) async fn open(settings: &Settings) -> anyhow::Result<Self> {
        match &settings.source {
            config::Source::Api { kubeconfig, master } => {
                let server = api_server::server(kubeconfig.as_deref(), master.as_deref()).await?;
                info!(address = server.address, "the API server");
                Ok(Self::Api(Box::new(server)))
            }
            config::Source::Directory(path) => {
                directory::read_once(path, &settings.node_name)?;
                Ok(Self::Directory(path.clone()))
            }
        }
    }

    /// The outbox for Events. Without an API server there is nobody to tell; the log has them.
    pub(crate) fn outbox(&self, node_name: &str) -> Option<events::Outbox> {
        match self {
            Self::Api(server) => {
                let (outbox, publisher) = events::queue(server.client.clone(), node_name);
                tokio::spawn(publisher.run());
                Some(outbox)
            }
            Self::Directory(_) => None,
        }
    }

    /// What the metrics tell of the API server, if the source is one.
    pub(crate) fn api_server(&self, watches: &Watches) -> Option<Watches> {
        match self {
            Self::Api(_) => Some(watches.clone()),
            Self::Directory(_) => None,
        }
    }

    /// What to assume of the Node before this source has told of it.
    pub(crate) fn unknown_node(&self) -> UnknownNode {
        match self {
            Self::Api(_) => UnknownNode::NotEligible,
            Self::Directory(_) => UnknownNode::Eligible,
        }
    }

    /// Passes on what the source says, for ever; returns only with what makes it useless.
    pub(crate) async fn follow(
        &self,
        node_name: &str,
        watches: &Watches,
        send: impl Fn(Change),
    ) -> anyhow::Error {
        match self {
            Self::Api(server) => {
                match kubernetes::api::watch(server.client.clone(), node_name, watches, send).await {}
            }
            Self::Directory(path) => follow_directory(path, node_name, send).await,
        }
    }

    /// Passes on what the source says of the Node at least, for ever; returns only with what makes it useless.
    pub(crate) async fn follow_node(
        &self,
        node_name: &str,
        watches: &Watches,
        send: impl Fn(Change),
    ) -> anyhow::Error {
        match self {
            Self::Api(server) => {
                match kubernetes::api::watch_node(&server.client, node_name, watches, send).await {}
            }
            // A few local files.
            Self::Directory(path) => follow_directory(path, node_name, send).await,
        }
    }
}

async fn follow_directory(path: &Path, node_name: &str, send: impl Fn(Change)) -> anyhow::Error {
    match directory::watch(path, node_name, send).await {
        Ok(never) => match never {},
        Err(error) => error.into(),
    }
}
