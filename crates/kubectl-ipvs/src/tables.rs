//! The tables of `kubectl ipvs status`, `diff` and `top`.

use std::collections::BTreeMap;

use operator::top::{self, Column, Frame, ServiceRow};
use serde::Deserialize;

use super::{
    fleet::{Answer, Answered},
    node_table::{Finding, first_lines, table},
};

/// The limit of printed lines of one kind for each node.
const MOST_LINES: usize = 5;

/// The part of `kube-ipvs status -o json` that is read: less than this version prints, so that the answers of others
/// can be read while a cluster is upgraded.
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

/// The table of `status`. Each node says itself whether it is in order.
pub(super) fn status(answers: &[Answered<NodeStatus>]) -> String {
    table("STATUS", answers, |answer| {
        let words = if answer.in_order { "in order" } else { "not in order" };
        let version = &answer.read.daemon.version;
        let why = answer.complaint.iter().filter(|_| !answer.in_order);
        let details = why.cloned().chain(answer.read.details()).collect();
        Finding { in_order: answer.in_order, summary: format!("{words}, {version}"), details }
    })
}

impl NodeStatus {
    /// The failures, problems and warnings, as `kube-ipvs status` words them.
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

/// The limit of printed operations for each node: a cleared table lacks ten thousands.
const MOST_OPERATIONS: usize = 10;

/// The part of `kube-ipvs diff -o json` that is read.
#[derive(Debug, Deserialize)]
pub(super) struct Difference {
    operations: Vec<Operation>,
    troubles: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Operation {
    text: String,
}

/// The table of `diff`: nodes with the operations that would remove their differences.
pub(super) fn diff(answers: &[Answered<Difference>]) -> String {
    table("DIFFERENCE", answers, |Answer { in_order, read: Difference { operations, troubles }, .. }| {
        let summary = match operations.len() {
            0 => "nothing differs".to_owned(),
            1 => "1 operation".to_owned(),
            many => format!("{many} operations"),
        };
        let texts = operations.iter().map(|operation| operation.text.clone());
        let mut details = first_lines(texts, MOST_OPERATIONS);
        details.extend(
            troubles.iter().map(|trouble| format!("the desired state may be out of date: {trouble}")),
        );
        Finding { in_order: *in_order, summary, details }
    })
}

/// The traffic of each Service on all nodes together, below a table of the nodes if some have not answered.
pub(super) fn top(answers: &[Answered<Frame>]) -> String {
    let frames = answers.iter().filter_map(|answered| Some(&answered.answer.as_ref().ok()?.read));
    let traffic = top::text(&sum(frames), false);
    if answers.iter().all(|answered| answered.answer.is_ok()) {
        return traffic;
    }
    format!("{}\n{traffic}", table("TRAFFIC", answers, |_| Finding::in_order("added up below")))
}

/// Sums the rows by name, the most bytes first. Real servers are left out: each node has all of them.
fn sum<'a>(frames: impl Iterator<Item = &'a Frame>) -> Frame {
    let mut rows: BTreeMap<String, ServiceRow> = BTreeMap::new();
    for row in frames.flat_map(|frame| &frame.services) {
        match rows.get_mut(&row.name()) {
            Some(sum) => {
                sum.load += row.load;
                sum.liveness = sum.liveness.max(row.liveness);
            }
            None => _ = rows.insert(row.name(), ServiceRow { real_servers: Vec::new(), ..row.clone() }),
        }
    }
    let mut all = Frame { services: rows.into_values().collect(), ..Frame::default() };
    all.sort(Column::Bytes);
    all
}

#[cfg(test)]
mod tests;
