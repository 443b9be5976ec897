//! Binds a configured address, which another program may still have.

use std::{collections::BTreeMap, future, io, net::SocketAddr, sync::Arc, time::Duration};

use nix::errno::Errno;
use service::one_line;
use tokio::{sync::watch, task::JoinSet, time::sleep};
use tracing::{debug, info, warn};

use super::{ConnectionLimit, Pages, listen, serve};
use crate::{
    config::Settings,
    events::{Cause, Outbox},
};

/// The pause before an address that cannot be bound is tried again.
pub(crate) const RETRY: Duration = Duration::from_secs(5);

/// An address cannot be bound.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen at {address} for {what}{}", hint(.source))]
struct CannotListen {
    /// Its purpose in a few words: `health checks`.
    what: &'static str,
    /// The address.
    address: SocketAddr,
    /// The kernel's answer.
    source: io::Error,
}

/// A guess at which program has the port.
fn hint(error: &io::Error) -> &'static str {
    match is_taken(error) {
        true => " (is kube-proxy still running?)",
        false => "",
    }
}

fn is_taken(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::EADDRINUSE as i32)
}

/// Serves pages at an address until the future is dropped. An address that cannot be bound is tried again every five
/// seconds; `report` and the log learn of the first failure and of the success after it. Returns only with `hard_fail`
/// (`bindAddressHardFail`), at the first failure. Without an address nothing is served.
///
/// A terminating pod of kube-proxy keeps the port for some seconds, and traffic must not wait for that.
async fn keep_listening(
    what: &'static str,
    address: Option<SocketAddr>,
    hard_fail: bool,
    pages: Arc<impl Pages>,
    mut report: impl FnMut(Result<(), &CannotListen>),
) -> CannotListen {
    let Some(address) = address else { return future::pending().await };
    let mut reported = false;
    let listener = loop {
        let source = match listen(address) {
            Ok(listener) => break listener,
            Err(source) => source,
        };
        let failure = CannotListen { what, address, source };
        let reason = &failure.source;
        if reported {
            debug!(%reason, "{failure}");
        } else {
            reported = true;
            report(Err(&failure));
            if hard_fail {
                return failure;
            }
            warn!(%reason, "{failure}; it is tried again every {} seconds", RETRY.as_secs());
        }
        sleep(RETRY).await;
    };
    if reported {
        report(Ok(()));
        info!(%address, "now listening for {what}");
    }
    // On a task of its own: the awaiting task may be busy with ten thousand Services, and a probe waits only a
    // second.
    let mut server = JoinSet::new();
    server.spawn(serve(listener, pages, ConnectionLimit::default()));
    match server.join_next().await {
        Some(Ok(never)) => match never {},
        // It ends only with the runtime.
        Some(Err(_)) | None => future::pending().await,
    }
}

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
    /// The troubles, one line for each endpoint.
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
pub(crate) async fn serve_endpoint(
    HttpEndpoint { what, address, cause }: HttpEndpoint,
    hard_fail: bool,
    pages: Arc<impl Pages>,
    unbound: &UnboundEndpoints,
    outbox: &Outbox,
) -> anyhow::Error {
    let failure = keep_listening(what, address, hard_fail, pages, |had| {
        let trouble = had.err().map(|failure| one_line(failure));
        if let Some(trouble) = &trouble {
            outbox.post_about_node(cause, trouble.clone());
        }
        unbound.set(what, trouble);
    })
    .await;
    // The Event would be lost with the process.
    outbox.empty().await;
    failure.into()
}

#[cfg(test)]
mod tests {
    use std::{
        cell::RefCell,
        net::{Ipv4Addr, TcpListener, TcpStream},
    };

    use ::http::Method;
    use tokio::{
        select,
        time::{Instant, timeout},
    };

    use super::*;
    use crate::serve::http::{Page, not_found};

    struct Nothing;

    impl Pages for Nothing {
        fn page(&self, _: &Method, _: &str) -> Page {
            not_found()
        }
    }

    fn taken() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    #[tokio::test(start_paused = true)]
    async fn a_taken_port_is_logged_once_and_served_when_it_is_free_which_is_logged_too() {
        let (taken, address) = taken();
        let reports = RefCell::new(Vec::new());
        let report =
            |had: Result<(), &CannotListen>| reports.borrow_mut().push(had.map_err(ToString::to_string));
        let serving = keep_listening("health checks", Some(address), false, Arc::new(Nothing), report);
        let client = async {
            sleep(RETRY * 10).await;
            drop(taken);
            let freed = Instant::now();
            while TcpStream::connect(address).is_err() {
                sleep(RETRY / 10).await;
            }
            freed.elapsed()
        };
        let waited = select! {
            failure = serving => panic!("{failure}"),
            waited = client => waited,
        };
        assert!(waited <= RETRY * 2, "{waited:?}");
        let expected = format!("cannot listen at {address} for health checks (is kube-proxy still running?)");
        assert_eq!(*reports.borrow(), [Err(expected), Ok(())]);
    }

    #[tokio::test(start_paused = true)]
    async fn taken_port_with_hard_fail_is_reported_and_ends_the_daemon() {
        let (_taken, address) = taken();
        let reports = RefCell::new(0);
        let serving =
            keep_listening("metrics", Some(address), true, Arc::new(Nothing), |_| *reports.borrow_mut() += 1);
        let failure = timeout(RETRY, serving).await.unwrap();
        assert_eq!(*reports.borrow(), 1);
        assert!(is_taken(&failure.source), "{failure:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn another_failure_is_not_blamed_on_kube_proxy() {
        // TEST-NET-1 (RFC 5737), which this machine does not have.
        let nowhere = SocketAddr::from(([192, 0, 2, 1], 10_256));
        let failure = keep_listening("metrics", Some(nowhere), true, Arc::new(Nothing), |_| {}).await;
        assert_eq!(failure.to_string(), "cannot listen at 192.0.2.1:10256 for metrics");
    }

    #[tokio::test(start_paused = true)]
    async fn without_an_address_nothing_is_shown_and_nothing_fails() {
        let serving = keep_listening("metrics", None, true, Arc::new(Nothing), |_| {});
        assert!(timeout(RETRY * 10, serving).await.is_err());
    }
}
