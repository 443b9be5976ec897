//! What the control socket is answered.

use reconciler::Handle;
use watcher::api::Troubles;

use crate::{
    advice::Held,
    control::{self, Answers, Request, Response},
};

/// Answers the control socket.
pub(super) struct Operator {
    pub(super) handle: Handle,
    pub(super) troubles: Troubles,
    pub(super) advice: Held,
}

impl Answers for Operator {
    fn answer(&self, request: Request) -> Response {
        let answer = match request {
            Request::Resync => self.handle.resync().map(Response::Report),
            Request::Status => self.handle.status().map(|mut programmed| {
                programmed.problems.splice(0..0, self.troubles.lines());
                let advice = self.advice.advice();
                Response::Status(Box::new(control::Status { programmed, advice }))
            }),
        };
        answer.unwrap_or_else(|stopped| Response::Error(stopped.to_string()))
    }
}
