//! The findings that all nodes share, once, and below them those of some nodes.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::{self, Write as _},
};

use super::{
    super::{
        fleet::Answered,
        node_table::{counted, name, named, with_silent_nodes},
    },
    Finding, Report, Verdict,
};

/// The findings that all nodes share, then those of some nodes, the worst first, then the nodes without an answer.
pub(super) fn text(answers: &[Answered<Report>]) -> String {
    let mut nodes_by_finding: BTreeMap<&Finding, BTreeSet<&str>> = BTreeMap::new();
    let mut reports = 0;
    for answered in answers {
        let Ok(answer) = &answered.answer else { continue };
        reports += 1;
        for finding in &answer.read.findings {
            nodes_by_finding.entry(finding).or_default().insert(name(answered));
        }
    }
    let mut findings_by_nodes: BTreeMap<BTreeSet<&str>, Vec<&Finding>> = BTreeMap::new();
    for (finding, nodes) in nodes_by_finding {
        findings_by_nodes.entry(nodes).or_default().push(finding);
    }
    let mut groups: Vec<_> = findings_by_nodes.into_iter().collect();
    // The findings are in order, the worst first.
    groups.sort_by_key(|(nodes, findings)| {
        (nodes.len() != reports, findings.first().map(|finding| finding.verdict), nodes.len())
    });
    let mut text = String::new();
    for (nodes, findings) in groups {
        let who = match nodes.len() {
            1 => named(&Vec::from_iter(nodes)),
            all if all == answers.len() => format!("all {}", counted(all)),
            all if all == reports => counted(all),
            _ => named(&Vec::from_iter(nodes)),
        };
        // Writing to a string cannot fail.
        _ = writeln!(text, "{who}:");
        for finding in findings {
            _ = writeln!(text, "  {finding}");
        }
        text.push('\n');
    }
    with_silent_nodes(text, answers)
}

/// As `kube-ipvs preflight` prints it.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { verdict, subject, what, remedy } = self;
        write!(f, "{:<8} {subject}: {what}", verdict.name())?;
        remedy.as_ref().map_or(Ok(()), |remedy| write!(f, "; remedy: {remedy}"))
    }
}

impl Verdict {
    fn name(self) -> &'static str {
        match self {
            Self::Problem => "problem",
            Self::Warning => "warning",
            Self::Note => "note",
            Self::Ok => "ok",
        }
    }
}
