//! The control socket, both ends.

use std::fmt::Debug;

use kube_ipvs::serve::control::{
    BugReport, DaemonStatus, Difference, Request, Resynced, decode_answer, encode_answer,
};
use serde::{Serialize, de::DeserializeOwned};

/// Reads a line as a request, and as an answer of each kind. Both are written, and read again as the same.
pub fn fuzz(input: &[u8]) {
    if let Ok(request) = Request::decode(input) {
        same(&request, serde_json::to_vec(&request).and_then(|line| Request::decode(&line)));
    }
    answer::<BugReport>(input);
    answer::<DaemonStatus>(input);
    answer::<Difference>(input);
    answer::<Resynced>(input);
}

fn answer<T: Clone + Debug + PartialEq + Serialize + DeserializeOwned>(input: &[u8]) {
    if let Ok(answer) = decode_answer::<T>(input) {
        same(&answer, encode_answer("answer", answer.clone()).and_then(|line| decode_answer(&line)));
    }
}

fn same<T: Debug + PartialEq>(first: &T, again: serde_json::Result<T>) {
    assert_eq!(again.ok().as_ref(), Some(first));
}
