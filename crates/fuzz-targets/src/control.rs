//! The control socket, both ends.

use std::fmt::Debug;

use kube_ipvs::serve::control::{Request, Response};

/// Reads a line as a request and as an answer. Both are written, and read again as the same.
pub fn fuzz(input: &[u8]) {
    if let Ok(request) = Request::decode(input) {
        same(&request, serde_json::to_vec(&request).and_then(|line| Request::decode(&line)));
    }
    if let Ok(response) = Response::decode(input) {
        same(&response, serde_json::to_vec(&response).and_then(|line| Response::decode(&line)));
    }
}

fn same<T: Debug + PartialEq>(first: &T, again: serde_json::Result<T>) {
    assert_eq!(again.ok().as_ref(), Some(first));
}
