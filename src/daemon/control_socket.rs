//! What the control socket is answered.

use reconciler::{Handle, Status};
use service::one_line;

use super::{about::About, exit::config_file::Unusable, problems::Troubles};
use crate::{
    logging::{Dial, Level},
    node::advice::Held,
    serve::control::{self, Answers, Difference, Request, Response, Resynced},
};

/// Answers the control socket.
pub(super) struct Operator {
    pub(super) about: About,
    pub(super) handle: Handle,
    pub(super) troubles: Troubles,
    pub(super) advice: Held,
    pub(super) unusable: Unusable,
    pub(super) dial: Dial,
}

impl Answers for Operator {
    fn answer(&self, request: Request) -> Response {
        let answer = match request {
            Request::LogLevel { set } => return log_level(&self.dial, set.as_ref()),
            Request::Diff => self.handle.compare().map(|plan| {
                Response::Difference(Difference { plan, troubles: self.troubles.of_the_source() })
            }),
            Request::Explain { service } => self.handle.explain(service).map(|mut explanation| {
                say_first(self.troubles.of_the_source(), &mut explanation.problems);
                Response::Explanation(Box::new(explanation))
            }),
            Request::Holders => self.handle.holders().map(Response::Holders).map_err(Into::into),
            Request::Resync => self.handle.resync().map_err(Into::into).map(|report| {
                Response::Resynced(Resynced { report, troubles: self.troubles.of_the_source() })
            }),
            Request::Status => self.handle.status().map_err(Into::into).map(|mut programmed| {
                say_first(self.troubles.all(), &mut programmed.problems);
                let advice = self.unusable.advice().into_iter().chain(self.advice.advice()).collect();
                Response::Status(Box::new(control::Status { daemon: self.about.now(), programmed, advice }))
            }),
        };
        answer.unwrap_or_else(|unanswered| Response::Error(one_line(&unanswered)))
    }
}

/// Puts troubles on the way to the objects before the objects' own problems, and leaves out what is too much.
pub(super) fn say_first(troubles: impl IntoIterator<Item = String>, problems: &mut Vec<String>) {
    problems.splice(0..0, troubles);
    problems.truncate(Status::MOST_PROBLEMS);
}

/// Changes the level of the log, if there is one to set, and returns the level in use.
pub(super) fn log_level(dial: &Dial, set: Option<&Level>) -> Response {
    let level = set.map_or(Ok(()), |level| dial.set(level)).and_then(|()| dial.directives());
    level.map_or_else(|error| Response::Error(one_line(&error)), Response::LogLevel)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_so_many_problems_at_most_those_of_the_watches_first() {
        let mut problems: Vec<_> =
            (0..Status::MOST_PROBLEMS).map(|number| format!("object {number}")).collect();
        say_first(["a watch".to_owned(), "another".to_owned()], &mut problems);
        assert_eq!(problems.len(), Status::MOST_PROBLEMS);
        assert_eq!(problems[..3], ["a watch", "another", "object 0"]);
    }
}
