//! The client of the API server.

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, anyhow, ensure};
use http::Uri;
use kube::{
    Client, Config,
    config::{AuthInfo, KubeConfigOptions, Kubeconfig, KubeconfigError},
};

use tokio::{net::lookup_host, time::timeout};
use tracing::debug;

use crate::config::file;

/// An API server and its client.
pub struct Server {
    /// Its host and port.
    pub address: String,
    host: String,
    port: u16,
    /// The client, which has not sent anything yet.
    pub client: Client,
}

/// The API server that a kubeconfig names, or that of the cluster this pod runs in. `master`, a URL or a host, takes
/// precedence over the kubeconfig's server; alone it is used without credentials, as kube-proxy does. Must be called
/// within a tokio runtime.
pub async fn server(kubeconfig: Option<&Path>, master: Option<&str>) -> anyhow::Result<Server> {
    let config = match (kubeconfig, master) {
        (Some(path), master) => directed(from_file(path).await?, master)?,
        (None, Some(master)) => Config::new(url(master, false)?),
        (None, None) => {
            Config::incluster().context("not in a pod: give --kubeconfig, --master or --manifests")?
        }
    };
    // A file that is half written: without a certificate no server would be trusted.
    ensure!(
        config.root_cert.as_ref().is_none_or(|authority| !authority.is_empty()),
        "the certificate authority of the API server has no certificate"
    );
    // Without a name and password that the URL may have.
    let host = config.cluster_url.host().unwrap_or_default();
    let port = config.cluster_url.port_u16();
    let address = port.map_or(host.to_owned(), |port| format!("{host}:{port}"));
    let client = kubernetes::api::client(&config).context("cannot create a client for the API server")?;
    let is_plain = config.cluster_url.scheme_str() == Some("http");
    let port = port.unwrap_or(if is_plain { 80 } else { 443 });
    // An IPv6 address has brackets in a URL.
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    Ok(Server { address, host, port, client })
}

impl Server {
    /// The addresses that its host has now; none if a name cannot be resolved.
    pub(crate) async fn addresses(&self) -> BTreeSet<SocketAddr> {
        match timeout(RESOLVER_PATIENCE, lookup_host((&*self.host, self.port))).await {
            Ok(Ok(addresses)) => addresses.collect(),
            Ok(Err(error)) => {
                debug!("the API server's name {} cannot be resolved: {error}", self.host);
                BTreeSet::new()
            }
            Err(_) => BTreeSet::new(),
        }
    }
}

/// For how long a start waits for the address of the API server's name.
const RESOLVER_PATIENCE: Duration = Duration::from_secs(5);

/// The configuration of a kubeconfig, directed to the `master` if there is one.
fn directed(mut config: Config, master: Option<&str>) -> anyhow::Result<Config> {
    if let Some(master) = master {
        config.cluster_url = url(master, has_tls(&config))?;
    }
    // Without TLS the credentials could be read on the way. client-go keeps them back too (`ClientConfig` in
    // tools/clientcmd/client_config.go).
    if config.cluster_url.scheme_str() == Some("http") {
        config.auth_info = AuthInfo::default();
    }
    Ok(config)
}

/// `--master` as a URL. Without a scheme it is HTTPS if there is `tls` for it, and HTTP otherwise.
fn url(master: &str, tls: bool) -> anyhow::Result<Uri> {
    let scheme = match (master.contains("://"), tls) {
        (true, _) => "",
        (false, true) => "https://",
        (false, false) => "http://",
    };
    format!("{scheme}{master}").parse().context("--master")
}

/// Whether a kubeconfig has anything for TLS, as client-go sees it (`DefaultServerUrlFor` in rest/url_utils.go).
fn has_tls(config: &Config) -> bool {
    let own = &config.auth_info;
    let has_certificate = own.client_certificate.is_some() || own.client_certificate_data.is_some();
    config.root_cert.is_some() || has_certificate || config.accept_invalid_certs
}

/// The certificate authority in a pod.
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
        KubeconfigError::Parse(error) => anyhow!("kubeconfig {}", file::fault(path, &error)),
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
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn the_files_are_the_kubeconfig_and_those_that_it_names_but_for_the_token() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kubeconfig");
        let kubeconfig = json!({
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

    /// A certificate without content, in PEM and base64.
    const CERTIFICATE: &str =
        "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCk1BQT0KLS0tLS1FTkQgQ0VSVElGSUNBVEUtLS0tLQo=";

    /// What is asked with this master and a kubeconfig with this cluster, and whether the request has the user's token.
    async fn asked(master: Option<&str>, cluster: Value, mut user: Value) -> (String, bool) {
        user["token"] = "secret".into();
        let kubeconfig = json!({
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": user}],
        });
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), kubeconfig.to_string()).unwrap();
        let config = directed(from_file(file.path()).await.unwrap(), master).unwrap();
        (config.cluster_url.to_string(), config.auth_info.token.is_some())
    }

    #[tokio::test]
    async fn a_master_without_a_scheme_is_asked_by_https_where_the_kubeconfig_has_tls() {
        let server = "https://10.0.0.9:6443";
        let plain = json!({"server": server});
        let insecure = json!({"server": server, "insecure-skip-tls-verify": true});
        let trusting = json!({"server": server, "certificate-authority-data": CERTIFICATE});
        let certified = json!({"client-certificate-data": CERTIFICATE});
        for master in ["10.0.0.1:6443", "10.0.0.1:6443/"] {
            for (cluster, user) in [(&plain, &certified), (&insecure, &json!({})), (&trusting, &json!({}))] {
                let asked = asked(Some(master), cluster.clone(), user.clone()).await;
                assert_eq!(asked, ("https://10.0.0.1:6443/".to_owned(), true), "{cluster} {user}");
            }
            let asked = asked(Some(master), plain.clone(), json!({})).await;
            assert_eq!(asked, ("http://10.0.0.1:6443/".to_owned(), false));
        }
        assert_eq!(url("[fd00::1]:6443", false).unwrap(), "http://[fd00::1]:6443/");
    }

    #[tokio::test]
    async fn a_server_s_scheme_is_kept_and_by_http_no_token_is_sent() {
        let trusting = |server| json!({"server": server, "certificate-authority-data": CERTIFICATE});
        let (secure, plain) = ("https://10.0.0.9:6443/", "http://10.0.0.9:8080/prefix");
        assert_eq!(asked(None, trusting(secure), json!({})).await, (secure.to_owned(), true));
        assert_eq!(asked(None, trusting(plain), json!({})).await, (plain.to_owned(), false));
        assert_eq!(asked(Some(secure), trusting(plain), json!({})).await, (secure.to_owned(), true));
        assert_eq!(asked(Some(plain), trusting(secure), json!({})).await, (plain.to_owned(), false));
    }
}
