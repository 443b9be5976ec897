//! The way to the API server.

use std::path::Path;

use anyhow::{Context, anyhow};
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig, KubeconfigError},
};

use tracing::info;

use crate::yaml;

/// A client for the API server that a kubeconfig names, or for that of the cluster this pod runs in.
/// `master` goes before the kubeconfig's server; alone it is used without credentials, as kube-proxy
/// does. Nothing is sent yet. Must be called within a tokio runtime.
pub async fn client(kubeconfig: Option<&Path>, master: Option<&str>) -> anyhow::Result<Client> {
    let url = master.map(str::parse).transpose().context("--master")?;
    let config = match (kubeconfig, url) {
        (Some(path), url) => {
            let mut config = from_file(path).await?;
            config.cluster_url = url.unwrap_or(config.cluster_url);
            config
        }
        (None, Some(url)) => Config::new(url),
        (None, None) => {
            Config::incluster().context("this is no pod: give --kubeconfig, --master or --manifests")?
        }
    };
    // Without a name and password that somebody may have put into the URL.
    let host = config.cluster_url.host().unwrap_or_default();
    info!(host, port = config.cluster_url.port_u16(), "the API server");
    Client::try_from(config).context("the API server cannot be talked to")
}

async fn from_file(path: &Path) -> anyhow::Result<Config> {
    let named = |error: anyhow::Error| error.context(format!("kubeconfig {}", path.display()));
    let fault = |error| match error {
        KubeconfigError::Parse(error) => anyhow!("kubeconfig {}", yaml::fault(path, &error)),
        KubeconfigError::ReadConfig(source, _) => named(source.into()),
        error => named(error.into()),
    };
    let kubeconfig = Kubeconfig::read_from(path).map_err(fault)?;
    let mut clusters = kubeconfig.clusters.iter().filter_map(|named| named.cluster.as_ref());
    let names_proxy = clusters.any(|cluster| cluster.proxy_url.is_some());
    let mut config =
        Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.map_err(fault)?;
    // kubeadm copies HTTPS_PROXY and NO_PROXY into the DaemonSet. They are about the way out of the cluster; its API
    // server is asked directly.
    if !names_proxy {
        config.proxy_url = None;
    }
    Ok(config)
}
