//! Watches and lists of the API server.

use std::{
    cell::RefCell,
    collections::VecDeque,
    convert::Infallible,
    future,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
    vec,
};

use futures::stream;
use http::{HeaderValue, Request, Response, StatusCode, header::CONTENT_TYPE};
use http_body_util::StreamBody;
use hyper::body::{Bytes, Frame};
use kube::{Client, client::Body};
use kubernetes::api;
use service::Change;
use tokio::{runtime::Builder, time::timeout};

/// Between two answers.
const SEPARATOR: u8 = 0x1e;
/// The longest time of one answer, with the jittered pause before the next request. It is tokio's paused time, which
/// jumps ahead whenever every task waits.
const ONE_ANSWER: Duration = Duration::from_secs(100);
/// The time after the last answer, in which retries run out.
const AFTER_THE_LAST: Duration = Duration::from_secs(600);

/// A body in pieces.
type Pieces = StreamBody<stream::Iter<vec::IntoIter<Result<Frame<Bytes>, Infallible>>>>;

/// Plays an API server with these answers, one to each request for one kind of object, and none afterwards. The changes
/// are the same whether an answer comes in one piece or in small ones.
///
/// The first byte is the kind, in capitals where the answers are protobuf. An answer begins with its status, a line of
/// three digits, or is a success.
pub fn fuzz(input: &[u8]) {
    let Some((kind, input)) = input.split_first() else { return };
    let encoding =
        if kind.is_ascii_uppercase() { "application/vnd.kubernetes.protobuf" } else { "application/json" };
    let asked = match kind.to_ascii_lowercase() {
        b'e' => "/endpointslices",
        b'n' => "/nodes",
        _ => "/services",
    };
    let answers: VecDeque<Bytes> =
        input.split(|byte| *byte == SEPARATOR).map(Bytes::copy_from_slice).collect();
    let Some(whole) = changes(asked, encoding, answers.clone(), usize::MAX) else { return };
    assert_eq!(Some(whole), changes(asked, encoding, answers, 7), "it depends on where the answer is cut");
}

/// The changes that these answers make, in pieces of this size.
fn changes(
    asked: &'static str,
    encoding: &'static str,
    answers: VecDeque<Bytes>,
    piece: usize,
) -> Option<Vec<Change>> {
    let long_enough =
        AFTER_THE_LAST + ONE_ANSWER.saturating_mul(answers.len().try_into().unwrap_or(u32::MAX));
    let answers = Arc::new(Mutex::new(answers));
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().ok()?;
    runtime.block_on(async {
        let respond = move |request: Request<Body>| {
            let next = || answers.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            let answer = request.uri().path().ends_with(asked).then(next).flatten();
            async move {
                match answer {
                    Some(answer) => Ok::<_, Infallible>(response(&answer, encoding, piece)),
                    None => future::pending().await,
                }
            }
        };
        let client = Client::new(tower::service_fn(respond), "default");
        let changes = RefCell::new(Vec::new());
        let watches = api::Watches::default();
        let watching = api::watch(client, "node", &watches, |change| changes.borrow_mut().push(change));
        drop(timeout(long_enough, watching).await);
        Some(changes.into_inner())
    })
}

/// The status and the body, in pieces of this size.
fn response(answer: &[u8], encoding: &'static str, piece: usize) -> Response<Pieces> {
    let (status, body) = match answer.split_at_checked(4) {
        Some(([status @ .., b'\n'], body)) => (StatusCode::from_bytes(status).unwrap_or_default(), body),
        _ => (StatusCode::OK, answer),
    };
    let frames: Vec<_> =
        body.chunks(piece).map(|piece| Ok(Frame::data(Bytes::copy_from_slice(piece)))).collect();
    let mut response = Response::new(StreamBody::new(stream::iter(frames)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(encoding));
    response
}
