//! The source of Services: an API server, or a directory of manifests.

pub mod api_server;
pub(crate) mod nodes;

use std::{
    collections::{BTreeSet, VecDeque},
    convert::Infallible,
    future,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use kubernetes::{
    api::{self, Watches},
    directory,
};
use service::Change;
use tokio::time::sleep;
use tracing::info;

use crate::{
    config::{self, Settings},
    events,
    serve::health::UnknownNode,
};

/// How often the API server's name is resolved.
const RESOLVED_AGAIN: Duration = Duration::from_secs(30);
/// How many answers count.
const LATEST_ANSWERS: usize = 10;

/// A source that was found usable.
pub(crate) enum Source {
    /// An API server; nothing was sent to it yet.
    Api(Box<api_server::Server>),
    /// A directory whose manifests parse.
    Directory {
        path: PathBuf,
        /// Their problems.
        problems: directory::Problems,
    },
}

impl Source {
    /// Opens the configured source. Sends nothing to an API server yet.
    pub(crate) async fn open(settings: &Settings) -> anyhow::Result<Self> {
        match &settings.source {
            config::Source::Api { kubeconfig, master } => {
                let server = api_server::server(kubeconfig.as_deref(), master.as_deref()).await?;
                info!(address = server.address, "using the API server");
                Ok(Self::Api(Box::new(server)))
            }
            config::Source::Directory(path) => {
                directory::read_once(path, &settings.services.node_name)?;
                Ok(Self::Directory { path: path.clone(), problems: directory::Problems::default() })
            }
        }
    }

    /// The outbox for Events.
    pub(crate) fn outbox(&self, node_name: &str) -> events::Outbox {
        match self {
            Self::Api(server) => {
                let (outbox, publisher) = events::queue(api::for_single_objects(&server.client), node_name);
                tokio::spawn(publisher.run());
                outbox
            }
            Self::Directory { .. } => events::Outbox::default(),
        }
    }

    /// The problems of the manifests. None if the source is an API server.
    pub(crate) fn manifest_problems(&self) -> directory::Problems {
        match self {
            Self::Api(_) => directory::Problems::default(),
            Self::Directory { problems, .. } => problems.clone(),
        }
    }

    /// What to assume about the Node before this source has sent it.
    pub(crate) fn unknown_node(&self) -> UnknownNode {
        match self {
            Self::Api(_) => UnknownNode::NotEligible,
            Self::Directory { .. } => UnknownNode::Eligible,
        }
    }

    /// Passes on all changes of the source. Returns only if the source becomes unusable.
    pub(crate) async fn follow(
        &self,
        node_name: &str,
        watches: &Watches,
        send: impl Fn(Change),
    ) -> anyhow::Error {
        match self {
            Self::Api(server) => match api::watch(server.client.clone(), node_name, watches, send).await {},
            Self::Directory { path, problems } => follow_directory(path, problems, node_name, send).await,
        }
    }

    /// Passes on the changes of the other nodes, for ever. A directory's come with everything else.
    pub(crate) async fn follow_peers(
        &self,
        node_name: &str,
        watches: &Watches,
        send: impl Fn(Change),
    ) -> Infallible {
        match self {
            Self::Api(server) => api::watch_peers(&server.client, node_name, watches, send).await,
            Self::Directory { .. } => future::pending().await,
        }
    }

    /// The addresses of the API server now; none if its name cannot be resolved.
    pub(crate) async fn api_server_addresses(&self) -> BTreeSet<SocketAddr> {
        match self {
            Self::Api(server) => server.addresses().await,
            Self::Directory { .. } => BTreeSet::new(),
        }
    }

    /// Passes on these addresses, for ever: a name may come to mean others. A connection may outlive the answer by
    /// which it was made, where a name server gives its addresses in turn.
    pub(crate) async fn follow_api_server(&self, send: impl Fn(Change)) -> Infallible {
        let mut answers = VecDeque::new();
        let mut known = BTreeSet::new();
        loop {
            let now = self.api_server_addresses().await;
            if !now.is_empty() {
                answers.push_back(now);
                answers.drain(..answers.len().saturating_sub(LATEST_ANSWERS));
            }
            let all: BTreeSet<_> = answers.iter().flatten().copied().collect();
            if all != known {
                known.clone_from(&all);
                send(Change::ApiServer(all));
            }
            sleep(RESOLVED_AGAIN).await;
        }
    }

    /// Passes on at least the changes of the Node. Returns only if the source becomes unusable.
    pub(crate) async fn follow_node(
        &self,
        node_name: &str,
        watches: &Watches,
        send: impl Fn(Change),
    ) -> anyhow::Error {
        match self {
            Self::Api(server) => match api::watch_node(&server.client, node_name, watches, send).await {},
            // A few local files.
            Self::Directory { path, problems } => follow_directory(path, problems, node_name, send).await,
        }
    }
}

async fn follow_directory(
    path: &Path,
    problems: &directory::Problems,
    node_name: &str,
    send: impl Fn(Change),
) -> anyhow::Error {
    match directory::watch(path, node_name, problems, send).await {
        Ok(never) => match never {},
        Err(error) => error.into(),
    }
}
