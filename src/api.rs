//! The way to the API server.

use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, ensure};
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig, KubeconfigError},
};

use tracing::info;

use crate::yaml;

/// An API server, and the way to it.
pub struct Server {
    /// Its host and port.
    pub address: String,
    /// Nothing has been sent yet.
    pub client: Client,
}

/// The API server that a kubeconfig names, or that of the cluster this pod runs in.
/// `master` goes before the kubeconfig's server; alone it is used without credentials, as kube-proxy
/// does. Must be called within a tokio runtime.
pub async fn server(kubeconfig: Option<&Path>, master: Option<&str>) -> anyhow::Result<Server> {
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
    // Half a file is none: without a certificate nobody would be trusted.
    ensure!(
        config.root_cert.as_ref().is_none_or(|authority| !authority.is_empty()),
        "the certificate authority of the API server has no certificate"
    );
    // Without a name and password that somebody may have put into the URL.
    let host = config.cluster_url.host().unwrap_or_default();
    let port = config.cluster_url.port_u16();
    info!(host, port, "the API server");
    let address = port.map_or(host.to_owned(), |port| format!("{host}:{port}"));
    let client = Client::try_from(config).context("the API server cannot be talked to")?;
    Ok(Server { address, client })
}

/// The certificate authority that a pod is given.
const AUTHORITY_OF_POD: &str = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt";

/// The files that a client is made of; one that cannot be read names no others.
pub fn files(kubeconfig: Option<&Path>, master: Option<&str>) -> Vec<PathBuf> {
    let Some(path) = kubeconfig else {
        return if master.is_some() { Vec::new() } else { vec![AUTHORITY_OF_POD.into()] };
    };
    let named = Kubeconfig::read_from(path).unwrap_or_default();
    let clusters = named.clusters.into_iter().filter_map(|named| named.cluster);
    let users = named.auth_infos.into_iter().filter_map(|named| named.auth_info);
    let authorities = clusters.filter_map(|cluster| cluster.certificate_authority);
    let own = users.flat_map(|user| [user.client_certificate, user.client_key]).flatten();
    [path.to_owned()].into_iter().chain(authorities.chain(own).map(PathBuf::from)).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_are_the_kubeconfig_and_those_that_it_names_but_for_the_token() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kubeconfig");
        let kubeconfig = serde_json::json!({
            "clusters": [{"name": "c", "cluster": {"server": "https://c", "certificate-authority": "ca.crt"}}],
            "users": [
                {"name": "u", "user": {"client-certificate": "u.crt", "client-key": "/keys/u.key"}},
                {"name": "t", "user": {"tokenFile": "/token"}},
            ],
        });
        std::fs::write(&path, kubeconfig.to_string()).unwrap();
        let beside = |name: &str| directory.path().join(name);
        let named = [path.clone(), beside("ca.crt"), beside("u.crt"), "/keys/u.key".into()];
        assert_eq!(files(Some(&path), Some("https://elsewhere")), named);
        assert_eq!(files(Some(&beside("missing")), None), [beside("missing")]);
        assert_eq!(files(None, None), [PathBuf::from(AUTHORITY_OF_POD)]);
        assert!(files(None, Some("http://127.0.0.1:8080")).is_empty());
    }
}
