//! Time is tokio's, and stands still but for `advance`.

use std::{path::Path, time::SystemTime};

use ::http::header;
use reconciler::{FailureKind, ObjectKind, Programmed, Subsystem, SyncReport, SyncStats, Trigger};
use serde_json::Value;
use service::{Event, Node, Options, State};
use tokio::time::advance;

use super::*;
use crate::serve::metrics::Metrics;

const PERIOD: Duration = Duration::from_secs(30);
const TOO_LONG: Duration = Duration::from_secs(60);
const MOMENT: Duration = Duration::from_millis(1);

/// A proxy, and what happens to it.
struct Proxy(Health);

impl Proxy {
    fn new(node: UnknownNode) -> Self {
        Self(Health::new(Family::BOTH.into(), PERIOD, node))
    }

    /// One that has its node, and its first sync behind it.
    fn running() -> Self {
        let proxy = Self::new(UnknownNode::NotEligible);
        proxy.0.on_change(&node(false));
        proxy.takes_in(false);
        proxy.syncs(true);
        proxy
    }

    /// The writer thread takes in what was sent.
    fn takes_in(&self, waits: bool) {
        self.takes_in_together(1, waits);
    }

    /// This many changes became one while they waited.
    fn takes_in_together(&self, changes: usize, waits: bool) {
        self.0.clone().on_change_applied(ChangeEvent {
            kind: ObjectKind::Services,
            objects: 1,
            changes,
            waits,
        });
    }

    /// A sync ends, of which one operation was refused.
    fn syncs(&self, complete: bool) {
        self.syncs_but_for(complete, 1);
    }

    /// A sync ends, of which this many operations were refused.
    fn syncs_but_for(&self, complete: bool, failed: usize) {
        let failures = vec!["refused".to_owned(); failed];
        let report = SyncReport { full: complete, failures, failed, ..SyncReport::empty(Trigger::Change) };
        let state = State::new(Options::new("node"));
        let sync = SyncEvent {
            report: &report,
            stats: &SyncStats { programmed: Some(Programmed::default()), ..SyncStats::default() },
            complete,
            state: &state,
            triggered_at: &[],
        };
        self.0.clone().on_sync(&sync);
    }

    /// A sync ends, after which the kernel still lacks this many virtual servers that it had.
    fn syncs_without(&self, lost_virtual_servers: usize, complete: bool) {
        let report = SyncReport { full: true, failed: 1, ..SyncReport::empty(Trigger::VirtualServerLost) };
        let failures = [((Subsystem::Ipvs, FailureKind::Refused), 1)].into();
        let state = State::new(Options::new("node"));
        let stats = SyncStats { failures, lost_virtual_servers, ..SyncStats::default() };
        let sync = SyncEvent { report: &report, stats: &stats, complete, state: &state, triggered_at: &[] };
        self.0.clone().on_sync(&sync);
    }

    fn changes(&self) {
        self.0.on_change(&Change::Services(Event::Replace(Vec::new())));
        self.takes_in(true);
    }

    fn ask(&self, path: &str) -> (u16, Value) {
        let page = self.0.page(&Method::GET, path);
        (page.status().as_u16(), serde_json::from_str(page.body()).unwrap_or_default())
    }

    fn metrics(&self) -> Metrics {
        Metrics::new(&BTreeSet::new(), SystemTime::now(), &self.0, [], None, Path::new("/"))
    }

    /// The answers of `/healthz` and of `/livez`.
    fn answers(&self) -> (u16, u16) {
        (self.ask("/healthz").0, self.ask("/livez").0)
    }
}

