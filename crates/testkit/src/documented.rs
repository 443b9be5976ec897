//! What the documents say of output: docs/json.md and the examples in docs/json keep their word, and parts of pages are
//! written from the program.
#![allow(
    clippy::missing_panics_doc,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test that cannot go on must stop"
)]

use std::{
    collections::BTreeSet,
    env, fs,
    path::{Path, PathBuf},
};

use serde_json::Value;

/// The page.
pub const DOCUMENT: &str = include_str!("../../../docs/json.md");

/// Writes the generated parts of pages instead of comparing them.
const UPDATE: &str = "UPDATE_DOCS";

/// Holds an example in docs/json, by its name, to what is printed, and the section of the page with this heading to its
/// fields.
pub fn assert_explained(heading: &str, example: &str, printed: &str) {
    let (section, file) = (below(heading), format!("json/{example}.json"));
    assert!(section.contains(&format!("({file})")), "docs/json.md has no link to docs/{file}");
    let example = fs::read_to_string(path(&format!("docs/{file}"))).unwrap_or_default();
    assert!(
        example == printed,
        "{heading} has another shape than docs/{file} shows. Where a field is new, explain it in \
         docs/json.md, and show this:\n{printed}"
    );
    let mut fields = BTreeSet::new();
    names(&serde_json::from_str(printed).unwrap(), &mut fields);
    let explained = [section, below("Common fields")].concat();
    let unexplained: Vec<_> =
        fields.iter().filter(|field| !explained.contains(&format!("`{field}`"))).collect();
    assert!(unexplained.is_empty(), "docs/json.md does not explain {unexplained:?} of {heading}");
}

/// The fields of all examples in docs/json.
pub fn fields_of_examples() -> BTreeSet<String> {
    let mut fields = BTreeSet::new();
    for example in fs::read_dir(path("docs/json")).unwrap() {
        let text = fs::read_to_string(example.unwrap().path()).unwrap();
        // Several documents in one file, as one per line.
        let values = serde_json::Deserializer::from_str(&text).into_iter::<Value>();
        values.for_each(|value| names(&value.unwrap(), &mut fields));
    }
    fields
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

/// Holds the generated parts of a page, each between `<!-- generated: NAME -->` and `<!-- end -->`, to these names and
/// texts. With `UPDATE_DOCS=1` it writes them. A page belongs to one test, since tests run beside each other.
pub fn assert_generated(page: &str, parts: &[(&str, String)]) {
    let written = fs::read_to_string(path(page)).unwrap();
    let mut wanted = written.clone();
    for (name, text) in parts {
        let begin = format!("<!-- generated: {name} -->\n");
        let (before, rest) = wanted.split_once(&begin).unwrap_or_else(|| panic!("{page} has no {begin}"));
        let (_, after) =
            rest.split_once("<!-- end -->").unwrap_or_else(|| panic!("{page}: {name} has no end"));
        wanted = format!("{before}{begin}\n{}\n\n<!-- end -->{after}", text.trim());
    }
    let markers = written.matches("<!-- generated: ").count();
    assert_eq!(markers, parts.len(), "{page} has parts that no test writes");
    if env::var_os(UPDATE).is_some_and(|value| value == "1") {
        fs::write(path(page), wanted).unwrap();
        return;
    }
    let differs = written.lines().zip(wanted.lines()).find(|(written, wanted)| written != wanted);
    assert!(written == wanted, "{page} differs from the program; {UPDATE}=1 writes it: {differs:#?}");
}

/// The items of a block of our own sources, from the line `head` to its `}`, with the first paragraph of their comments.
pub fn comments(source: &str, head: &str) -> Vec<(String, String)> {
    let (_, block) = source.split_once(&format!("\n{head}\n")).unwrap_or_else(|| panic!("no {head}"));
    let mut found = Vec::new();
    let mut comment: Vec<&str> = Vec::new();
    for line in block.lines().take_while(|line| *line != "}").map(str::trim) {
        match line.strip_prefix("///") {
            Some(text) => comment.push(text.trim()),
            None if line.starts_with("#[") => {}
            None if !comment.is_empty() => {
                let paragraph = comment.iter().take_while(|text| !text.is_empty()).copied();
                found.push((line.to_owned(), paragraph.collect::<Vec<_>>().join(" ")));
                comment.clear();
            }
            None => {}
        }
    }
    found
}

/// A table of Markdown. A pipe in a cell is escaped.
pub fn table<const N: usize>(head: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    let line = |cells: [String; N]| format!("| {} |\n", cells.join(" | ")).replace("|  |", "| |");
    let mut table = line(head.map(str::to_owned)) + &line(head.map(|_| "---".to_owned())).replace(' ', "");
    table.extend(rows.into_iter().map(|cells| line(cells.map(|cell| cell.replace('|', "\\|")))));
    table
}

/// A path below the root of the repository.
fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name)
}
