//! The pages at addresses that the operator chose.

use std::{net::SocketAddr, sync::Arc};

use crate::{
    config::Settings,
    events::{Cause, Outbox},
    http::{Pages, keep_listening},
};

/// Where something is shown, if anywhere.
pub(super) struct Place {
    what: &'static str,
    address: Option<SocketAddr>,
    /// Of the Event when the address cannot be had.
    not_had: Cause,
}

impl Place {
    pub(super) fn health_checks(settings: &Settings) -> Self {
        let address = settings.healthz_bind_address;
        Self { what: "health checks", address, not_had: Cause::NO_HEALTH_CHECKS }
    }

    pub(super) fn metrics(settings: &Settings) -> Self {
        let address = settings.metrics_bind_address;
        Self { what: "metrics", address, not_had: Cause::NO_METRICS }
    }
}

/// Shows pages there for ever. Where the address cannot be had an Event says so; with `hard_fail`
/// (`bindAddressHardFail`) that is also what is returned, for the daemon to end with.
pub(super) async fn show(
    Place { what, address, not_had }: Place,
    hard_fail: bool,
    pages: Arc<impl Pages>,
    outbox: Option<&Outbox>,
) -> anyhow::Error {
    let failure = keep_listening(what, address, hard_fail, pages, |failure| {
        if let Some(outbox) = outbox {
            outbox.post_about_node(not_had, format!("{failure}: {}", failure.source));
        }
    })
    .await;
    if let Some(outbox) = outbox {
        // It would go with the process.
        outbox.empty().await;
    }
    failure.into()
}
