//! docs/json.md keeps its word: what it shows of a command is what the command prints, and it explains each field.

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::Value;

const DOCUMENT: &str = include_str!("../../docs/json.md");

/// Holds the example of a command to what the command prints.
pub(super) fn assert_documented(command: &str, printed: &str) {
    let section = below(&format!("`kube-ipvs {command}`"));
    let example = section.split_once("```json\n").and_then(|(_, rest)| rest.split_once("```"));
    let example = example.map(|(example, _)| example).unwrap_or_default();
    assert!(
        example == printed,
        "`kube-ipvs {command}` has another shape than docs/json.md shows. Where a field is new, explain it there, and \
         show this:\n{printed}"
    );
    let mut fields = BTreeSet::new();
    names(&serde_json::from_str(printed).unwrap(), &mut fields);
    let explained = [section, below("What several have")].concat();
    let unexplained: Vec<_> =
        fields.iter().filter(|field| !explained.contains(&format!("`{field}`"))).collect();
    assert!(unexplained.is_empty(), "docs/json.md does not explain {unexplained:?} of `kube-ipvs {command}`");
}

/// What stands below a heading.
fn below(heading: &str) -> &'static str {
    let text = DOCUMENT.split_once(&format!("\n## {heading}\n")).map_or("", |(_, text)| text);
    text.split_once("\n## ").map_or(text, |(section, _)| section)
}

/// As [`print_json`](super::output::print_json) prints it.
pub(super) fn pretty(value: &impl Serialize) -> String {
    format!("{}\n", serde_json::to_string_pretty(value).unwrap())
}

/// Every field of it, however deep.
fn names(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| {
            found.insert(name.clone());
            names(value, found);
        }),
        Value::Array(items) => items.iter().for_each(|item| names(item, found)),
        _ => {}
    }
}
