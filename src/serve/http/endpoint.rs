//! The pages at addresses that the operator chose.

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc};

use service::one_line;
use tokio::sync::watch;

use super::{Pages, keep_listening};
use crate::{
    config::Settings,
    events::{Cause, Outbox},
};

/// Where something is shown, if anywhere.
pub(crate) struct HttpEndpoint {
    what: &'static str,
    address: Option<SocketAddr>,
    /// Of the Event when the address cannot be had.
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

/// What cannot be shown as long as its address cannot be had, for whoever asks how things stand. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct UnboundEndpoints(watch::Sender<BTreeMap<&'static str, String>>);

impl UnboundEndpoints {
    /// One line for each.
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

/// Shows pages there for ever. Where the address cannot be had an Event says so; with `hard_fail`
/// (`bindAddressHardFail`) that is also what is returned, for the daemon to end with.
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
        // It would go with the process.
        outbox.empty().await;
    }
    failure.into()
}
