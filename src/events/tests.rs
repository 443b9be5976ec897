//! Against an API server that knows some Services. Time is tokio's, which jumps ahead whenever everybody
//! waits.

use std::{convert::Infallible, sync::Mutex};

use http::{Method, Request, Response, StatusCode};
use ipvs::{Protocol, ServiceAddress};
use kube::client::Body;
use reconciler::{Reason, SyncStats, Trigger};
use serde_json::{Value, json};
use service::{Options, State};

use tokio::time::sleep;

use super::*;
use crate::finding;

/// Tells an observer of a sync that did all it should.
pub(crate) fn synced(observer: &mut impl Observer, report: &SyncReport) {
    observer.on_sync(&SyncEvent {
        report,
        stats: &SyncStats::default(),
        complete: true,
        state: &State::new(Options::new("node-1")),
        triggered_at: &[],
    });
}

/// What it does when an Event is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mood {
    Takes,
    HasIt,
    Refuses,
    IsBusy,
    KeepsSilent,
}

/// The API server: all Services in the namespace shop but the one that is gone, and the Events that it was
/// sent.
#[derive(Clone)]
pub(crate) struct Server {
    mood: Arc<Mutex<Mood>>,
    sent: Arc<Mutex<Vec<Value>>>,
}

impl Server {
    fn new(mood: Mood) -> Self {
        Self { mood: Arc::new(Mutex::new(mood)), sent: Arc::default() }
    }

    /// One that takes every Event.
    pub(crate) fn taking() -> Self {
        Self::new(Mood::Takes)
    }

    pub(crate) fn queue(&self) -> (Outbox, Publisher) {
        self.queue_of("node-1")
    }

    fn queue_of(&self, node: &str) -> (Outbox, Publisher) {
        let server = self.clone();
        let service = tower::service_fn(move |request| server.clone().answer(request));
        queue(Client::new(service, "default"), node)
    }

