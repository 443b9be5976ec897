//! A table of nodes: nodes with the same finding share a row.

use std::{collections::BTreeMap, fmt::Write};

use service::one_line;

use super::fleet::{Answer, Answered, NoAnswer};

/// The finding about a node: a summary, then details.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Finding {
    pub(super) in_order: bool,
    pub(super) summary: String,
    pub(super) details: Vec<String>,
}

impl Finding {
    /// The finding about a node in order.
    pub(super) fn in_order(summary: &str) -> Self {
        Self { in_order: true, summary: summary.to_owned(), details: Vec::new() }
    }

    /// The finding about a node without an answer.
    fn no_answer(why: &NoAnswer) -> Self {
        Self { in_order: false, summary: format!("no answer: {}", one_line(why)), details: Vec::new() }
    }
}

/// The limit of named nodes in a row.
const NAMED: usize = 3;

/// A row for each finding about the answers: trouble first, then what few nodes have. The nodes of
/// the last row are counted instead of named, if it is in order and has no details.
pub(super) fn table<T>(
    heading: &str,
    answers: &[Answered<T>],
    finding: impl Fn(&Answer<T>) -> Finding,
) -> String {
    let mut groups: BTreeMap<Finding, Vec<&str>> = BTreeMap::new();
    for answered in answers {
        let found = answered.answer.as_ref().map_or_else(Finding::no_answer, &finding);
        groups.entry(found).or_default().push(name(answered));
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by_key(|(finding, nodes)| (finding.in_order, finding.details.is_empty(), nodes.len()));
    let last = groups.len().saturating_sub(1);
    let rows =
        groups.into_iter().enumerate().map(|(number, (Finding { in_order, summary, details }, nodes))| {
            let is_rest = number == last && in_order && details.is_empty();
            (if is_rest { counted(nodes.len()) } else { named(&nodes) }, summary, details)
        });
    render(heading, &rows.collect::<Vec<_>>())
}

/// Appends the nodes without an answer to the text.
pub(super) fn with_silent_nodes<T>(mut text: String, answers: &[Answered<T>]) -> String {
    if answers.iter().any(|answered| answered.answer.is_err()) {
        text.push_str(&table("ANSWER", answers, |_| Finding::in_order("above")));
    }
    text.truncate(text.trim_end().len());
    text + "\n"
}

/// The displayed name of a node; the pod's, if that has no node yet.
pub(super) fn name<T>(Answered { node, pod, .. }: &Answered<T>) -> &str {
    if node.is_empty() { pod } else { node }
}

/// The names of the first nodes, and the number of the others.
pub(super) fn named(nodes: &[&str]) -> String {
    let (first, more) = nodes.split_at(NAMED.min(nodes.len()));
    match more.len() {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

/// The number of nodes.
pub(super) fn counted(nodes: usize) -> String {
    format!("{nodes} {}", if nodes == 1 { "node" } else { "nodes" })
}

/// The first lines, and the number of the others.
pub(super) fn first_lines(lines: impl IntoIterator<Item = String>, most: usize) -> Vec<String> {
    let mut lines = lines.into_iter();
    let mut first: Vec<_> = lines.by_ref().take(most).collect();
    match lines.count() {
        0 => {}
        more => first.push(format!("and {more} more")),
    }
    first
}

fn render(heading: &str, rows: &[(String, String, Vec<String>)]) -> String {
    const NODE: &str = "NODE";
    let width = rows.iter().map(|(nodes, ..)| nodes.len()).max().unwrap_or_default().max(NODE.len());
    let mut text = String::new();
    // Writing to a string cannot fail.
    _ = writeln!(text, "{NODE:width$}  {heading}");
    for (nodes, summary, details) in rows {
        _ = writeln!(text, "{nodes:width$}  {summary}");
        for line in details {
            _ = writeln!(text, "{:width$}  {line}", "");
        }
    }
    text
}
