//! Against an API server that knows one Service. Time is tokio's, which jumps ahead whenever everybody
//! waits.

use std::{convert::Infallible, future, sync::Mutex};

use http::{Method, Request, Response, StatusCode};
use kube::client::Body;
use serde_json::{Value, json};

use super::*;

/// What it does when an Event is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mood {
    Takes,
    HasIt,
    Refuses,
    KeepsSilent,
}

/// The API server: the Service shop/web with the uid "u-1", and the Events that it was sent.
#[derive(Clone)]
struct Server {
    mood: Mood,
    sent: Arc<Mutex<Vec<Value>>>,
}

impl Server {
    fn new(mood: Mood) -> Self {
        Self { mood, sent: Arc::default() }
    }

    fn queue(&self) -> (Outbox, Publisher) {
        let server = self.clone();
        let service = tower::service_fn(move |request| server.clone().answer(request));
        queue(Client::new(service, "default"), "node-1")
    }

    async fn answer(self, request: Request<Body>) -> Result<Response<Body>, Infallible> {
        let uri = request.uri().to_string();
        if request.method() == Method::GET {
            let is_web = uri.starts_with("/api/v1/namespaces/shop/services?")
                && uri.contains("fieldSelector=metadata.name%3Dweb");
            let web = json!({"metadata": {"namespace": "shop", "name": "web", "uid": "u-1"}});
            let items = if is_web { vec![web] } else { Vec::new() };
            return Ok(response(StatusCode::OK, &json!({"metadata": {}, "items": items})));
        }
        assert_eq!(
            (request.method(), &*uri),
            (&Method::POST, "/apis/events.k8s.io/v1/namespaces/shop/events?")
        );
        let body = request.into_body().collect_bytes().await.unwrap();
        let event: Value = serde_json::from_slice(&body).unwrap();
        self.sent.lock().unwrap().push(event.clone());
        let refusal = |code: u16, reason: &str| json!({"kind": "Status", "status": "Failure", "message": "no", "reason": reason, "code": code});
        Ok(match self.mood {
            Mood::Takes => response(StatusCode::CREATED, &event),
            Mood::HasIt => response(StatusCode::CONFLICT, &refusal(409, "AlreadyExists")),
            Mood::Refuses => response(StatusCode::FORBIDDEN, &refusal(403, "Forbidden")),
            Mood::KeepsSilent => future::pending().await,
        })
    }

    fn notes(&self) -> Vec<String> {
        let note = |event: &Value| event["note"].as_str().unwrap().to_owned();
        self.sent.lock().unwrap().iter().map(note).collect()
    }
}

fn response(status: StatusCode, body: &Value) -> Response<Body> {
    Response::builder().status(status).body(Body::from(body.to_string().into_bytes())).unwrap()
}

fn notice(service: &str, text: &str) -> Notice {
    Notice { service: ObjectName::new("shop", service), reason: Reason::AddressTaken, text: text.to_owned() }
}

#[tokio::test(start_paused = true)]
async fn all_that_a_sync_finds_out_about_a_service_is_one_event_that_names_it_with_its_uid() {
    let server = Server::new(Mood::Takes);
    let (outbox, publisher) = server.queue();
    for text in ["b is taken", "a is taken", "b is taken"] {
        outbox.post(notice("web", text));
    }
    drop(outbox);
    publisher.run().await;
    let sent = server.sent.lock().unwrap();
    let [event] = sent.as_slice() else { panic!("{sent:?}") };
    assert_eq!(event["note"], "a is taken. b is taken");
    assert_eq!((&event["type"], &event["reason"]), (&json!("Warning"), &json!("AddressTaken")));
    assert_eq!(
        event["regarding"],
        json!({"apiVersion": "v1", "kind": "Service", "namespace": "shop", "name": "web", "uid": "u-1"})
    );
    assert_eq!(
        (&event["reportingController"], &event["reportingInstance"]),
        (&json!("kube-ipvs"), &json!("node-1"))
    );
}

#[tokio::test(start_paused = true)]
async fn of_one_service_and_reason_no_more_than_one_event_is_sent_in_ten_minutes() {
    let server = Server::new(Mood::Takes);
    let (outbox, publisher) = server.queue();
    let publishing = tokio::spawn(publisher.run());
    for minute in 0..=22 {
        outbox.post(notice("web", &format!("minute {minute}")));
        sleep(Duration::from_mins(1)).await;
    }
    drop(outbox);
    publishing.await.unwrap();
    assert_eq!(server.notes(), ["minute 0", "minute 10", "minute 20"]);
}

#[tokio::test(start_paused = true)]
async fn a_service_that_is_gone_gets_no_event() {
    let server = Server::new(Mood::Takes);
    let (outbox, publisher) = server.queue();
    outbox.post(notice("gone", "taken"));
    outbox.post(notice("web", "taken"));
    drop(outbox);
    publisher.run().await;
    assert_eq!(server.notes(), ["taken"]);
}

#[tokio::test(start_paused = true)]
async fn whatever_the_api_server_does_each_notice_is_sent_once_and_the_next_one_too() {
    for mood in [Mood::HasIt, Mood::Refuses, Mood::KeepsSilent] {
        let server = Server::new(mood);
        let (outbox, publisher) = server.queue();
        let publishing = tokio::spawn(publisher.run());
        outbox.post(notice("web", "first"));
        sleep(QUIET * 2).await;
        outbox.post(notice("web", "second"));
        drop(outbox);
        publishing.await.unwrap();
        assert_eq!(server.notes(), ["first", "second"], "{mood:?}");
    }
}

#[tokio::test]
async fn too_many_notices_are_dropped_and_counted_and_nobody_waits() {
    let (outbox, publisher) = Server::new(Mood::Takes).queue();
    for number in 0..QUEUE + 7 {
        outbox.post(notice("web", &number.to_string()));
    }
    assert_eq!(publisher.dropped.load(Ordering::Relaxed), 7);
    drop(publisher);
    outbox.post(notice("web", "after the end"));
}
