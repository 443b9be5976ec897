//! `kubectl ipvs status`.

use serde::Deserialize;

use super::{
    fleet::Answered,
    node_table::{Finding, first_lines, table},
};

/// How many lines of a kind are shown of a node.
const MOST_LINES: usize = 5;

/// What is read of `kube-ipvs status -o json`. It is less than this version prints, so that the answers of others can be
/// read while a cluster is upgraded.
#[derive(Debug, Deserialize)]
pub(super) struct NodeStatus {
    daemon: Daemon,
    problems: Vec<String>,
    last_sync: Option<LastSync>,
    advice: Vec<Advice>,
}

#[derive(Debug, Deserialize)]
struct Daemon {
    version: String,
}

#[derive(Debug, Deserialize)]
struct LastSync {
    report: Report,
}

#[derive(Debug, Deserialize)]
struct Report {
    failures: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Advice {
    severity: Severity,
    what: String,
    remedy: Option<String>,
}

#[derive(Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
enum Severity {
    Warning,
    #[serde(other)]
    Other,
}

/// The table of nodes. Whether one is in order it says itself.
pub(super) fn text(answers: &[Answered<NodeStatus>]) -> String {
    table("STATUS", answers, |answered| match &answered.answer {
        Err(why) => Finding::no_answer(why),
        Ok(answer) => {
            let words = if answer.in_order { "in order" } else { "not in order" };
            let version = &answer.read.daemon.version;
            let why = answer.complaint.iter().filter(|_| !answer.in_order);
            let details = why.cloned().chain(answer.read.details()).collect();
            Finding { in_order: answer.in_order, summary: format!("{words}, {version}"), details }
        }
    })
}

impl NodeStatus {
    /// What is wrong, as `kube-ipvs status` says it.
    fn details(&self) -> impl Iterator<Item = String> {
        let failures = self.last_sync.iter().flat_map(|last| &last.report.failures);
        let warnings = self.advice.iter().filter(|advice| advice.severity == Severity::Warning);
        [
            first_lines(failures.map(|failure| format!("failed: {failure}")), MOST_LINES),
            first_lines(self.problems.iter().map(|problem| format!("problem: {problem}")), MOST_LINES),
            first_lines(
                warnings.map(|Advice { what, remedy, .. }| match remedy {
                    Some(remedy) => format!("warning: {what}; remedy: {remedy}"),
                    None => format!("warning: {what}"),
                }),
                MOST_LINES,
            ),
        ]
        .into_iter()
        .flatten()
    }
}

#[cfg(test)]
mod tests;
