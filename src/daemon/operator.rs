//! What the control socket is answered.

use reconciler::Handle;
use watcher::{api::Watches, one_line};

use super::{about::About, config_file::Unusable};
use crate::{
    advice::Held,
    control::{self, Answers, Difference, Request, Response},
    logging::{Dial, Level},
};

/// Answers the control socket.
pub(super) struct Operator {
    pub(super) about: About,
    pub(super) handle: Handle,
    pub(super) watches: Watches,
    pub(super) advice: Held,
    pub(super) unusable: Unusable,
    pub(super) dial: Dial,
}

impl Answers for Operator {
    fn answer(&self, request: Request) -> Response {
        let answer = match request {
            Request::LogLevel { set } => return log_level(&self.dial, set.as_ref()),
            Request::Diff => self
                .handle
                .compare()
                .map(|plan| Response::Difference(Difference { plan, troubles: self.watches.troubles() })),
            Request::Explain { service } => self.handle.explain(service).map(|mut explanation| {
                explanation.problems.splice(0..0, self.watches.troubles());
                Response::Explanation(Box::new(explanation))
            }),
            Request::Holders => self.handle.holders().map(Response::Holders).map_err(Into::into),
            Request::Resync => self.handle.resync().map(Response::Report).map_err(Into::into),
            Request::Status => self.handle.status().map_err(Into::into).map(|mut programmed| {
                programmed.problems.splice(0..0, self.watches.troubles());
                let advice = self.unusable.advice().into_iter().chain(self.advice.advice()).collect();
                Response::Status(Box::new(control::Status { daemon: self.about.now(), programmed, advice }))
            }),
        };
        answer.unwrap_or_else(|unanswered| Response::Error(one_line(&unanswered)))
    }
}

/// Changes what is logged, if it is to be changed, and says what it is.
pub(super) fn log_level(dial: &Dial, set: Option<&Level>) -> Response {
    let level = set.map_or(Ok(()), |level| dial.set(level)).and_then(|()| dial.directives());
    level.map_or_else(|error| Response::Error(one_line(&error)), Response::LogLevel)
}
