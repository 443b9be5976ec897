//! Handles the requests of the control socket.

use std::sync::Arc;

use reconciler::{Handle, SyncStatus};
use service::one_line;

use super::{
    identity::Identity,
    problems::{HeldAdvice, Problems},
};
use crate::{
    logging::{Level, LogLevelHandle},
    serve::{
        control::{self, BugReport, Difference, Request, RequestHandler, Response, Resynced},
        metrics::MetricsPages,
    },
    version::Build,
};

/// Handles requests while the writer thread runs.
pub(super) struct ControlHandler {
    pub(super) identity: Identity,
    pub(super) handle: Handle,
    pub(super) problems: Problems,
    pub(super) advice: HeldAdvice,
    pub(super) log_level: LogLevelHandle,
    pub(super) pages: Arc<MetricsPages>,
}

impl RequestHandler for ControlHandler {
    fn handle(&self, request: Request) -> Response {
        let answer = match request {
            Request::BugReport => return Response::BugReport(Box::new(BugReport::new(&self.pages))),
            Request::LogLevel { set } => return log_level(&self.log_level, set.as_ref()),
            Request::Version => return Response::Version(Build::this()),
            Request::Diff => self.handle.compare().map(|plan| {
                Response::Difference(Difference { plan, troubles: self.problems.about_source() })
            }),
            Request::Explain { service } => self.handle.explain(service).map(|mut explanation| {
                put_first(self.problems.about_source(), &mut explanation.problems);
                Response::Explanation(Box::new(explanation))
            }),
            Request::ExplainAddress { ip } => self
                .handle
                .explain_address(ip)
                .map(|explanation| Response::AddressExplanation(Box::new(explanation))),
            Request::Holders => {
                self.handle.virtual_server_owners().map(Response::Holders).map_err(Into::into)
            }
            Request::Resync => self.handle.resync().map_err(Into::into).map(|report| {
                Response::Resynced(Resynced { report, troubles: self.problems.about_source() })
            }),
            Request::Status => self.handle.status().map_err(Into::into).map(|mut programmed| {
                put_first(self.problems.all(), &mut programmed.problems);
                Response::Status(Box::new(control::DaemonStatus {
                    daemon: self.identity.now(),
                    programmed,
                    advice: self.advice.all(),
                }))
            }),
        };
        answer.unwrap_or_else(|unanswered| Response::Error(one_line(&unanswered)))
    }
}

/// Puts problems of the source before the objects' own, and truncates the list.
pub(super) fn put_first(first: impl IntoIterator<Item = String>, problems: &mut Vec<String>) {
    problems.splice(0..0, first);
    problems.truncate(SyncStatus::MOST_PROBLEMS);
}

/// Sets the level of the log if one is given, and returns the level in use.
pub(super) fn log_level(log_level: &LogLevelHandle, set: Option<&Level>) -> Response {
    let level = set.map_or(Ok(()), |level| log_level.set(level)).and_then(|()| log_level.directives());
    level.map_or_else(|error| Response::Error(one_line(&error)), Response::LogLevel)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_so_many_problems_at_most_those_of_the_watches_first() {
        let mut problems: Vec<_> =
            (0..SyncStatus::MOST_PROBLEMS).map(|number| format!("object {number}")).collect();
        put_first(["a watch".to_owned(), "another".to_owned()], &mut problems);
        assert_eq!(problems.len(), SyncStatus::MOST_PROBLEMS);
        assert_eq!(problems[..3], ["a watch", "another", "object 0"]);
    }
}
