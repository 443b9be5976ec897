//! The protocol against an API server that plays a script. Time is tokio's, which jumps ahead
//! whenever everybody waits.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    convert::Infallible,
    future,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::{StreamExt, stream};
use http::{Request, Response};
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use hyper::body::{Bytes, Frame};
use kube::client::Body;
use serde_json::{Value, json};
use testkit::log::Log;
use tokio::time::{Instant, timeout};

use super::*;

/// One answer: a status, and the body.
type Answer = (u16, String);

/// The body of an answer on its way.
type AnswerBody = BoxBody<Bytes, Infallible>;

/// The end of a body that does not end: after what is before it nothing comes.
const OPEN: &str = "open";
/// Instead of an answer: the server takes the request and never answers.
const SILENT: &str = "silent";

/// A server that answers the requests for each resource in turn, and none after the last.
#[derive(Clone, Default)]
struct Script(Arc<Mutex<Played>>);

#[derive(Default)]
struct Played {
    answers: HashMap<&'static str, VecDeque<Answer>>,
    requests: Vec<(Instant, String)>,
}

impl Script {
    fn new<const N: usize>(resource: &'static str, answers: [Answer; N]) -> Self {
        Self::default().and(resource, answers)
    }

    fn and<const N: usize>(self, resource: &'static str, answers: [Answer; N]) -> Self {
        self.0.lock().unwrap().answers.insert(resource, answers.into());
        self
    }

    /// With the Node that Services would wait for.
    fn with_node(self) -> Self {
        self.and(
            "nodes",
            [events_and_silence([event("ADDED", &node("z1", &["192.0.2.1"], 1)), end_of_list(2)])],
        )
    }

    async fn answer(self, request: Request<Body>) -> Result<Response<AnswerBody>, Infallible> {
        let resource = request.uri().path().rsplit('/').next().unwrap().to_owned();
        let answer = {
            let mut played = self.0.lock().unwrap();
            played.requests.push((Instant::now(), request.uri().to_string()));
            played.answers.get_mut(&*resource).and_then(VecDeque::pop_front)
        };
        match answer {
            Some((_, body)) if body == SILENT => future::pending().await,
            Some((status, body)) => {
                let body = match body.strip_suffix(OPEN) {
                    Some(begin) => {
                        let begin = Ok(Frame::data(Bytes::from(begin.to_owned())));
                        BodyExt::boxed(StreamBody::new(
                            stream::once(async { begin }).chain(stream::pending()),
                        ))
                    }
                    None => Full::from(body).boxed(),
                };
                Ok(Response::builder().status(status).body(body).unwrap())
            }
            None => future::pending().await,
        }
    }

    /// The changes that are sent within ten minutes.
    async fn play(&self) -> Vec<Change> {
        self.play_for(Duration::from_secs(600)).await
    }

    /// The changes that are sent within this time.
    async fn play_for(&self, time: Duration) -> Vec<Change> {
        self.play_to(&Watches::default(), time).await
    }

    /// The changes that are sent within this time; `watches` holds the state of each watch then.
    async fn play_to(&self, watches: &Watches, time: Duration) -> Vec<Change> {
        let script = self.clone();
        let client = Client::new(tower::service_fn(move |request| script.clone().answer(request)), "default");
        let changes = Mutex::new(Vec::new());
        let watching = watch(client, "n1", watches, |change| changes.lock().unwrap().push(change));
        assert!(timeout(time, watching).await.is_err());
        changes.into_inner().unwrap()
    }

    /// The requests for this resource, as far as the script answered them.
    fn requests(&self, resource: &str) -> Vec<String> {
        self.timed_requests(resource).into_iter().map(|(_, uri)| uri).collect()
    }

    /// The same with when each came.
    fn timed_requests(&self, resource: &str) -> Vec<(Instant, String)> {
        let requests = &self.0.lock().unwrap().requests;
        requests.iter().filter(|(_, uri)| uri.contains(&format!("/{resource}?"))).cloned().collect()
    }
}

