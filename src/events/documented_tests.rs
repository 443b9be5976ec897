//! docs/messages.md: its tables are written from the causes of Events and of warnings, and from their comments.

use testkit::documented::{assert_generated, comments, table};

use crate::finding;

/// The Events of Services that no notice of the writer has caused.
const ABOUT_SERVICES: [&str; 2] = ["EndpointFailing", "FailedToStartServiceHealthcheck"];

/// The meaning as a cell: a comment without its full stop.
fn meaning(comment: &str) -> String {
    comment.trim_end_matches('.').to_owned()
}

#[test]
fn the_tables_of_the_page_of_messages_are_written_from_the_causes() {
    let notices = include_str!("../../crates/reconciler/src/report/service_notices.rs");
    let notices = comments(notices, "pub enum Reason {");
    let mut of_services: Vec<_> = notices
        .iter()
        .map(|(name, comment)| [format!("`{}`", name.trim_end_matches(',')), meaning(comment)])
        .collect();
    let mut of_node = Vec::new();
    for (item, comment) in comments(include_str!("event.rs"), "impl Cause {") {
        // pub const STARTING: Self = Self::warning("REASON", "ACTION");
        let Some((_, rest)) = item.strip_prefix("pub const ").and_then(|item| item.split_once("warning(\""))
        else {
            continue;
        };
        let reason = rest.split('"').next().unwrap();
        let events = if ABOUT_SERVICES.contains(&reason) { &mut of_services } else { &mut of_node };
        events.push([format!("`{reason}`"), meaning(&comment)]);
    }
    assert!(of_services.len() > 5 && of_node.len() > 5, "{of_services:?} {of_node:?}");
    let warnings = comments(include_str!("../finding.rs"), "pub enum Cause {");
    assert_eq!(warnings.len(), finding::Cause::ALL.len());
    let warnings = warnings.iter().zip(finding::Cause::ALL).map(|((item, comment), cause)| {
        assert_eq!(*item, format!("{cause:?},"));
        [format!("`{}`", cause.name()), format!("`{}`", cause.reason()), meaning(comment)]
    });
    assert_generated(
        "docs/messages.md",
        &[
            ("services", table(["Event of a Service", "cause"], of_services)),
            ("node", table(["Event of the Node", "cause"], of_node)),
            ("warnings", table(["`cause`", "Event of the Node", "meaning"], warnings)),
        ],
    );
}
