//! The protocol against an API server that plays a script. Time is tokio's, which jumps ahead
//! whenever everybody waits.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    convert::Infallible,
    future, iter, mem,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::{StreamExt, stream};
use http::{
    Request, Response,
    header::{ACCEPT, CONTENT_TYPE},
};
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use hyper::body::{Bytes, Frame};
use kube::client::Body;
use serde_json::{Value, json};
use testkit::{log::Log, protobuf};
use tokio::{
    io::AsyncReadExt as _,
    time::{Instant, timeout},
};

use super::{requests::Requests, *};

/// One answer: a status, and the body in JSON.
type Answer = (u16, String);

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// The body of an answer on its way.
type AnswerBody = BoxBody<Bytes, Infallible>;

/// The end of a body that does not end: after what is before it nothing comes.
const OPEN: &str = "open";
/// The end of a body of which only the first half comes.
const BROKEN: &str = "broken";
/// Instead of an answer: the server takes the request and never answers.
const SILENT: &str = "silent";

/// A server that answers the requests for each resource in turn, and none after the last.
#[derive(Clone, Default)]
struct Script(Arc<Mutex<Played>>);

#[derive(Default)]
struct Played {
    /// It writes protobuf for those who take it.
    has_protobuf: bool,
    answers: HashMap<&'static str, VecDeque<Answer>>,
    requests: Vec<(Instant, String)>,
}

impl Script {
    fn new<const N: usize>(resource: &'static str, answers: [Answer; N]) -> Self {
        Self::default().and(resource, answers)
    }

    /// Everything but what is malformed: the server writes protobuf.
    fn in_protobuf(self) -> Self {
        self.0.lock().unwrap().has_protobuf = true;
        self
    }

    fn and<const N: usize>(self, resource: &'static str, answers: [Answer; N]) -> Self {
        self.0.lock().unwrap().answers.insert(resource, answers.into());
        self
    }

    /// With the Node that Services would wait for.
    fn with_node(self) -> Self {
        self.and("nodes", [list(2, [node("z1", &["192.0.2.1"], 1)]), events_and_silence([])])
    }