fn service(name: &str, version: u32) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name, "namespace": "shop", "resourceVersion": version.to_string()},
        "spec": {"clusterIP": "10.96.0.7", "ports": [{"port": version}]},
    })
}

fn slice(name: &str, version: u32) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "name": name, "namespace": "shop", "resourceVersion": version.to_string(),
            "labels": {"kubernetes.io/service-name": name},
        },
        "addressType": "IPv4",
    })
}

fn node(zone: &str, ips: &[&str], version: u32) -> Value {
    let labels = json!({"topology.kubernetes.io/zone": zone});
    let addresses = ips.iter().map(|ip| json!({"type": "InternalIP", "address": ip})).collect::<Value>();
    json!({
        "metadata": {"name": "n1", "resourceVersion": version.to_string(), "labels": labels},
        "status": {"addresses": addresses},
    })
}

fn event(kind: &str, object: &Value) -> String {
    // The server writes the type first.
    format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n")
}

fn added(name: &str, version: u32) -> String {
    event("ADDED", &service(name, version))
}

fn end_of_list(version: u32) -> String {
    event(
        "BOOKMARK",
        &json!({
            "kind": "Service", "apiVersion": "v1",
            "metadata": {"resourceVersion": version.to_string(), "annotations": {"k8s.io/initial-events-end": "true"}},
        }),
    )
}

fn status(code: u16, message: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code})
}

fn events<const N: usize>(lines: [String; N]) -> Answer {
    (200, Vec::from(lines).concat())
}

/// Events, after which the watch stays open and nothing comes.
fn events_and_silence<const N: usize>(lines: [String; N]) -> Answer {
    (200, Vec::from(lines).concat() + OPEN)
}

fn silence() -> Answer {
    (200, SILENT.to_owned())
}

fn refusal(code: u16) -> Answer {
    (code, status(code, "no").to_string())
}

fn list<const N: usize>(version: u32, items: [Value; N]) -> Answer {
    let metadata = json!({"resourceVersion": version.to_string()});
    (
        200,
        json!({"kind": "ServiceList", "apiVersion": "v1", "metadata": metadata, "items": Vec::from(items)})
            .to_string(),
    )
}

/// The changes in short: `=a,b` for a whole list, `+a:80`, `-a`, `n1 in z1 at 192.0.2.1`.
fn short(changes: &[Change]) -> Vec<String> {
    let (mut texts, mut listed) = (Vec::new(), BTreeSet::new());
    let all = |names: BTreeSet<&str>| format!("={}", Vec::from_iter(names).join(","));
    for change in changes {
        texts.push(match change {
            Change::InitApplyServices(services) => {
                listed.extend(services.iter().map(|service| &service.name));
                continue;
            }
            Change::InitApplySlices(slices) => {
                listed.extend(slices.iter().map(|slice| &slice.name));
                continue;
            }
            Change::InitDoneServices(names) | Change::InitDoneSlices(names) => {
                assert!(names.iter().all(|name| listed.contains(name)), "not all of {names:?} were sent");
                listed.clear();
                all(names.iter().map(|name| &*name.name).collect())
            }
            Change::ReplaceServices(services) => {
                all(services.iter().map(|service| &*service.name.name).collect())
            }
            Change::ReplaceSlices(slices) => all(slices.iter().map(|slice| &*slice.name.name).collect()),
            Change::ApplyService(service) => format!("+{}:{}", service.name.name, service.ports[0].port),
            Change::DeleteService(name) => format!("-{}", name.name),
            Change::ApplyNode(node) => {
                let ips = node.ips.iter().map(ToString::to_string).collect::<Vec<_>>();
                format!("n1 in {} at {}", node.zone.as_deref().unwrap_or("no zone"), ips.join(","))
            }
            Change::DeleteNode => "no n1".to_owned(),
            other => format!("{other:?}"),
        });
    }
    texts
}