    async fn answer(self, request: Request<Body>) -> Result<Response<Body>, Infallible> {
        let uri = request.uri().to_string();
        if request.method() == Method::GET {
            let query = uri.strip_prefix("/api/v1/namespaces/shop/services?").unwrap();
            let name =
                query.split('&').find_map(|field| field.strip_prefix("fieldSelector=metadata.name%3D"));
            let items: Vec<_> = name
                .filter(|name| *name != "gone")
                .map(|name| json!({"metadata": {"namespace": "shop", "name": name, "uid": format!("u-{name}")}}))
                .into_iter()
                .collect();
            return Ok(response(StatusCode::OK, &json!({"metadata": {}, "items": items})));
        }
        assert_eq!(request.method(), Method::POST);
        let body = request.into_body().collect_bytes().await.unwrap();
        let event: Value = serde_json::from_slice(&body).unwrap();
        let namespace = event["metadata"]["namespace"].as_str().unwrap();
        assert_eq!(uri, format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events?"));
        self.sent.lock().unwrap().push(event.clone());
        let refusal = |code: u16, reason: &str| json!({"kind": "Status", "status": "Failure", "message": "no", "reason": reason, "code": code});
        let mood = *self.mood.lock().unwrap();
        Ok(match mood {
            Mood::Takes => response(StatusCode::CREATED, &event),
            Mood::HasIt => response(StatusCode::CONFLICT, &refusal(409, "AlreadyExists")),
            Mood::Refuses => response(StatusCode::FORBIDDEN, &refusal(403, "Forbidden")),
            Mood::IsBusy => response(StatusCode::TOO_MANY_REQUESTS, &refusal(429, "TooManyRequests")),
            Mood::KeepsSilent => future::pending().await,
        })
    }

    fn becomes(&self, mood: Mood) {
        *self.mood.lock().unwrap() = mood;
    }

    /// What it was sent, and has not been asked for yet.
    pub(crate) fn events(&self) -> Vec<Value> {
        self.sent.lock().unwrap().drain(..).collect()
    }

    /// The same, the texts alone.
    fn notes(&self) -> Vec<String> {
        self.events().iter().map(|event| event["note"].as_str().unwrap().to_owned()).collect()
    }
}

/// An API server in this mood, and where notices are left that are published there.
fn published(mood: Mood) -> (Server, Outbox) {
    let server = Server::new(mood);
    let (outbox, publisher) = server.queue();
    tokio::spawn(publisher.run());
    (server, outbox)
}

/// Long enough for what is due to be said, by whatever node.
const SOON: Duration = Duration::from_secs(35);

fn response(status: StatusCode, body: &Value) -> Response<Body> {
    Response::builder().status(status).body(Body::from(body.to_string().into_bytes())).unwrap()
}

fn notice(service: &str, text: &str) -> Notice {
    Notice { service: ObjectName::new("shop", service), reason: Reason::AddressTaken, text: text.to_owned() }
}

fn text(service: &str, text: &str) -> EventText {
    text_in("shop", service, text)
}

fn text_in(namespace: &str, service: &str, text: &str) -> EventText {
    let service = ObjectName::new(namespace, service);
    let topic = (Regarding::Service(service), Cause::for_notice(Reason::AddressTaken));
    EventText { topic, text: text.to_owned() }
}

#[tokio::test(start_paused = true)]
async fn all_findings_of_a_sync_about_a_service_are_one_event_with_its_uid() {
    let server = Server::new(Mood::Takes);
    let (outbox, publisher) = server.queue();
    for text in ["b is taken", "a is taken", "b is taken"] {
        outbox.post(notice("web", text));
    }
    tokio::spawn(publisher.run());
    sleep(SOON).await;
    let sent = server.sent.lock().unwrap();
    let [event] = sent.as_slice() else { panic!("{sent:?}") };
    assert_eq!(event["note"], "a is taken. b is taken");
    assert_eq!((&event["type"], &event["reason"]), (&json!("Warning"), &json!("AddressTaken")));
    assert_eq!(
        event["regarding"],
        json!({"apiVersion": "v1", "kind": "Service", "namespace": "shop", "name": "web", "uid": "u-web"})
    );
    assert_eq!(
        (&event["reportingController"], &event["reportingInstance"]),
        (&json!("kube-ipvs"), &json!("node-1"))
    );
}

#[tokio::test(start_paused = true)]
async fn one_event_per_service_and_reason_in_ten_minutes_and_the_next_says_all_since() {
    let (server, outbox) = published(Mood::Takes);
    outbox.post(notice("web", "first"));
    sleep(SOON).await;
    assert_eq!(server.notes(), ["first"]);
    outbox.post(notice("web", "second"));
    sleep(QUIET / 2).await;
    outbox.post(notice("web", "third"));
    sleep((QUIET / 2).saturating_sub(SOON)).await;
    assert_eq!(server.notes(), [""; 0]);
    sleep(SOON * 2).await;
    assert_eq!(server.notes(), ["second. third"]);
    sleep(QUIET * 3).await;
    assert_eq!(server.notes(), [""; 0], "nothing is said twice");
    outbox.post(notice("web", "fourth"));
    sleep(SOON).await;
    assert_eq!(server.notes(), ["fourth"], "who was quiet for long does not wait");
}

#[tokio::test(start_paused = true)]
async fn findings_about_the_node_are_one_event_per_reason_in_ten_minutes() {
    let (server, outbox) = published(Mood::Takes);
    outbox.post_about_node(finding::Cause::HostFirewall.into(), "ip filter INPUT drops".to_owned());
    outbox.post_about_node(finding::Cause::Bridge.into(), "cni0 is off".to_owned());
    outbox.post_about_node(finding::Cause::HostFirewall.into(), "ip filter FORWARD drops".to_owned());
    sleep(SOON).await;
    let sent = std::mem::take(&mut *server.sent.lock().unwrap());
    let reported: Vec<_> = sent.iter().map(|event| (&event["reason"], &event["note"])).collect();
    let firewall = json!("ip filter FORWARD drops. ip filter INPUT drops");
    assert_eq!(
        reported,
        [(&json!("BridgeBypassesIPVS"), &json!("cni0 is off")), (&json!("HostFirewallDrops"), &firewall)]
    );
    for event in &sent {
        let node = json!({"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "node-1"});
        assert_eq!((&event["regarding"], &event["metadata"]["namespace"]), (&node, &json!("default")));
        assert_eq!((&event["type"], &event["action"]), (&json!("Warning"), &json!("LookAtNode")));
    }

    outbox.post_about_node(finding::Cause::HostFirewall.into(), "ip filter INPUT drops again".to_owned());
    sleep(QUIET.saturating_sub(SOON * 2)).await;
    assert_eq!(server.notes(), [""; 0]);
    sleep(SOON * 3).await;
    assert_eq!(server.notes(), ["ip filter INPUT drops again"]);
}

#[tokio::test(start_paused = true)]
async fn what_could_not_be_said_is_tried_again_until_it_is() {
    for mood in [Mood::IsBusy, Mood::KeepsSilent] {
        let (server, outbox) = published(mood);
        outbox.post(notice("web", "first"));
        sleep(SOON).await;
        assert_eq!(server.notes(), ["first"], "{mood:?}");
        server.becomes(Mood::Takes);
        outbox.post(notice("web", "second"));
        sleep(PATIENCE + PAUSE + SOON).await;
        assert_eq!(server.notes(), ["first. second"], "{mood:?}");
        sleep(QUIET * 2).await;
        assert_eq!(server.notes(), [""; 0], "{mood:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_refused_for_good_keeps_nothing_else_from_being_said() {
    let (server, outbox) = published(Mood::Refuses);
    outbox.post(notice("web", "first"));
    outbox.post(notice("www", "second"));
    sleep(SOON).await;
    assert_eq!(server.notes(), ["first", "second"]);
    sleep(PAUSE * 2).await;
    assert_eq!(server.notes(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_does_not_answer_is_asked_once_and_then_left_alone() {
    let (server, outbox) = published(Mood::KeepsSilent);
    outbox.post(notice("web", "first"));
    outbox.post(notice("www", "second"));
    sleep(SOON + PATIENCE).await;
    assert_eq!(server.notes(), ["first"]);
    // The other one goes first now.
    sleep(PAUSE + SOON).await;
    assert_eq!(server.notes(), ["second"]);
    server.becomes(Mood::Takes);
    sleep(PATIENCE + PAUSE + SOON).await;
    assert_eq!(server.notes(), ["first", "second"]);
}

#[tokio::test(start_paused = true)]
async fn what_another_node_has_said_is_not_tried_again() {
    let (server, outbox) = published(Mood::HasIt);
    outbox.post(notice("web", "first"));
    sleep(QUIET * 2).await;
    assert_eq!(server.notes(), ["first"]);
}

#[tokio::test(start_paused = true)]
async fn ten_of_a_thousand_services_have_events_in_five_minutes_and_the_node_at_once() {
    let (server, outbox) = published(Mood::Takes);
    for number in 0..1_000 {
        outbox.post(notice(&format!("web-{number}"), "taken"));
    }
    sleep(SOON).await;
    assert_eq!(server.notes().len(), topics::MOST);
    outbox.post_about_node(Cause::STARTING, "kube-ipvs 1".to_owned());
    sleep(SOON).await;
    assert_eq!(server.notes(), ["kube-ipvs 1"]);
    sleep(topics::WITHIN).await;
    assert_eq!(server.notes().len(), topics::MOST);
}

#[tokio::test(start_paused = true)]
async fn each_node_speaks_of_other_services_first() {
    let server = Server::new(Mood::Takes);
    let (names, nodes) = (0..200, 0..20);
    for node in nodes {
        let (outbox, publisher) = server.queue_of(&format!("node-{node}"));
        tokio::spawn(publisher.run());
        names.clone().for_each(|number| outbox.post(notice(&format!("web-{number}"), "taken")));
        sleep(SOON).await;
    }
    let sent = server.events();
    let concerned: BTreeSet<_> =
        sent.iter().map(|event| event["regarding"]["name"].as_str().unwrap()).collect();
    assert_eq!(sent.len(), 20 * topics::MOST);
    assert!(concerned.len() > 100, "{concerned:?}");
}

#[tokio::test(start_paused = true)]
async fn a_service_that_is_gone_gets_no_event() {
    let (server, outbox) = published(Mood::Takes);
    outbox.post(notice("gone", "taken"));
    outbox.post(notice("web", "taken"));
    sleep(QUIET * 2).await;
    assert_eq!(server.notes(), ["taken"]);
}

#[tokio::test(start_paused = true)]
async fn nodes_that_find_out_the_same_do_not_all_ask_at_once() {
    let mut waits = BTreeSet::new();
    for node in ["node-1", "node-2", "node-3"] {
        let server = Server::new(Mood::Takes);
        let (outbox, publisher) = server.queue_of(node);
        tokio::spawn(publisher.run());
        let start = Instant::now();
        outbox.post(notice("web", "taken"));
        while server.notes().is_empty() {
            sleep(Duration::from_millis(1)).await;
        }
        waits.insert(start.elapsed());
    }
    assert_eq!(waits.len(), 3, "{waits:?}");
    assert!(waits.iter().all(|wait| *wait < SOON), "{waits:?}");
}

#[tokio::test(start_paused = true)]
async fn so_many_services_are_remembered_and_others_only_when_the_first_were_quiet() {
    let mut topics = Topics::new("node-1");
    for number in 0..topics::TOPICS {
        assert!(topics.keep(text(&format!("web-{number}"), "taken")));
    }
    assert!(!topics.keep(text("one-more", "taken")));
    assert!(topics.keep(text("web-0", "taken again")));
    sleep(GATHER).await;
    let web_0 = text("web-0", "").topic;
    while let Some((topic, texts)) = topics.due(Instant::now(), true) {
        assert_eq!(texts.len(), if topic == web_0 { 2 } else { 1 });
        topics.said(&topic);
    }
    assert!(!topics.keep(text("one-more", "taken")), "web-0 is kept quiet");
    sleep(QUIET).await;
    assert!(topics.keep(text("one-more", "taken")));
}

#[tokio::test(start_paused = true)]
async fn a_namespace_with_a_thousand_services_does_not_silence_the_others() {
    let mut topics = Topics::new("node-1");
    for number in 0..topics::TOPICS {
        assert!(topics.keep(text(&format!("web-{number}"), "taken")));
    }
    for number in 0..3 {
        let kept = topics.keep(text_in("zoo", &format!("web-{number}"), "taken"));
        assert!(!kept, "another one has made room for it");
    }
    sleep(GATHER).await;
    let mut first = Vec::new();
    for _ in 0..topics::MOST {
        let (topic, _) = topics.due(Instant::now(), true).unwrap();
        first.extend(topics::namespace(&topic).map(str::to_owned));
        topics.said(&topic);
        sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(first.iter().filter(|namespace| *namespace == "zoo").count(), 3, "{first:?}");
    let left = std::iter::from_fn(|| {
        let (topic, _) = topics.due(Instant::now(), true)?;
        topics.said(&topic);
        Some(topic)
    });
    assert_eq!(left.count() + first.len(), topics::TOPICS);
}

#[tokio::test]
async fn too_many_notices_are_dropped_and_counted_without_waiting() {
    let (outbox, publisher) = Server::new(Mood::Takes).queue();
    for number in 0..QUEUE + 7 {
        outbox.post(notice("web", &number.to_string()));
    }
    assert_eq!(publisher.dropped.load(Ordering::Relaxed), 7);
    drop(publisher);
    outbox.post(notice("web", "after the end"));
}

/// What is said of a proxy that starts and finds both its ports taken.
fn start(outbox: &Outbox) {
    outbox.post_about_node(Cause::STARTING, "kube-ipvs 1".to_owned());
    outbox.post_about_node(Cause::NO_HEALTH_CHECKS, "no port".to_owned());
    outbox.post_about_node(Cause::NO_METRICS, "no port".to_owned());
}

#[tokio::test(start_paused = true)]
async fn a_start_and_its_failures_are_one_event_of_the_node_each_in_ten_minutes() {
    let (server, outbox) = published(Mood::Takes);
    start(&outbox);
    sleep(SOON).await;
    let sent = server.events();
    let mut words: Vec<_> = sent
        .iter()
        .map(|event| ["type", "reason", "action"].map(|field| event[field].as_str().unwrap()))
        .collect();
    words.sort_unstable();
    assert_eq!(
        words,
        [
            ["Normal", "Starting", "StartKubeProxy"],
            ["Warning", "FailedToStartMetricServer", "StartKubeProxy"],
            ["Warning", "FailedToStartProxierHealthcheck", "StartKubeProxy"],
        ]
    );
    assert!(sent.iter().all(|event| event["regarding"]["kind"] == "Node"), "{sent:?}");
    for _ in 0..5 {
        outbox.post_about_node(Cause::NO_HEALTH_CHECKS, "no port again".to_owned());
        sleep(QUIET / 6).await;
    }
    assert_eq!(server.notes(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_proxy_that_starts_again_says_the_same_again_under_the_same_names() {
    let server = Server::new(Mood::Takes);
    let mut names = Vec::new();
    for _ in 0..2 {
        let (outbox, publisher) = server.queue();
        tokio::spawn(publisher.run());
        start(&outbox);
        sleep(SOON).await;
        names.push(server.events().iter().map(|event| event["metadata"]["name"].clone()).collect::<Vec<_>>());
        // The API server refuses what it has, and that is all right.
        server.becomes(Mood::HasIt);
    }
    assert_eq!(names.first().unwrap().len(), 3);
    assert_eq!(names.first(), names.last());
}

#[tokio::test(start_paused = true)]
async fn a_daemon_that_ends_says_all_before_it_does_but_does_not_wait_for_long() {
    let (server, outbox) = published(Mood::Takes);
    start(&outbox);
    outbox.empty().await;
    assert_eq!(server.notes().len(), 3);

    server.becomes(Mood::KeepsSilent);
    outbox.post_about_node(Cause::NO_SERVICE_HEALTH_CHECK, "no port".to_owned());
    let begin = Instant::now();
    outbox.empty().await;
    assert_eq!((server.notes().len(), begin.elapsed()), (1, LAST_WORDS));
}

#[tokio::test]
async fn a_daemon_without_a_publisher_does_not_wait() {
    let (outbox, publisher) = Server::new(Mood::Takes).queue();
    drop(publisher);
    start(&outbox);
    outbox.empty().await;
}

#[tokio::test(start_paused = true)]
async fn what_was_repaired_is_one_event_of_the_node_in_ten_minutes() {
    let server = Server::taking();
    let (outbox, publisher) = server.queue();
    tokio::spawn(publisher.run());
    let mut repairs = SyncEvents(outbox);
    let mut repaired = |done, what: &[&str]| {
        let repairs_of = what.iter().map(|&repair| repair.to_owned()).collect();
        let report = SyncReport { done, repairs: repairs_of, ..SyncReport::empty(Trigger::Period) };
        synced(&mut repairs, &report);
    };
    repaired(9, &[]);
    sleep(Duration::from_mins(1)).await;
    assert_eq!(server.events(), [""; 0], "nothing was repaired");
    for _ in 0..5 {
        repaired(2, &["add a virtual server", "add a real server"]);
        sleep(Duration::from_mins(1)).await;
    }
    let [event] = &server.events()[..] else { panic!("not one Event") };
    let note = event["note"].as_str().unwrap();
    assert!(note.contains("; repaired: add a virtual server and more."), "{note}");
    assert_eq!((&event["reason"], &event["type"]), (&"ForeignChangeRepaired".into(), &"Warning".into()));
    assert_eq!(event["regarding"]["name"], "node-1");
}

#[tokio::test(start_paused = true)]
async fn what_one_sync_removed_is_one_event_with_the_first_and_the_count() {
    let server = Server::taking();
    let (outbox, publisher) = server.queue();
    tokio::spawn(publisher.run());
    let mut foreign = SyncEvents(outbox);
    let mut removed = |ports: std::ops::Range<u16>| {
        let at = |port| ServiceAddress { protocol: Protocol::Tcp, ip: [192, 0, 2, 7].into(), port };
        let removed_foreign = ports.map(at).collect::<Vec<_>>().iter().collect();
        let report = SyncReport { removed_foreign, ..SyncReport::empty(Trigger::Start) };
        synced(&mut foreign, &report);
    };
    removed(0..0);
    sleep(Duration::from_mins(1)).await;
    assert_eq!(server.events(), [""; 0], "nothing was removed");
    removed(6440..6447);
    sleep(Duration::from_mins(1)).await;
    let [event] = &server.events()[..] else { panic!("not one Event") };
    let note = event["note"].as_str().unwrap();
    assert!(note.contains("7 in all: TCP 192.0.2.7:6440, TCP 192.0.2.7:6441, "), "{note}");
    assert!(
        note.contains(":6444 and 2 more. To keep those of a range, add it to ipvs.excludeCIDRs"),
        "{note}"
    );
    assert_eq!(
        (&event["reason"], &event["type"]),
        (&"ForeignVirtualServersRemoved".into(), &"Warning".into())
    );
    assert_eq!(event["regarding"]["name"], "node-1");
}