    async fn answer(self, request: Request<Body>) -> Result<Response<AnswerBody>, Infallible> {
        let resource = request.uri().path().rsplit('/').next().unwrap().to_owned();
        let takes_protobuf = request.headers()[ACCEPT].to_str().unwrap().starts_with(PROTOBUF);
        let (answer, has_protobuf) = {
            let mut played = self.0.lock().unwrap();
            played.requests.push((Instant::now(), request.uri().to_string()));
            (played.answers.get_mut(&*resource).and_then(VecDeque::pop_front), played.has_protobuf)
        };
        let (status, text) = match answer {
            Some((_, body)) if body == SILENT => future::pending().await,
            Some(answer) => answer,
            None => future::pending().await,
        };
        let (text, stays_open) = text.strip_suffix(OPEN).map_or((&*text, false), |text| (text, true));
        let (text, breaks_off) = text.strip_suffix(BROKEN).map_or((text, false), |text| (text, true));
        let (content_type, mut body) = if has_protobuf && takes_protobuf {
            (PROTOBUF, in_protobuf(&resource, text))
        } else {
            ("application/json", Vec::from(text))
        };
        if breaks_off {
            body.truncate(body.len() / 2);
        }
        let body = if stays_open {
            let begin = stream::once(async { Ok(Frame::data(Bytes::from(body))) });
            BodyExt::boxed(StreamBody::new(begin.chain(stream::pending())))
        } else {
            Full::from(body).boxed()
        };
        Ok(Response::builder().status(status).header(CONTENT_TYPE, content_type).body(body).unwrap())
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

/// The same answer as an API server writes it in protobuf.
fn in_protobuf(resource: &str, text: &str) -> Vec<u8> {
    let kind = match resource {
        "services" => "Service",
        "endpointslices" => "EndpointSlice",
        _ => "Node",
    };
    let mut body = Vec::new();
    for mut object in serde_json::Deserializer::from_str(text).into_iter::<Value>().map(Result::unwrap) {
        if let Some(event) = object["type"].as_str() {
            let kind = if event == "ERROR" { "Status" } else { kind };
            body.extend(protobuf::event(event, kind, &object["object"]));
        } else if let Some(items) = object.get_mut("items").and_then(Value::as_array_mut) {
            let items = mem::take(items);
            body = protobuf::list(kind, object["metadata"]["resourceVersion"].as_str().unwrap(), items);
        } else {
            body = protobuf::object("Status", &object);
        }
    }
    body
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

fn list(version: u32, items: impl IntoIterator<Item = Value>) -> Answer {
    let metadata = json!({"resourceVersion": version.to_string()});
    let items: Vec<_> = items.into_iter().collect();
    let list = json!({"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": items});
    (200, list.to_string())
}

/// The changes in short: `=a,b` for a whole list, `+a:80`, `-a`, `n1 in z1 at 192.0.2.1`.
fn short(changes: &[Change]) -> Vec<String> {
    let (mut texts, mut listed) = (Vec::new(), BTreeSet::new());
    let all = |names: BTreeSet<&str>| format!("={}", Vec::from_iter(names).join(","));
    for change in changes {
        texts.push(match change {
            Change::Services(Event::InitApply(services)) => {
                listed.extend(services.iter().map(|service| &service.name));
                continue;
            }
            Change::Slices(Event::InitApply(slices)) => {
                listed.extend(slices.iter().map(|slice| &slice.name));
                continue;
            }
            Change::Services(Event::InitDone(names)) | Change::Slices(Event::InitDone(names)) => {
                assert!(names.iter().all(|name| listed.contains(name)), "not all of {names:?} were sent");
                listed.clear();
                all(names.iter().map(service::ObjectName::name).collect())
            }
            Change::Services(Event::Replace(services)) => {
                all(services.iter().map(|service| service.name.name()).collect())
            }
            Change::Slices(Event::Replace(slices)) => {
                all(slices.iter().map(|slice| slice.name.name()).collect())
            }
            Change::Services(Event::Apply(service)) => {
                format!("+{}:{}", service.name.name(), service.ports[0].port)
            }
            Change::Services(Event::Delete(name)) => format!("-{}", name.name()),
            Change::Node(Some(node)) => {
                let ips = node.ips.iter().map(ToString::to_string).collect::<Vec<_>>();
                format!("n1 in {} at {}", node.zone.as_deref().unwrap_or("no zone"), ips.join(","))
            }
            Change::Node(None) => "no n1".to_owned(),
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
    let script = || {
        let changes =
            [added("c", 4), event("MODIFIED", &service("a", 5)), event("DELETED", &service("b", 6))];
        Script::new("services", [list(3, [service("a", 1), service("b", 2)]), events(changes)])
    };
    for script in [script(), script().in_protobuf()] {
        assert_eq!(short(&script.play().await), ["=a,b", "+c:4", "+a:5", "-b"]);
        // The watch goes on from the last event.
        assert_eq!(parameter(&script.requests("services")[2], "resourceVersion").as_deref(), Some("6"));
    }
}

#[tokio::test(start_paused = true)]
async fn the_requests_carry_the_selectors_of_a_node_proxy() {
    let script = Script::default()
        .and("services", [list(1, []), list(1, [])])
        .and("endpointslices", [list(1, []), list(1, [])])
        .and("nodes", [list(1, [])]);
    script.play().await;
    let selectors = |resource: &str| {
        let mut selectors = script
            .requests(resource)
            .iter()
            .map(|uri| (parameter(uri, "labelSelector"), parameter(uri, "fieldSelector")))
            .collect::<Vec<_>>();
        assert!(selectors.len() >= 2, "no list or no watch of {resource}");
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
async fn the_first_list_is_of_what_the_server_has_at_hand() {
    let script = Script::default();
    script.play().await;
    let uri = &script.requests("endpointslices")[0];
    assert!(uri.contains("/apis/discovery.k8s.io/v1/endpointslices?"), "{uri}");
    assert_eq!(parameter(uri, "resourceVersion").as_deref(), Some("0"), "{uri}");
    for other in ["watch", "limit", "resourceVersionMatch"] {
        assert_eq!(parameter(uri, other), None, "{uri}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_know_the_field_of_the_selector_is_asked_without_it() {
    let unknown = || refusal(400);
    let script = Script::new(
        "services",
        [unknown(), refusal(422), list(5, [service("a", 1)]), events([added("b", 6)]), refusal(410)],
    );
    assert_eq!(short(&script.play().await), ["=a", "+b:6"]);
    let fields: Vec<_> =
        script.requests("services").iter().map(|uri| parameter(uri, "fieldSelector").is_some()).collect();
    let (with, without) = fields.split_at(1);
    assert_eq!(with, [true]);
    assert!(without.len() > 3 && without.iter().all(|has_it| !has_it), "{without:?}");
}

/// A list of 250 Services.
fn many() -> Answer {
    list(251, (1..=250).map(|number| service(&format!("s{number}"), number)))
}

/// Half of it.
fn half() -> Answer {
    let (status, text) = many();
    (status, text + BROKEN)
}

#[tokio::test(start_paused = true)]
async fn of_a_first_list_that_breaks_off_only_the_next_try_says_the_end() {
    let script = || Script::new("services", [half(), many()]);
    let (listed, kept) = (|count| ("listed", count), ("kept", 250));
    // What comes is passed on while it comes.
    for script in [script(), script().in_protobuf()] {
        let changes = script.play().await;
        assert_eq!(counts(&changes), [listed(100), listed(100), listed(100), listed(50), kept]);
    }
}

#[tokio::test(start_paused = true)]
async fn of_a_later_list_nothing_is_passed_on_before_its_end() {
    let script = Script::new("services", [list(1, []), list(1, []), refusal(410), half(), many()]);
    assert_eq!(counts(&script.play().await), [("kept", 0), ("replaced", 250)]);
}

/// The parts of lists that were passed on, and how many objects each had.
fn counts(changes: &[Change]) -> Vec<(&'static str, usize)> {
    let count = |change: &Change| match change {
        Change::Services(Event::InitApply(services)) => ("listed", services.len()),
        Change::Services(Event::InitDone(names)) => ("kept", names.len()),
        Change::Services(Event::Replace(services)) => ("replaced", services.len()),
        other => panic!("{other:?}"),
    };
    changes.iter().map(count).collect()
}

#[tokio::test(start_paused = true)]
async fn an_expired_version_leads_to_a_new_list_that_shows_the_deletions() {
    let lists = || (list(3, [service("a", 1), service("b", 2)]), list(9, [service("b", 2)]));
    let in_stream = events([event("ERROR", &status(410, "too old resource version"))]);
    for gone in [refusal(410), in_stream] {
        let script = || {
            let (first, second) = lists();
            Script::new("services", [first, gone.clone(), second])
        };
        for script in [script(), script().in_protobuf()] {
            assert_eq!(short(&script.play().await), ["=a,b", "=b"]);
            // From a server's cache, but it must not go back in time.
            let second = &script.requests("services")[2];
            assert_eq!(parameter(second, "resourceVersion").as_deref(), Some("3"));
            assert_eq!(parameter(second, "resourceVersionMatch").as_deref(), Some("NotOlderThan"));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_version_from_the_future_leads_to_a_list_of_what_there_is_now() {
    let restored = || (504, status(504, "Too large resource version: 3, current: 1").to_string());
    for answers in [vec![restored()], vec![refusal(410), restored()]] {
        let lists = [list(3, [service("a", 1)]), list(1, [service("b", 1)])];
        let [first, second] = lists;
        let asked = answers.len() + 1;
        let script = Script::default().in_protobuf();
        let answers = [vec![first], answers, vec![second]].concat();
        script.0.lock().unwrap().answers.insert("services", answers.into());
        assert_eq!(short(&script.play().await), ["=a", "=b"]);
        assert_eq!(parameter(&script.requests("services")[asked], "resourceVersion"), None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_in_trouble_for_a_moment_keeps_the_state_and_is_not_asked_for_a_list() {
    let script = Script::new(
        "services",
        [
            list(3, [service("a", 1)]),
            refusal(503),
            refusal(429),
            (502, "<html>bad gateway</html>".to_owned()),
            events([added("b", 4)]),
            refusal(500),
            refusal(429),
            refusal(500),
            events([added("c", 5)]),
        ],
    );
    assert_eq!(short(&script.play().await), ["=a", "+b:4", "+c:5"]);
    let versions: Vec<_> =
        script.requests("services")[1..9].iter().map(|uri| parameter(uri, "resourceVersion")).collect();
    let (three, four) = (Some("3".to_owned()), Some("4".to_owned()));
    assert_eq!(versions, [&three, &three, &three, &three, &four, &four, &four, &four].map(Clone::clone));
    for request in &script.requests("services")[1..9] {
        assert_eq!(parameter(request, "watch").as_deref(), Some("true"), "{request}");
        assert_eq!(parameter(request, "sendInitialEvents"), None);
    }
}

/// How a watch may be refused for ever.
fn refused_for_whatever_reason() -> Vec<(&'static str, Answer)> {
    vec![
        ("an error of the server's", refusal(500)),
        ("a server that is not ready", refusal(503)),
        ("a time that is over", (504, status(504, "the time is over").to_string())),
        ("a proxy in between", (502, "<html>bad gateway</html>".to_owned())),
        ("a watch that ends at once", events([])),
        ("no answer", silence()),
        ("half an event", (200, added("b", 4) + BROKEN)),
    ]
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_is_refused_for_whatever_reason_leads_to_a_list_after_three_attempts() {
    for (what, refused) in refused_for_whatever_reason() {
        let then = [refused.clone(), refused.clone(), refused, list(9, [service("b", 2)])];
        let script = Script::default();
        let answers = [&[list(3, [service("a", 1)])][..], &then, &[events([added("c", 10)])]].concat();
        script.0.lock().unwrap().answers.insert("services", answers.into());
        assert_eq!(short(&script.play().await), ["=a", "=b", "+c:10"], "{what}");
        let requests = script.timed_requests("services");
        let (at, uri) = &requests[4];
        assert_eq!(parameter(uri, "resourceVersionMatch").as_deref(), Some("NotOlderThan"), "{what}");
        if !matches!(what, "no answer" | "a watch that ends at once") {
            let waited = (*at - requests[1].0).as_secs_f64();
            assert!((3.1..7.0).contains(&waited), "{what}: {waited} s");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_too_busy_is_not_asked_for_a_list() {
    let busy = vec![refusal(429); 12];
    let answers = [vec![list(3, [service("a", 1)])], busy, vec![events([added("b", 4)])]].concat();
    let script = Script::default();
    script.0.lock().unwrap().answers.insert("services", answers.into());
    assert_eq!(short(&script.play_for(Duration::from_secs(1200)).await), ["=a", "+b:4"]);
}

#[tokio::test]
async fn a_server_without_a_connection_is_not_asked_for_a_list() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let config = kube::Config::new(format!("http://{closed}").parse().unwrap());
    let failure = Requests::new(client(&config).unwrap()).send(Request::new(Vec::new())).await.err().unwrap();
    assert!(!failure.may_be_due_to_the_version(), "{failure}");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_lists_and_refuses_each_watch_is_asked_for_fewer_and_fewer_lists() {
    for refused in [refusal(500), refusal(410)] {
        let refusals = if refused.0 == 410 { vec![refused] } else { vec![refused; 3] };
        let round = [vec![list(3, [service("a", 1)])], refusals].concat();
        let answers = iter::repeat_n(round, 200).flatten().collect();
        let script = Script::default().with_node();
        script.0.lock().unwrap().answers.insert("services", answers);
        script.play_for(Duration::from_secs(3600)).await;
        let requests = script.timed_requests("services");
        let begin = requests[0].0;
        let lists: Vec<_> = requests
            .iter()
            .filter(|(_, uri)| parameter(uri, "watch").is_none())
            .map(|(at, _)| (*at - begin).as_secs())
            .collect();
        let in_a_minute = lists.iter().filter(|at| **at < 60).count();
        assert!((2..=7).contains(&in_a_minute), "{lists:?}");
        assert!((10..130).contains(&lists.len()), "{} in an hour: {lists:?}", lists.len());
    }
}

#[tokio::test(start_paused = true)]
async fn a_version_that_no_list_is_given_for_either_leads_to_a_list_of_what_there_is_now() {
    let endless = "9".repeat(70_000);
    let bookmark = |version: &str| {
        let mut bookmark = service("x", 1);
        bookmark["metadata"] = json!({"resourceVersion": version});
        event("BOOKMARK", &bookmark)
    };
    // It does not fit into a URL; the server says that it is none.
    for (version, refusals) in [(&*endless, vec![]), ("none", vec![refusal(422), refusal(422)])] {
        let first = vec![list(3, [service("a", 1)]), events([bookmark(version)])];
        let answers = [first, refusals, vec![list(9, [service("b", 2)])]].concat();
        let script = Script::default();
        script.0.lock().unwrap().answers.insert("services", answers.into());
        assert_eq!(short(&script.play_for(Duration::from_secs(60)).await), ["=a", "=b"]);
        let lists: Vec<_> = script.requests("services");
        let last = lists.iter().rfind(|uri| parameter(uri, "watch").is_none()).unwrap();
        assert_eq!(parameter(last, "resourceVersion"), None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_back_is_asked_for_a_list_at_once_and_after_pauses_if_it_goes_on_refusing() {
    let away = vec![refusal(429); 7];
    let back = vec![refusal(410); 4];
    let script = Script::default();
    let answers = [vec![list(3, [service("a", 1)])], away, back, vec![list(9, [service("b", 2)])]].concat();
    script.0.lock().unwrap().answers.insert("services", answers.into());
    assert_eq!(short(&script.play().await), ["=a", "=b"]);
    let requests = script.timed_requests("services");
    let pauses: Vec<_> = requests[1..].windows(2).map(|pair| (pair[1].0 - pair[0].0).as_secs_f64()).collect();
    // Each may be up to twice as long.
    for (pause, least) in pauses.iter().zip([0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 0.8, 1.6, 3.2, 6.4]) {
        assert!((least..=2.0 * least + 0.1).contains(pause), "{pause} s instead of {least} s: {pauses:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_longer_than_any_answer_is_an_error_with_its_size_and_asked_for_again() {
    // Uncompressed, and in pieces, as it comes out of a few kilobytes of gzip.
    let piece = Bytes::from(vec![b' '; 1 << 20]);
    for (code, begin, most, log) in [
        (503, "", 1, "an answer of more than 64 KiB (503)"),
        (200, "{\"items\":[\"", 16, "an object of more than 16 MiB"),
    ] {
        let read = Arc::new(Mutex::new(0));
        let (counted, piece) = (Arc::clone(&read), piece.clone());
        let server = tower::service_fn(move |request: Request<Body>| {
            let (read, piece) = (Arc::clone(&counted), piece.clone());
            async move {
                if !request.uri().path().ends_with("/nodes") {
                    return future::pending().await;
                }
                *read.lock().unwrap() = 0;
                let pieces = stream::repeat(piece).inspect(move |_| *read.lock().unwrap() += 1);
                let body = stream::once(async move { Bytes::from_static(begin.as_bytes()) }).chain(pieces);
                let body = StreamBody::new(body.map(|piece| Ok::<_, Infallible>(Frame::data(piece))));
                Ok::<_, Infallible>(Response::builder().status(code).body(body).unwrap())
            }
        });
        let (logged, watches) = (Log::start().unwrap(), Watches::default());
        let watching = watch(Client::new(server, "default"), "n1", &watches, |_| {});
        assert!(timeout(Duration::from_secs(10), watching).await.is_err());
        let pieces = *read.lock().unwrap();
        assert!((most..most + 3).contains(&pieces), "{pieces} MiB were read of {log}");
        let lines = logged.lines().unwrap();
        let warnings = lines.iter().filter(|line| line.starts_with("WARN") && line.contains(log));
        assert_eq!(warnings.count(), 1, "{lines:#?}");
        assert!(watches.troubles()[0].contains(log), "{:?}", watches.troubles());
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_of_more_objects_than_any_cluster_has_is_an_error() {
    let tiny = br#"{"metadata":{"name":"a"}},"#.repeat(1 << 10);
    let server = tower::service_fn(move |request: Request<Body>| {
        let tiny = Bytes::from(tiny.clone());
        async move {
            if !request.uri().path().ends_with("/nodes") {
                return future::pending().await;
            }
            let begin = stream::once(async { Bytes::from_static(b"{\"items\":[") });
            let body = begin.chain(stream::repeat(tiny)).map(|piece| Ok::<_, Infallible>(Frame::data(piece)));
            Ok::<_, Infallible>(Response::new(StreamBody::new(body)))
        }
    });
    let watches = Watches::default();
    let watching = watch(Client::new(server, "default"), "n1", &watches, |_| {});
    assert!(timeout(Duration::from_secs(1), watching).await.is_err());
    let troubles = watches.troubles();
    assert!(troubles[0].contains("a list of more than 5000 objects"), "{troubles:?}");
}

#[tokio::test]
async fn an_answer_may_be_as_long_as_it_may_be_and_no_longer() {
    let read = async |length: usize| {
        let server = tower::service_fn(move |_: Request<Body>| async move {
            let pieces = vec![b' '; length].chunks(7).map(Bytes::copy_from_slice).collect::<Vec<_>>();
            let pieces = stream::iter(pieces).map(|piece| Ok::<_, Infallible>(Frame::data(piece)));
            Ok::<_, Infallible>(Response::new(StreamBody::new(pieces)))
        });
        let requests = Requests::new(Client::new(server, "default"));
        let answer = requests.send(Request::new(Vec::new())).await.unwrap();
        let mut text = Vec::new();
        answer.reader(2 << 10, "a list").read_to_end(&mut text).await.map(|_| text.len())
    };
    assert_eq!(read(2 << 10).await.unwrap(), 2 << 10);
    assert_eq!(read((2 << 10) + 1).await.unwrap_err().to_string(), "a list of more than 2 KiB");
}

#[tokio::test]
async fn an_answer_about_one_object_is_bounded_too() {
    let server = tower::service_fn(|_: Request<Body>| async {
        let endless = stream::repeat(Bytes::from(vec![b' '; 1 << 20]));
        let body = StreamBody::new(endless.map(|piece| Ok::<_, Infallible>(Frame::data(piece))));
        Ok::<_, Infallible>(Response::new(body))
    });
    let client = for_single_objects(&Client::new(server, "default"));
    let request = Request::get("/api/v1/namespaces/default").body(Vec::new()).unwrap();
    let error = client.request::<Value>(request).await.unwrap_err();
    assert!(service::one_line(&error).contains("length limit exceeded"), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn a_long_refusal_is_shortened() {
    let watches = Watches::default();
    let long = (503, status(503, &"é".repeat(30_000)).to_string());
    Script::new("nodes", [long]).play_to(&watches, Duration::from_secs(5)).await;
    let troubles = watches.troubles();
    assert!(troubles[0].contains("é... (503)") && troubles[0].len() < 2200, "{troubles:?}");
}

#[tokio::test(start_paused = true)]
async fn watch_that_keeps_closing_at_once_is_reopened_after_a_pause() {
    let empty = || events([]);
    let script =
        Script::new("services", [list(3, [service("a", 1)]), empty(), empty(), empty(), empty(), empty()])
            .with_node();
    // Two pauses take at least 0.8 + 1.6 s, and those before the lists that follow 0.8 + 1.6 + 3.2 s.
    assert_eq!(short(&script.play_for(Duration::from_secs(20)).await), ["n1 in z1 at 192.0.2.1", "=a"]);
    let requests = script.requests("services");
    assert!((3..9).contains(&requests.len()), "{requests:?}");
}

#[tokio::test(start_paused = true)]
async fn a_reopened_watch_counts_as_open_without_an_event_unless_it_is_closed_at_once() {
    let open = || events_and_silence([]);
    let then = async |answers: [Answer; 3]| {
        let [first, second, third] = answers;
        let script = Script::new("services", [list(3, [service("a", 1)]), first, second, third]).with_node();
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
    let script =
        Script::new("services", [list(3, [service("a", 1)]), silence(), events([added("b", 4)])]).with_node();
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
        [list(3, [service("a", 1)]), events_and_silence([added("b", 4)]), events([added("c", 5)])],
    )
    .with_node();
    // The server itself would end the watch after 290 s.
    let changes = script.play_for(Duration::from_secs(310)).await;
    assert_eq!(short(&changes), ["n1 in z1 at 192.0.2.1", "=a", "+b:4", "+c:5"]);
    assert_eq!(parameter(&script.requests("services")[2], "resourceVersion").as_deref(), Some("4"));
}

#[tokio::test(start_paused = true)]
async fn an_unanswered_list_is_requested_again_and_the_watch_fails_meanwhile() {
    let (_, text) = list(5, [service("a", 1)]);
    // Before the answer, and in the middle of it.
    for silent in [silence(), (200, text + BROKEN + OPEN)] {
        let answers = || [silent.clone(), list(5, [service("a", 1)]), events_and_silence([])];
        let script = Script::new("services", answers()).with_node();
        let changes = script.play_for(Duration::from_secs(70)).await;
        assert_eq!(short(&changes), ["n1 in z1 at 192.0.2.1", "=a"]);

        let watches = Watches::default();
        Script::new("services", [silent]).with_node().play_to(&watches, Duration::from_secs(70)).await;
        let troubles = watches.troubles();
        assert!(troubles.iter().any(|line| line.contains("no answer within 60 s")), "{troubles:?}");
    }
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
            list(5, [nameless.clone(), json!(17), odd.clone(), service("a", 80)]),
            events([event("ADDED", &nameless), event("MODIFIED", &odd), added("b", 6)]),
        ],
    )
    .play()
    .await;
    let [
        Change::Services(Event::InitApply(listed)),
        Change::Services(Event::InitDone(_)),
        Change::Services(Event::Apply(odd)),
        Change::Services(Event::Apply(b)),
    ] = &*changes
    else {
        panic!("{changes:?}")
    };
    assert_eq!(listed.iter().map(|service| service.name.name()).collect::<Vec<_>>(), ["odd", "a"]);
    assert_eq!(odd.problems, ["spec: \"none\" is not an object"]);
    assert_eq!(b.name.name(), "b");
}

#[tokio::test(start_paused = true)]
async fn a_problem_is_logged_once_while_its_object_exists_and_again_after_it_was_away() {
    let odd = |kind: &str, version: u32| {
        let mut odd = service("odd", version);
        odd["spec"] = json!("none");
        event(kind, &odd)
    };
    let listed = |version| {
        let mut odd = service("odd", 1);
        odd["spec"] = json!("none");
        list(version, [odd, service("a", 1)])
    };
    let (first, again) = (|| listed(2), || events([odd("ADDED", 9)]));
    let (_, text) = listed(2);
    for (times, what, script) in [
        (1, "there in each list", vec![first(), refusal(410), first(), refusal(410), first()]),
        (1, "a list that broke off between", vec![first(), refusal(410), (200, text + BROKEN), first()]),
        (1, "not in an empty list that is not believed", {
            vec![first(), refusal(410), list(3, []), first()]
        }),
        (2, "deleted while it was watched", vec![first(), events([odd("DELETED", 3)]), again()]),
        (2, "not in a later list", vec![first(), refusal(410), list(8, [service("a", 1)]), again()]),
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
        let full = |version| list(version, [object("a", 1)]);
        let empty = |version| list(version, []);
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
            list(1, []),
            list(2, []),
            events([added("a", 3)]),
            refusal(410),
            list(4, []),
            list(5, [service("a", 3)]),
        ],
    );
    assert_eq!(short(&since.play().await), ["=", "+a:3", "=a"]);
}

#[tokio::test(start_paused = true)]
async fn the_watch_fails_until_an_empty_list_is_repeated_and_the_log_says_why() {
    for (resource, object) in ALWAYS_SOME {
        let full = || list(3, [object("a", 1)]);
        let empty = || list(4, []);
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
        [list(2, [slice("IPv4", "1")]), events([event("MODIFIED", &slice("FQDN", "3"))])],
    );
    let changes = script.play().await;
    let [
        Change::Slices(Event::InitApply(slices)),
        Change::Slices(Event::InitDone(kept)),
        Change::Slices(Event::Delete(name)),
    ] = &*changes
    else {
        panic!("{changes:?}")
    };
    assert_eq!((slices.len(), kept.len(), name.to_string()), (1, 1, "shop/web-1".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn the_zone_of_the_node_is_sent_and_that_the_node_is_gone() {
    let script = Script::new(
        "nodes",
        [
            list(2, [node("z1", &["192.0.2.1"], 1)]),
            events([
                event("MODIFIED", &node("z2", &["192.0.2.1"], 3)),
                event("DELETED", &node("z2", &["192.0.2.1"], 4)),
            ]),
        ],
    );
    assert_eq!(
        short(&script.play().await),
        ["n1 in z1 at 192.0.2.1", "n1 in z2 at 192.0.2.1", "no n1"],
        "what it means is decided by State, which keeps the zone"
    );
}

#[tokio::test(start_paused = true)]
async fn a_list_without_the_node_says_that_it_is_gone() {
    let script = Script::new(
        "nodes",
        [
            list(2, [node("z1", &["192.0.2.1"], 1)]),
            refusal(410),
            list(3, []),
            events([event("ADDED", &node("z2", &["192.0.2.1"], 4))]),
        ],
    );
    assert_eq!(short(&script.play().await), ["n1 in z1 at 192.0.2.1", "no n1", "n1 in z2 at 192.0.2.1"]);
}

#[tokio::test(start_paused = true)]
async fn services_wait_until_the_ips_of_the_node_are_known() {
    let script = Script::new("services", [list(2, [service("a", 1)])]).and(
        "nodes",
        [
            list(1, []),
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
    let node_without_ips = || list(1, [node("z1", &[], 1)]);
    for nodes in [list(1, []), node_without_ips(), refusal(503)] {
        let script = || {
            let services = Script::new("services", [list(2, [service("a", 1)])]);
            services.and("nodes", [nodes.clone()])
        };
        let services = |mut changes: Vec<Change>| {
            changes.retain(|change| !matches!(change, Change::Node(_)));
            short(&changes)
        };
        assert_eq!(services(script().play_for(Duration::from_secs(29)).await), Vec::<String>::new());
        assert_eq!(services(script().play_for(Duration::from_secs(31)).await), ["=a"]);
    }
}

#[tokio::test(start_paused = true)]
async fn who_garbles_protobuf_is_asked_for_json() {
    // A wrong beginning, a field that is not a message, one longer than the rest.
    let too_long =
        [&b"k8s\0\x12\xff\xff\xff\xff\xff\xff\xff\xff\x7f\x12"[..], &[0xff; 8], &[0x7f; 20]].concat();
    for garbled in [&b"{\"kind\": \"ServiceList\"}"[..], b"k8s\0\x08\x01", &too_long] {
        let accepted = accepted_after(garbled.to_vec()).await;
        assert!(accepted[0].starts_with(PROTOBUF), "{accepted:?}");
        assert!(accepted[1..].iter().all(|accept| accept == "application/json"), "{accepted:?}");
        assert!(accepted.len() > 2, "{accepted:?}");
    }
}

/// What is accepted of a server that has this for clients that take protobuf, and Services in JSON.
async fn accepted_after(garbled: Vec<u8>) -> Vec<String> {
    let script = Script::new("services", [list(2, [service("a", 1)]), events([added("b", 3)])]).with_node();
    let all_accepted = Arc::new(Mutex::new(Vec::new()));
    let (answering, accepted) = (script.clone(), Arc::clone(&all_accepted));
    let server = tower::service_fn(move |request: Request<Body>| {
        let (script, accepted, garbled) = (answering.clone(), Arc::clone(&accepted), garbled.clone());
        async move {
            let accept = request.headers()[ACCEPT].to_str().unwrap().to_owned();
            if !request.uri().path().ends_with("/services") {
                return script.answer(request).await;
            }
            accepted.lock().unwrap().push(accept.clone());
            if !accept.starts_with(PROTOBUF) {
                return script.answer(request).await;
            }
            let body = Full::from(garbled).boxed();
            Ok(Response::builder().header(CONTENT_TYPE, PROTOBUF).body(body).unwrap())
        }
    });
    let changes = Mutex::new(Vec::new());
    let watches = Watches::default();
    let watching =
        watch(Client::new(server, "default"), "n1", &watches, |change| changes.lock().unwrap().push(change));
    assert!(timeout(Duration::from_secs(100), watching).await.is_err());
    assert_eq!(short(&changes.into_inner().unwrap()), ["n1 in z1 at 192.0.2.1", "=a", "+b:3"]);
    all_accepted.lock().unwrap().clone()
}

#[tokio::test(start_paused = true)]
async fn a_list_in_json_without_items_may_say_null() {
    let null = json!({"metadata": {"resourceVersion": "3"}, "items": null}).to_string();
    assert_eq!(short(&Script::new("nodes", [(200, null)]).play().await), ["no n1"]);
}
