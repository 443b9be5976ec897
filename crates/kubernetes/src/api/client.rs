//! The client of the API server: one connection for everything, where the server has HTTP/2.

use std::time::Duration;

use http::Request;
use http_body_util::Limited;
use hyper_rustls::{FixedServerNameResolver, HttpsConnectorBuilder};
use hyper_timeout::TimeoutConnector;
use hyper_util::{
    client::legacy::{Client as HttpClient, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use kube::{
    Client, Config,
    client::{Body, ClientBuilder, ConfigExt as _},
};
use tower::{
    BoxError, service_fn,
    util::{MapErrLayer, option_layer},
};
use tower_http::decompression::DecompressionLayer;

use super::encoding::LONGEST;

/// Why a client cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] kube::Error),
    /// The expected name of the server's certificate is not a host name.
    #[error("invalid tls-server-name {0:?}: expected a host name")]
    ServerName(String),
}

/// When a quiet connection is tested, and how long the answer may take, as in client-go (`configureTransport` of
/// k8s.io/apimachinery/pkg/util/net): one that is dead is noticed within 45 seconds.
const QUIET: Duration = Duration::from_secs(30);
const ANSWER: Duration = Duration::from_secs(15);

/// How much of a list the server may send before it is read, in bytes: a list is read as it comes in, and what waits
/// would take memory that is never needed again.
const LIST_AHEAD: u32 = 256 * 1024;

/// Makes the client of a configuration, without sending anything.
///
/// kube's own client has only HTTP/1.1, in which each watch takes a connection.
pub fn client(config: &Config) -> Result<Client, ClientError> {
    if config.proxy_url.is_some() {
        return Ok(Client::try_from(config.clone())?);
    }
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    let mut https =
        HttpsConnectorBuilder::new().with_tls_config(config.rustls_client_config()?).https_or_http();
    if let Some(name) = &config.tls_server_name {
        let known = name.clone().try_into().map_err(|_| ClientError::ServerName(name.clone()))?;
        https = https.with_server_name_resolver(FixedServerNameResolver::new(known));
    }
    let mut connector = TimeoutConnector::new(https.enable_all_versions().wrap_connector(tcp));
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    let http: HttpClient<_, Body> = HttpClient::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .http2_keep_alive_interval(QUIET)
        .http2_keep_alive_timeout(ANSWER)
        .http2_keep_alive_while_idle(true)
        .http2_initial_stream_window_size(LIST_AHEAD)
        .build(connector);
    let client = ClientBuilder::new(http, config.default_namespace.clone())
        .with_layer(&config.base_uri_layer())
        .with_layer(&DecompressionLayer::new().gzip(!config.disable_compression))
        .with_layer(&MapErrLayer::new(BoxError::from))
        .with_layer(&option_layer(config.auth_layer()?))
        .with_layer(&config.extra_headers_layer()?);
    Ok(client.build())
}

/// The same client for requests about single objects, whose answers kube keeps whole: one of more than 16 MiB,
/// uncompressed, is an error.
pub fn for_single_objects(client: &Client) -> Client {
    let (inner, namespace) = (client.clone(), client.default_namespace().to_owned());
    let send = move |request: Request<Body>| {
        let inner = inner.clone();
        async move { inner.send(request).await.map(|answer| answer.map(|body| Limited::new(body, LONGEST))) }
    };
    Client::new(service_fn(send), namespace)
}