fn node(leaving: bool) -> Change {
    Change::Node(Some(Node { leaving, ..Node::default() }))
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_unknown_leaves_or_is_gone_gets_no_traffic_and_its_proxy_lives() {
    let proxy = Proxy::new(UnknownNode::NotEligible);
    assert_eq!(proxy.answers(), (503, 200), "not known yet");
    for (change, answers) in [
        (node(false), (200, 200)),
        (node(true), (503, 200)),
        (node(false), (200, 200)),
        (Change::Node(None), (503, 200)),
        (Change::Services(Event::Replace(Vec::new())), (503, 200)),
    ] {
        proxy.0.on_change(&change);
        assert_eq!(proxy.answers(), answers, "{change:?}");
    }
    assert_eq!(Proxy::new(UnknownNode::Eligible).answers(), (200, 200), "no Node will ever arrive");
}

#[tokio::test(start_paused = true)]
async fn change_unsynced_for_two_periods_is_unhealthy_until_the_sync() {
    let proxy = Proxy::running();
    advance(TOO_LONG * 10).await;
    assert_eq!(proxy.answers(), (200, 200), "nothing has changed");
    proxy.changes();
    advance(PERIOD).await;
    proxy.changes();
    advance(PERIOD.saturating_sub(MOMENT)).await;
    assert_eq!(proxy.answers(), (200, 200));
    advance(MOMENT).await;
    assert_eq!(proxy.answers(), (503, 503), "the first change counts");
    proxy.syncs(false);
    assert_eq!(proxy.answers(), (503, 503), "the kernel could not be read");
    proxy.syncs(true);
    assert_eq!(proxy.answers(), (200, 200), "one refused operation is not a reason");
}

#[tokio::test(start_paused = true)]
async fn a_first_sync_may_take_as_long_as_it_takes() {
    let proxy = Proxy::new(UnknownNode::Eligible);
    // The API server does not answer.
    advance(TOO_LONG * 10).await;
    assert_eq!(proxy.answers(), (200, 200));
    proxy.changes();
    // Meanwhile there is one more change, which is not applied.
    proxy.0.on_change(&node(false));
    advance(TOO_LONG * 10).await;
    assert_eq!(proxy.answers(), (200, 200));
    proxy.syncs(true);
    assert_eq!(proxy.answers(), (200, 200), "that change has been waiting for a moment only");
    proxy.takes_in(false);
    advance(TOO_LONG).await;
    assert_eq!(proxy.answers(), (200, 200));
}

#[tokio::test(start_paused = true)]
async fn a_proxy_is_ready_once_nothing_was_refused_for_as_long_as_it_works() {
    let proxy = Proxy::new(UnknownNode::NotEligible);
    let ready = || proxy.ask("/readyz").0;
    assert_eq!(ready(), 503, "the API server has said nothing");
    proxy.changes();
    assert_eq!(ready(), 503, "nothing is programmed");
    proxy.syncs(false);
    assert_eq!(ready(), 503, "the kernel could not be read");
    proxy.syncs_but_for(true, 1);
    assert_eq!(ready(), 503, "one operation was refused");
    proxy.syncs_but_for(true, 0);
    assert_eq!(ready(), 200, "whatever becomes of the Node: load balancers ask /healthz");
    proxy.syncs_but_for(true, 1);
    assert_eq!(ready(), 200, "what is refused later is retried, and in the status");
    advance(TOO_LONG * 10).await;
    assert_eq!(ready(), 200, "nothing has changed");
    proxy.changes();
    advance(TOO_LONG).await;
    assert_eq!((ready(), proxy.answers()), (503, (503, 503)));
    let (_, said) = Proxy::new(UnknownNode::Eligible).ask("/readyz");
    assert_eq!((&said["healthy"], &said["lastUpdated"]), (&false.into(), &"0001-01-01T00:00:00Z".into()));
}

#[tokio::test(start_paused = true)]
async fn a_proxy_that_lost_its_virtual_servers_is_ready_again_when_they_are_there() {
    let proxy = Proxy::running();
    proxy.syncs_but_for(true, 0);
    let answers = || (proxy.ask("/readyz").0, proxy.answers());
    proxy.0.clone().on_loss();
    assert_eq!(
        answers(),
        (503, (200, 200)),
        "a restart would not help, nor would another node's load balancer"
    );
    proxy.syncs_without(2, false);
    assert_eq!(answers().0, 503, "IPVS could not be read");
    proxy.syncs_without(1, true);
    assert_eq!(answers().0, 503, "one of them was refused");
    proxy.syncs_without(0, true);
    assert_eq!(answers(), (200, (200, 200)), "what else IPVS refuses it refused before");
}

#[tokio::test(start_paused = true)]
async fn a_kernel_that_could_never_be_read_makes_the_proxy_unhealthy() {
    let proxy = Proxy::new(UnknownNode::Eligible);
    proxy.changes();
    advance(TOO_LONG).await;
    proxy.syncs(false);
    assert_eq!(proxy.answers(), (200, 200), "it counts from the failure");
    advance(PERIOD).await;
    proxy.syncs(false);
    advance(PERIOD).await;
    assert_eq!(proxy.answers(), (503, 503));
    let (_, answer) = proxy.ask("/livez");
    assert_eq!(answer["lastUpdated"], "0001-01-01T00:00:00Z", "never, as Go has it");
}

#[tokio::test(start_paused = true)]
async fn hanging_writer_thread_is_noticed_by_the_changes_it_does_not_take() {
    let proxy = Proxy::running();
    for _ in 0..10 {
        proxy.0.on_change(&node(false));
    }
    for _ in 0..9 {
        advance(PERIOD).await;
        proxy.takes_in(false);
        assert_eq!(proxy.answers(), (200, 200), "slow, but it goes on");
    }
    advance(TOO_LONG).await;
    assert_eq!(proxy.answers(), (503, 503));
    proxy.takes_in(false);
    assert_eq!(proxy.answers(), (200, 200));
}

#[tokio::test(start_paused = true)]
async fn a_long_sync_is_not_a_fault_if_all_changes_were_taken_before_it() {
    let proxy = Proxy::running();
    for _ in 0..3 {
        proxy.0.on_change(&node(false));
    }
    proxy.takes_in_together(3, false);
    advance(TOO_LONG).await;
    assert_eq!(proxy.answers(), (200, 200));
}

#[tokio::test(start_paused = true)]
async fn the_answers_have_the_fields_and_the_order_of_kube_proxys() {
    let proxy = Proxy::running();
    let time = Timestamp::now().to_string();
    let masked = |path| {
        let page = proxy.0.page(&Method::PUT, path);
        let headers = page.headers();
        assert_eq!(headers[header::CONTENT_TYPE], "application/json");
        assert_eq!(headers[header::X_CONTENT_TYPE_OPTIONS], "nosniff");
        // The times, of which all begin with this century.
        let parts: Vec<_> = page.body().split('"').collect();
        let times =
            parts.iter().filter(|part| part.starts_with(time.get(..2).unwrap()) && part.ends_with('Z'));
        assert_eq!(times.clone().count(), 4, "{parts:?}");
        assert!(times.clone().all(|time| time.parse::<Timestamp>().is_ok()), "{parts:?}");
        parts.iter().map(|part| if part.ends_with('Z') { "T" } else { part }).collect::<Vec<_>>().join("'")
    };
    let status =
        "'status':{'IPv4':{'lastUpdated':'T','healthy':true},'IPv6':{'lastUpdated':'T','healthy':true}}}";
    assert_eq!(
        masked("/healthz"),
        format!("{{'lastUpdated':'T','currentTime':'T','nodeEligible':true,'healthy':true,{status}")
    );
    assert_eq!(masked("/livez"), format!("{{'lastUpdated':'T','currentTime':'T','healthy':true,{status}"));
}

#[tokio::test(start_paused = true)]
async fn a_good_answer_is_up_to_date_and_a_bad_one_says_when_the_last_sync_was() {
    let proxy = Proxy::running();
    let (_, good) = proxy.ask("/healthz");
    assert_eq!(good["lastUpdated"], good["currentTime"]);
    proxy.0.on_change(&node(true));
    let (_, bad) = proxy.ask("/healthz");
    assert_eq!(bad["lastUpdated"], good["status"]["IPv4"]["lastUpdated"]);
    assert_eq!((&bad["nodeEligible"], &bad["healthy"]), (&Value::Bool(false), &Value::Bool(true)));
}

#[tokio::test(start_paused = true)]
async fn answers_are_counted_by_page_and_code_and_other_pages_do_not_exist() {
    let proxy = Proxy::new(UnknownNode::NotEligible);
    let ask = |path| proxy.ask(path).0;
    assert_eq!(["/livez", "/healthz", "/healthz"].map(ask), [200, 503, 503]);
    assert_eq!(["/", "/healthz/", "/metrics"].map(ask), [404; 3]);
    proxy.0.on_change(&node(false));
    assert_eq!(ask("/healthz"), 200);
    let metrics = proxy.metrics().text();
    for (page, code, count) in
        [("healthz", 200, 1), ("healthz", 503, 2), ("livez", 200, 1), ("livez", 503, 0)]
    {
        let line = format!("kubeproxy_proxy_{page}_total{{code=\"{code}\"}} {count}\n");
        assert!(metrics.contains(&line), "{line} is not in\n{metrics}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_metric_says_what_livez_would_even_if_livez_is_not_asked() {
    let proxy = Proxy::running();
    let metrics = proxy.metrics();
    let says = |value| metrics.text().contains(&format!("\nkube_ipvs_healthy {value}\n"));
    proxy.changes();
    assert!(says(1));
    advance(TOO_LONG).await;
    assert!(says(0));
    proxy.syncs(true);
    assert!(says(1));
    assert!(metrics.text().contains("kubeproxy_proxy_livez_total{code=\"503\"} 0\n"));
}
