//! The HTTP servers at configured addresses.

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc};

use service::one_line;
use tokio::sync::watch;

use super::{Pages, keep_listening};
use crate::{
    config::Settings,
    events::{Cause, Outbox},
};

/// What is served, and where, if anywhere.
pub(crate) struct HttpEndpoint {
    what: &'static str,
    address: Option<SocketAddr>,
    /// The Event's cause when the address cannot be bound.
    cause: Cause,
}

impl HttpEndpoint {
    pub(crate) fn health_checks(settings: &Settings) -> Self {
        let address = settings.healthz_bind_address;
        Self { what: "health checks", address, cause: Cause::NO_HEALTH_CHECKS }
    }

    pub(crate) fn metrics(settings: &Settings) -> Self {
        let address = settings.metrics_bind_address;
        Self { what: "metrics", address, cause: Cause::NO_METRICS }
    }
}

/// The endpoints whose address cannot be bound, for `kube-ipvs status`. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct UnboundEndpoints(watch::Sender<BTreeMap<&'static str, String>>);

impl UnboundEndpoints {
    /// One line for each endpoint.
    pub(crate) fn troubles(&self) -> Vec<String> {
        self.0.borrow().values().cloned().collect()
    }

    fn set(&self, what: &'static str, trouble: Option<String>) {
        self.0.send_modify(|all| {
            match trouble {
                Some(trouble) => all.insert(what, trouble),
                None => all.remove(what),
            };
        });
    }
}

/// Serves pages there for ever. If the address cannot be bound, an Event says so; with `hard_fail`
/// (`bindAddressHardFail`) the error is also returned, to end the daemon with.
pub(crate) async fn serve(
    HttpEndpoint { what, address, cause }: HttpEndpoint,
    hard_fail: bool,
    pages: Arc<impl Pages>,
    unbound: &UnboundEndpoints,
    outbox: Option<&Outbox>,
) -> anyhow::Error {
    let failure = keep_listening(what, address, hard_fail, pages, |had| {
        let trouble = had.err().map(|failure| one_line(failure));
        if let (Some(outbox), Some(trouble)) = (outbox, &trouble) {
            outbox.post_about_node(cause, trouble.clone());
        }
        unbound.set(what, trouble);
    })
    .await;
    if let Some(outbox) = outbox {
        // The Event would be lost with the process.
        outbox.empty().await;
    }
    failure.into()
}
