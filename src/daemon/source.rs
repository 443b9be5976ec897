//! Where Services come from, opened.

use std::path::PathBuf;

use kube::Client;
use reconciler::{Handle, Notices};
use service::Change;
use watcher::{api::Troubles, directory};

use crate::{
    api,
    config::{self, Settings},
    events,
};

/// A source that is known to be usable.
pub(super) enum Source {
    /// An API server, not asked yet.
    Api(Box<Client>),
    /// A directory whose manifests parse.
    Directory(PathBuf),
}

impl Source {
    /// Finds out whether the configured source can be used. Nothing is sent to an API server yet.
    pub(super) async fn open(settings: &Settings) -> anyhow::Result<Self> {
        match &settings.source {
            config::Source::Api { kubeconfig, master } => {
                let client = api::client(kubeconfig.as_deref(), master.as_deref()).await?;
                Ok(Self::Api(Box::new(client)))
            }
            config::Source::Directory(path) => {
                directory::read_once(path, &settings.node_name)?;
                Ok(Self::Directory(path.clone()))
            }
        }
    }

    /// What becomes of notices: Events. Without an API server there is nobody to tell; the log has them.
    pub(super) fn notices(&self, node_name: &str) -> Notices {
        match self {
            Self::Api(client) => {
                let (outbox, publisher) = events::queue(Client::clone(client), node_name);
                tokio::spawn(publisher.run());
                Box::new(move |notice| outbox.post(notice))
            }
            Self::Directory(_) => Box::new(drop),
        }
    }

    /// Passes on what the source says, for ever; returns only with what makes it useless.
    pub(super) async fn follow(self, node_name: &str, troubles: &Troubles, handle: &Handle) -> anyhow::Error {
        // When the writer thread is gone the daemon ends; until then there is nobody to tell.
        let send = |change: Change| _ = handle.change(change);
        match self {
            Self::Api(client) => match watcher::api::watch(*client, node_name, troubles, send).await {},
            Self::Directory(path) => match directory::watch(&path, node_name, send).await {
                Ok(never) => match never {},
                Err(error) => error.into(),
            },
        }
    }
}
