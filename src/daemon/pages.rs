//! The pages at addresses that the operator chose.

use std::{net::SocketAddr, sync::Arc};

use crate::{
    config::Settings,
    events::{Cause, Outbox},
    http::{Pages, keep_listening},
};

/// Shows pages at an address, if there is one, for ever. Where it cannot be had an Event of this cause says so; with
/// `bindAddressHardFail` that is also what is returned, for the daemon to end with.
pub(super) async fn show(
    (what, cause): (&'static str, Cause),
    address: Option<SocketAddr>,
    settings: &Settings,
    pages: Arc<impl Pages>,
    outbox: Option<&Outbox>,
) -> anyhow::Error {
    let tell = |text: String| {
        if let Some(outbox) = outbox {
            outbox.post_of_proxy(cause, text);
        }
    };
    let hard_fail = settings.bind_address_hard_fail;
    let failure = keep_listening(what, address, hard_fail, pages, |failure| {
        tell(format!("{failure}: {}", failure.source));
    })
    .await;
    if let Some(outbox) = outbox {
        // It would go with the process.
        outbox.empty().await;
    }
    failure.into()
}