type MakeObject = fn(&str, u32) -> Value;

/// The resources of which every cluster has some, and what makes one.
const ALWAYS_SOME: [(&str, MakeObject); 2] = [("services", service), ("endpointslices", slice)];

/// The value of a parameter of a request.
fn parameter(uri: &str, name: &str) -> Option<String> {
    let (_, query) = uri.split_once('?')?;
    query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('=')).map(ToOwned::to_owned)
}

#[tokio::test(start_paused = true)]
async fn changes_follow_the_complete_list() {
    let script = Script::new(
        "services",
        [events([
            added("a", 1),
            added("b", 2),
            end_of_list(3),
            added("c", 4),
            event("MODIFIED", &service("a", 5)),
            event("DELETED", &service("b", 6)),
        ])],
    );
    assert_eq!(short(&script.play().await), ["=a,b", "+c:4", "+a:5", "-b"]);
    // The watch goes on from the last event.
    assert_eq!(parameter(&script.requests("services")[1], "resourceVersion").as_deref(), Some("6"));
}

#[tokio::test(start_paused = true)]
async fn the_requests_carry_the_selectors_of_a_node_proxy() {
    let script = Script::default()
        .and("services", [refusal(400), list(1, [])])
        .and("endpointslices", [refusal(400), list(1, [])])
        .and("nodes", [refusal(400), list(1, [])]);
    script.play().await;
    let selectors = |resource: &str| {
        let mut selectors = script
            .requests(resource)
            .iter()
            .map(|uri| (parameter(uri, "labelSelector"), parameter(uri, "fieldSelector")))
            .collect::<Vec<_>>();
        assert!(selectors.len() >= 3, "no WatchList, no list or no watch of {resource}");
        selectors.dedup();
        assert_eq!(selectors.len(), 1, "{selectors:?}");
        selectors.remove(0)
    };
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(
        selectors("services"),
        (some("%21service.kubernetes.io%2Fservice-proxy-name"), some("spec.clusterIP%21%3DNone"))
    );
    assert_eq!(selectors("endpointslices"), (some("%21service.kubernetes.io%2Fheadless"), None));
    assert_eq!(selectors("nodes"), (None, some("metadata.name%3Dn1")));
}

