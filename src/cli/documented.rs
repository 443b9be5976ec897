//! docs/json.md and the examples in docs/json keep their word: an example is what the command prints, and the page
//! explains each of its fields.

use std::{collections::BTreeSet, fs, path::Path};

use ipvs::{Forwarding, TunnelKind};
use kubernetes::api::WatchState;
use reconciler::{SyncState, Trigger};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use service::{
    AddressKind, AddressRefusal, EndpointReason, EndpointScope, EndpointSelection, HintsIgnored, NotServed,
    SpecialAddress, TrafficPolicy,
};
use watcher::OperationKind;

use crate::{
    config::VipBinding,
    node::advice::{Cause, Severity},
};

const DOCUMENT: &str = include_str!("../../docs/json.md");

/// Holds the example of a command to what the command prints.
pub(super) fn assert_documented(command: &str, printed: &str) {
    let section = below(&format!("`kube-ipvs {command}`"));
    let file = format!("json/{}.json", command.replace(" -", "-").replace(' ', "-"));
    assert!(section.contains(&format!("({file})")), "docs/json.md has no link to docs/{file}");
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(&file);
    let example = fs::read_to_string(example).unwrap_or_default();
    assert!(
        example == printed,
        "`kube-ipvs {command}` has another shape than docs/{file} shows. Where a field is new, explain it in \
         docs/json.md, and show this:\n{printed}"
    );
    let mut fields = BTreeSet::new();
    names(&serde_json::from_str(printed).unwrap(), &mut fields);
    let explained = [section, below("What several have")].concat();
    let unexplained: Vec<_> =
        fields.iter().filter(|field| !explained.contains(&format!("`{field}`"))).collect();
    assert!(unexplained.is_empty(), "docs/json.md does not explain {unexplained:?} of `kube-ipvs {command}`");
}

/// The text below a heading.
fn below(heading: &str) -> &'static str {
    let text = DOCUMENT.split_once(&format!("\n## {heading}\n")).map_or("", |(_, text)| text);
    text.split_once("\n## ").map_or(text, |(section, _)| section)
}

/// As [`print_json`](super::output::print_json) prints it.
pub(super) fn pretty(value: &impl Serialize) -> String {
    format!("{}\n", serde_json::to_string_pretty(value).unwrap())
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

/// The values of a field, as serde lists them when another one is given.
fn words<T: DeserializeOwned>(as_field: impl Fn(&str) -> Value) -> Vec<String> {
    let complaint = serde_json::from_value::<T>(as_field("?")).err().unwrap().to_string();
    // unknown variant `?`, expected one of `a`, `b`
    let words: Vec<_> = complaint.split('`').skip(3).step_by(2).map(str::to_owned).collect();
    assert!(!words.is_empty(), "{complaint}");
    words
}

fn word<T: DeserializeOwned>() -> Vec<String> {
    words::<T>(|word| json!(word))
}

#[test]
fn every_word_of_a_field_with_one_of_several_is_listed_beside_it() {
    let fields = [
        ("operation", word::<OperationKind>()),
        ("trigger", word::<Trigger>()),
        ("forwarding", word::<Forwarding>()),
        ("tunnel", word::<TunnelKind>()),
        ("state", word::<WatchState>()),
        ("kernel", word::<VipBinding>()),
        ("standing", word::<SyncState>()),
        ("advice", word::<Severity>()),
        ("advice", word::<Cause>()),
        ("not_served", word::<NotServed>()),
        ("choice", words::<EndpointSelection>(|word| json!({ "use": word, "reach": "local" }))),
        ("choice", word::<EndpointScope>()),
        ("hints_ignored", word::<HintsIgnored>()),
        ("kind", word::<AddressKind>()),
        ("policy", word::<TrafficPolicy>()),
        ("verdict", word::<EndpointReason>()),
        ("refused", word::<AddressRefusal>()),
        ("refused", word::<SpecialAddress>()),
    ];
    for (field, words) in fields {
        let row = DOCUMENT.lines().find(|line| line.starts_with(&format!("| `{field}` |")));
        let row = row.unwrap_or_else(|| panic!("docs/json.md has no row for `{field}`"));
        let unlisted: Vec<_> = words.iter().filter(|word| !row.contains(&format!("`{word}`"))).collect();
        assert!(unlisted.is_empty(), "docs/json.md does not list {unlisted:?} in the row of `{field}`");
    }
}
