//! docs/json.md and the examples in docs/json keep their word.
#![allow(clippy::missing_panics_doc, clippy::unwrap_used, reason = "a test that cannot go on must stop")]

use std::{collections::BTreeSet, fs, path::Path};

use serde_json::Value;

/// The page.
pub const DOCUMENT: &str = include_str!("../../../docs/json.md");

/// Holds an example in docs/json, by its name, to what is printed, and the section of the page with this heading to its
/// fields.
pub fn assert_explained(heading: &str, example: &str, printed: &str) {
    let (section, file) = (below(heading), format!("json/{example}.json"));
    assert!(section.contains(&format!("({file})")), "docs/json.md has no link to docs/{file}");
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(&file);
    let example = fs::read_to_string(example).unwrap_or_default();
    assert!(
        example == printed,
        "{heading} has another shape than docs/{file} shows. Where a field is new, explain it in \
         docs/json.md, and show this:\n{printed}"
    );
    let mut fields = BTreeSet::new();
    names(&serde_json::from_str(printed).unwrap(), &mut fields);
    let explained = [section, below("What several have")].concat();
    let unexplained: Vec<_> =
        fields.iter().filter(|field| !explained.contains(&format!("`{field}`"))).collect();
    assert!(unexplained.is_empty(), "docs/json.md does not explain {unexplained:?} of {heading}");
}

/// The text below a heading.
fn below(heading: &str) -> &'static str {
    let text = DOCUMENT.split_once(&format!("\n## {heading}\n")).map_or("", |(_, text)| text);
    text.split_once("\n## ").map_or(text, |(section, _)| section)
}

/// All fields, at any depth.
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