#[tokio::test(start_paused = true)]
async fn the_first_list_is_a_watch_list_of_what_the_server_has_at_hand() {
    let script = Script::default();
    script.play().await;
    let uri = &script.requests("endpointslices")[0];
    assert!(uri.contains("/apis/discovery.k8s.io/v1/endpointslices?"), "{uri}");
    for (name, value) in [
        ("watch", "true"),
        ("sendInitialEvents", "true"),
        ("resourceVersionMatch", "NotOlderThan"),
        ("allowWatchBookmarks", "true"),
        ("resourceVersion", "0"),
    ] {
        assert_eq!(parameter(uri, name).as_deref(), Some(value), "{uri}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_list_refused_by_status_becomes_a_list() {
    for code in [400, 404, 422] {
        let script =
            Script::new("services", [refusal(code), list(5, [service("a", 1)]), events([added("b", 6)])]);
        assert_eq!(short(&script.play().await), ["=a", "+b:6"]);
        let requests = script.requests("services");
        assert_eq!(parameter(&requests[1], "watch"), None);
        assert_eq!(parameter(&requests[2], "resourceVersion").as_deref(), Some("5"));
        assert_eq!(parameter(&requests[2], "sendInitialEvents"), None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_know_the_field_of_the_selector_is_asked_without_it() {
    let unknown = || refusal(400);
    let script = Script::new(
        "services",
        [
            unknown(),
            unknown(),
            refusal(422),
            list(5, [service("a", 1)]),
            events([added("b", 6)]),
            refusal(410),
        ],
    );
    assert_eq!(short(&script.play().await), ["=a", "+b:6"]);
    let fields: Vec<_> =
        script.requests("services").iter().map(|uri| parameter(uri, "fieldSelector").is_some()).collect();
    let (with, without) = fields.split_at(2);
    assert_eq!(with, [true, true]);
    assert!(without.len() > 3 && without.iter().all(|has_it| !has_it), "{without:?}");
}

#[tokio::test(start_paused = true)]
async fn a_watch_list_refused_by_an_error_event_becomes_a_list() {
    let refused = event("ERROR", &status(500, "the storage cannot report its progress"));
    let script = Script::new("services", [events([added("x", 1), refused]), list(5, [service("a", 1)])]);
    assert_eq!(short(&script.play().await), ["=a"]);
}

#[tokio::test(start_paused = true)]
async fn of_a_first_list_that_breaks_off_only_the_next_try_says_the_end() {
    let all: String = (1..=250).map(|number| added(&format!("s{number}"), number)).collect();
    let half: String = all.split_inclusive('\n').take(150).collect();
    let changes = Script::new("services", [events([half]), events([all, end_of_list(251)])]).play().await;
    let listed = |count| ("listed", count);
    assert_eq!(counts(&changes), [listed(100), listed(100), listed(100), listed(50), ("kept", 250)]);
}

#[tokio::test(start_paused = true)]
async fn of_a_later_list_nothing_is_passed_on_before_its_end() {
    let all: String = (1..=250).map(|number| added(&format!("s{number}"), number)).collect();
    let half: String = all.split_inclusive('\n').take(150).collect();
    let whole = || events([all.clone(), end_of_list(251)]);
    let changes = Script::new(
        "services",
        [events([end_of_list(1)]), events([end_of_list(1)]), refusal(410), events([half]), whole()],
    )
    .play()
    .await;
    assert_eq!(counts(&changes), [("kept", 0), ("replaced", 250)]);
}

/// The parts of lists that were passed on, and how many objects each had.
fn counts(changes: &[Change]) -> Vec<(&'static str, usize)> {
    let count = |change: &Change| match change {
        Change::InitApplyServices(services) => ("listed", services.len()),
        Change::InitDoneServices(names) => ("kept", names.len()),
        Change::ReplaceServices(services) => ("replaced", services.len()),
        other => panic!("{other:?}"),
    };
    changes.iter().map(count).collect()
}

#[tokio::test(start_paused = true)]
async fn an_object_deleted_while_it_is_listed_is_not_in_the_list() {
    let script = Script::new(
        "services",
        [events([added("a", 1), added("b", 2), event("DELETED", &service("a", 3)), end_of_list(3)])],
    );
    assert_eq!(short(&script.play().await), ["=b"]);
}

#[tokio::test(start_paused = true)]
async fn an_expired_version_leads_to_a_new_list_that_shows_the_deletions() {
    let first = || events([added("a", 1), added("b", 2), end_of_list(3)]);
    let second = || events([added("b", 2), end_of_list(9)]);
    let in_stream = events([event("ERROR", &status(410, "too old resource version"))]);
    for gone in [refusal(410), in_stream] {
        let script = Script::new("services", [first(), gone, second()]);
        assert_eq!(short(&script.play().await), ["=a,b", "=b"]);
        // Not from the server's cache: a list must not go back in time.
        assert_eq!(parameter(&script.requests("services")[2], "resourceVersion").as_deref(), Some(""));
    }
}

#[tokio::test(start_paused = true)]
async fn a_version_from_the_future_leads_to_a_new_list() {
    let restored = (504, status(504, "Too large resource version: 3, current: 1").to_string());
    let script = Script::new(
        "services",
        [events([added("a", 1), end_of_list(3)]), restored, events([added("b", 1), end_of_list(1)])],
    );
    assert_eq!(short(&script.play().await), ["=a", "=b"]);
}

#[tokio::test(start_paused = true)]
async fn a_server_in_trouble_leaves_the_old_state_and_is_not_asked_for_a_list() {
    let script = Script::new(
        "services",
        [
            events([added("a", 1), end_of_list(3)]),
            refusal(503),
            refusal(500),
            refusal(429),
            (502, "<html>bad gateway</html>".to_owned()),
            events([added("b", 4)]),
        ],
    );
    assert_eq!(short(&script.play().await), ["=a", "+b:4"]);
    for request in &script.requests("services")[1..6] {
        assert_eq!(parameter(request, "resourceVersion").as_deref(), Some("3"));
        assert_eq!(parameter(request, "sendInitialEvents"), None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_back_is_asked_for_a_list_at_once_and_after_pauses_if_it_goes_on_refusing() {
    let script = Script::new(
        "services",
        [
            events([added("a", 1), end_of_list(3)]),
            refusal(503),
            refusal(503),
            refusal(503),
            refusal(503),
            refusal(503),
            refusal(503),
            refusal(410),
            refusal(410),
            refusal(410),
            refusal(410),
            events([added("b", 2), end_of_list(9)]),
        ],
    );
    assert_eq!(short(&script.play().await), ["=a", "=b"]);
    let requests = script.timed_requests("services");
    let pauses: Vec<_> = requests.windows(2).map(|pair| (pair[1].0 - pair[0].0).as_secs_f64()).collect();
    // Each may be up to twice as long.
    for (pause, least) in pauses.iter().zip([0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 0.8, 1.6, 3.2, 6.4]) {
        assert!((least..=2.0 * least + 0.1).contains(pause), "{pause} s instead of {least} s: {pauses:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn watch_that_keeps_closing_at_once_is_reopened_after_a_pause() {
    let empty = || events([]);
    let script = Script::new(
        "services",
        [events([added("a", 1), end_of_list(3)]), empty(), empty(), empty(), empty(), empty()],
    )
    .with_node();
    // Five pauses take at least 0.8 + 1.6 + 3.2 + 6.4 + 12.8 s.
    assert_eq!(short(&script.play_for(Duration::from_secs(20)).await), ["n1 in z1 at 192.0.2.1", "=a"]);
    let requests = script.requests("services");
    assert!((3..7).contains(&requests.len()), "{requests:?}");
}

#[tokio::test(start_paused = true)]
async fn a_reopened_watch_counts_as_open_without_an_event_unless_it_is_closed_at_once() {
    let open = || events_and_silence([]);
    let then = async |answers: [Answer; 3]| {
        let [first, second, third] = answers;
        let script = Script::new("services", [events([added("a", 1), end_of_list(3)]), first, second, third])
            .with_node();
        let watches = Watches::default();
        script.play_to(&watches, Duration::from_secs(30)).await;
        watches.all().into_iter().find(|watch| watch.resource == "services").unwrap()
    };
    let watch = then([refusal(503), refusal(503), open()]).await;
    assert_eq!(watch.state, WatchState::Watching, "{watch:?}");
    assert!(watch.last_failure.is_some_and(|failure| failure.age > watch.age), "it is over");

    let watch = then([events([]), events([]), events([])]).await;
    assert_eq!(watch.state, WatchState::Failing, "{watch:?}");
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_is_not_answered_is_asked_for_again_from_the_same_version() {
    let script = Script::new(
        "services",
        [events([added("a", 1), end_of_list(3)]), silence(), events([added("b", 4)])],
    )
    .with_node();
    let changes = script.play_for(Duration::from_secs(70)).await;
    assert_eq!(short(&changes), ["n1 in z1 at 192.0.2.1", "=a", "+b:4"]);
    for request in &script.requests("services")[1..3] {
        assert_eq!(parameter(request, "resourceVersion").as_deref(), Some("3"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_falls_silent_is_resumed_from_its_last_event() {
    let script = Script::new(
        "services",
        [
            events([added("a", 1), end_of_list(3)]),
            events_and_silence([added("b", 4)]),
            events([added("c", 5)]),
        ],
    )
    .with_node();
    // The server itself would end the watch after 290 s.
    let changes = script.play_for(Duration::from_secs(310)).await;
    assert_eq!(short(&changes), ["n1 in z1 at 192.0.2.1", "=a", "+b:4", "+c:5"]);
    assert_eq!(parameter(&script.requests("services")[2], "resourceVersion").as_deref(), Some("4"));
}

#[tokio::test(start_paused = true)]
async fn a_watch_list_that_falls_silent_becomes_a_list() {
    for (silent, seconds) in [(events_and_silence([added("x", 1)]), 12), (silence(), 62)] {
        let script = Script::new("services", [silent, list(5, [service("a", 1)]), events([added("b", 6)])])
            .with_node();
        let changes = script.play_for(Duration::from_secs(seconds)).await;
        assert_eq!(short(&changes), ["n1 in z1 at 192.0.2.1", "=a", "+b:6"]);
        assert_eq!(parameter(&script.requests("services")[1], "watch"), None);
    }
}

#[tokio::test(start_paused = true)]
async fn an_unanswered_list_is_requested_again_and_the_watch_fails_meanwhile() {
    let answers =
        || [refusal(400), silence(), refusal(400), list(5, [service("a", 1)]), events_and_silence([])];
    let script = Script::new("services", answers()).with_node();
    let changes = script.play_for(Duration::from_secs(70)).await;
    assert_eq!(short(&changes), ["n1 in z1 at 192.0.2.1", "=a"]);

    let watches = Watches::default();
    let [refused, silent, ..] = answers();
    Script::new("services", [refused, silent]).with_node().play_to(&watches, Duration::from_secs(70)).await;
    let troubles = watches.troubles();
    assert!(troubles.iter().any(|line| line.contains("no answer within 60 s")), "{troubles:?}");
}

#[tokio::test(start_paused = true)]
async fn pages_are_put_together() {
    let page = |version: u32, token: &str, name: &str| {
        let metadata = json!({"resourceVersion": version.to_string(), "continue": token});
        let items = [service(name, version)];
        (
            200,
            json!({"kind": "ServiceList", "apiVersion": "v1", "metadata": metadata, "items": items})
                .to_string(),
        )
    };
    let script = Script::new("services", [refusal(400), page(5, "more", "a"), page(5, "", "b")]);
    assert_eq!(short(&script.play().await), ["=a,b"]);
    assert_eq!(parameter(&script.requests("services")[2], "continue").as_deref(), Some("more"));
}

#[tokio::test(start_paused = true)]
async fn a_malformed_object_is_skipped_alone() {
    let mut nameless = service("x", 1);
    nameless["metadata"]["name"] = json!(7);
    let mut odd = service("odd", 2);
    odd["spec"] = json!("none");
    let changes = Script::new(
        "services",
        [
            refusal(400),
            list(5, [nameless.clone(), json!(17), odd.clone(), service("a", 80)]),
            events([event("ADDED", &nameless), event("MODIFIED", &odd), added("b", 6)]),
        ],
    )
    .play()
    .await;
    let [
        Change::InitApplyServices(listed),
        Change::InitDoneServices(_),
        Change::ApplyService(odd),
        Change::ApplyService(b),
    ] = &*changes
    else {
        panic!("{changes:?}")
    };
    assert_eq!(listed.iter().map(|service| &*service.name.name).collect::<Vec<_>>(), ["odd", "a"]);
    assert_eq!(odd.problems, ["spec: \"none\" is not an object"]);
    assert_eq!(&*b.name.name, "b");
}

#[tokio::test(start_paused = true)]
async fn a_problem_is_logged_once_while_its_object_exists_and_again_after_it_was_away() {
    let odd = |kind: &str, version: u32| {
        let mut odd = service("odd", version);
        odd["spec"] = json!("none");
        event(kind, &odd)
    };
    let first = || events([odd("ADDED", 1), added("a", 1), end_of_list(2)]);
    let again = || events([odd("ADDED", 9)]);
    let refused = || events([odd("ADDED", 1), event("ERROR", &status(500, "the storage cannot report"))]);
    let in_pages = |code| {
        let mut odd = service("odd", 1);
        odd["spec"] = json!("none");
        list(code, [odd, service("a", 1)])
    };
    for (times, what, script) in [
        (1, "there in each list", vec![first(), refusal(410), first(), refusal(410), refused(), in_pages(3)]),
        (1, "a list that broke off between", vec![first(), refusal(410), events([added("a", 1)]), first()]),
        (1, "not in an empty list that is not believed", {
            vec![first(), refusal(410), events([end_of_list(3)]), first()]
        }),
        (2, "deleted while it was watched", vec![first(), events([odd("DELETED", 3)]), again()]),
        (2, "not in a later list", {
            vec![first(), refusal(410), events([added("a", 1), end_of_list(8)]), again()]
        }),
        (2, "deleted while it was listed", {
            vec![events([odd("ADDED", 1), odd("DELETED", 2), added("a", 1), end_of_list(2)]), again()]
        }),
    ] {
        let log = Log::start().unwrap();
        let played = Script::default();
        played.0.lock().unwrap().answers.insert("services", script.into());
        played.play().await;
        let lines = log.lines().unwrap();
        let logged = lines.iter().filter(|line| line.contains("Service shop/odd: in part: spec")).count();
        assert_eq!(logged, times, "{what}: {lines:#?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_empty_list_after_a_full_one_is_believed_only_when_repeated() {
    for (resource, object) in ALWAYS_SOME {
        let full = |version| events([event("ADDED", &object("a", 1)), end_of_list(version)]);
        let empty = |version| events([end_of_list(version)]);
        let script = Script::new(resource, [full(3), refusal(410), empty(4), empty(5)]);
        assert_eq!(short(&script.play().await), ["=a", "="], "{resource}");

        let once = Script::new(resource, [full(3), refusal(410), empty(4), full(5)]);
        assert_eq!(short(&once.play().await), ["=a", "=a"], "{resource}");

        let first = Script::new(resource, [empty(3), full(4)]);
        assert_eq!(short(&first.play().await), ["=a"], "{resource}");
    }

    // The first lists were empty as well; what has come since is not forgotten for one that is.
    let since = Script::new(
        "services",
        [
            events([end_of_list(1)]),
            events([end_of_list(2), added("a", 3)]),
            refusal(410),
            events([end_of_list(4)]),
            events([added("a", 3), end_of_list(5)]),
        ],
    );
    assert_eq!(short(&since.play().await), ["=", "+a:3", "=a"]);
}

#[tokio::test(start_paused = true)]
async fn the_watch_fails_until_an_empty_list_is_repeated_and_the_log_says_why() {
    for (resource, object) in ALWAYS_SOME {
        let full = || events([event("ADDED", &object("a", 1)), end_of_list(3)]);
        let empty = || events([end_of_list(4)]);
        for answers in [vec![empty()], vec![full(), refusal(410), empty()]] {
            let asked = answers.len() + 1;
            let script = Script::default().with_node();
            script.0.lock().unwrap().answers.insert(resource, answers.into());
            let (log, watches) = (Log::start().unwrap(), Watches::default());
            let changes = script.play_to(&watches, Duration::from_secs(20)).await;
            assert!(!short(&changes).contains(&"=".to_owned()), "{changes:?}");
            assert_eq!(script.requests(resource).len(), asked, "it is asked for again");
            assert_eq!(watches.failing(), 1);
            let troubles = watches.troubles();
            assert!(
                troubles[0].contains(resource) && troubles[0].contains("the list is empty"),
                "{troubles:?}"
            );
            let lines = log.lines().unwrap();
            let reported = |line: &String| line.contains(resource) && line.contains("the list is empty");
            assert!(lines.iter().any(reported), "{lines:#?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_slice_that_stops_being_ours_counts_as_deleted() {
    let slice = |address_type: &str, version: &str| {
        json!({
            "metadata": {
                "name": "web-1", "namespace": "shop", "resourceVersion": version,
                "labels": {"kubernetes.io/service-name": "web"},
            },
            "addressType": address_type,
        })
    };
    let script = Script::new(
        "endpointslices",
        [events([
            event("ADDED", &slice("IPv4", "1")),
            end_of_list(2),
            event("MODIFIED", &slice("FQDN", "3")),
        ])],
    );
    let changes = script.play().await;
    let [Change::InitApplySlices(slices), Change::InitDoneSlices(kept), Change::DeleteSlice(name)] =
        &*changes
    else {
        panic!("{changes:?}")
    };
    assert_eq!((slices.len(), kept.len(), name.to_string()), (1, 1, "shop/web-1".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn the_zone_of_the_node_is_sent_and_that_the_node_is_gone() {
    let script = Script::new(
        "nodes",
        [events([
            event("ADDED", &node("z1", &["192.0.2.1"], 1)),
            end_of_list(2),
            event("MODIFIED", &node("z2", &["192.0.2.1"], 3)),
            event("DELETED", &node("z2", &["192.0.2.1"], 4)),
        ])],
    );
    assert_eq!(
        short(&script.play().await),
        ["n1 in z1 at 192.0.2.1", "n1 in z2 at 192.0.2.1", "no n1"],
        "who hears it decides what that means; State keeps the zone"
    );
}

#[tokio::test(start_paused = true)]
async fn a_list_without_the_node_says_that_it_is_gone() {
    let script = Script::new(
        "nodes",
        [
            events([event("ADDED", &node("z1", &["192.0.2.1"], 1)), end_of_list(2)]),
            refusal(410),
            events([end_of_list(3)]),
            events([event("ADDED", &node("z2", &["192.0.2.1"], 4))]),
        ],
    );
    assert_eq!(short(&script.play().await), ["n1 in z1 at 192.0.2.1", "no n1", "n1 in z2 at 192.0.2.1"]);
}

#[tokio::test(start_paused = true)]
async fn services_wait_until_the_ips_of_the_node_are_known() {
    let script = Script::new("services", [events([added("a", 1), end_of_list(2)])]).and(
        "nodes",
        [
            events([end_of_list(1)]),
            events([event("ADDED", &node("z1", &[], 2))]),
            // So that Services would have the time to come first.
            refusal(503),
            events([event("MODIFIED", &node("z1", &["192.0.2.1"], 3))]),
        ],
    );
    assert_eq!(
        short(&script.play_for(Duration::from_secs(29)).await),
        ["no n1", "n1 in z1 at ", "n1 in z1 at 192.0.2.1", "=a"]
    );
}

#[tokio::test(start_paused = true)]
async fn services_wait_half_a_minute_for_a_node_and_not_longer() {
    let node_without_ips = || events([event("ADDED", &node("z1", &[], 1)), end_of_list(1)]);
    for nodes in [events([end_of_list(1)]), node_without_ips(), refusal(503)] {
        let script = || {
            let services = Script::new("services", [events([added("a", 1), end_of_list(2)])]);
            services.and("nodes", [nodes.clone()])
        };
        let services = |mut changes: Vec<Change>| {
            changes.retain(|change| !matches!(change, Change::ApplyNode(_) | Change::DeleteNode));
            short(&changes)
        };
        assert_eq!(services(script().play_for(Duration::from_secs(29)).await), Vec::<String>::new());
        assert_eq!(services(script().play_for(Duration::from_secs(31)).await), ["=a"]);
    }
}
