//! docs/json.md and the examples in docs/json are true: an example is what the command prints, the page
//! explains each of its fields, and YAML has the same ones.

use ipvs::{Forwarding, TunnelKind};
use kubernetes::api::WatchState;
use reconciler::{ChangeKind, SyncState, Trigger};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use service::{
    AddressKind, AddressRefusal, Admission, EndpointReason, EndpointScope, EndpointSelection, HintsIgnored,
    NotServed, SourceAddress, SpecialAddress, TrafficPolicy,
};
use testkit::documented::{DOCUMENT, assert_explained, fields_of_examples};
use watcher::OperationKind;

use super::output;
use crate::{
    config::VipBinding,
    finding::{Cause, Severity},
};

/// Compares the example of a command with its output for a value, as JSON and as YAML.
pub(super) fn assert_documented(command: &str, value: &impl Serialize) {
    assert_printed(command, &output::json(value).unwrap());
    let yaml: Value = serde_saphyr::from_str(&output::yaml(value).unwrap()).unwrap();
    assert_eq!(yaml, serde_json::to_value(value).unwrap(), "`kube-ipvs {command} -o yaml`");
}

/// Compares the example of a command with its output.
pub(super) fn assert_printed(command: &str, printed: &str) {
    assert_explained(
        &format!("`kube-ipvs {command}`"),
        &command.replace(" -", "-").replace(' ', "-"),
        printed,
    );
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
        ("change", word::<ChangeKind>()),
        ("forwarding", word::<Forwarding>()),
        ("tunnel", word::<TunnelKind>()),
        ("state", word::<WatchState>()),
        ("kernel", word::<VipBinding>()),
        ("standing", word::<SyncState>()),
        ("advice", Severity::WHILE_RUNNING.map(|severity| severity.name().to_owned()).to_vec()),
        ("advice", word::<Cause>()),
        ("not_served", word::<NotServed>()),
        ("choice", words::<EndpointSelection>(|word| json!({ "use": word, "reach": "local" }))),
        ("choice", word::<EndpointScope>()),
        ("hints_ignored", word::<HintsIgnored>()),
        ("admission", word::<Admission>()),
        ("source", word::<SourceAddress>()),
        ("kind", word::<AddressKind>()),
        ("policy", word::<TrafficPolicy>()),
        ("verdict", word::<EndpointReason>()),
        ("verdict", word::<Severity>()),
        ("refused", word::<AddressRefusal>()),
        ("refused", word::<SpecialAddress>()),
    ];
    for (field, words) in fields {
        // Two commands may have a field of the same name, with words of their own.
        let rows = DOCUMENT.lines().filter(|line| line.starts_with(&format!("| `{field}` |")));
        let unlisted = |row: &str| words.iter().filter(|word| !row.contains(&format!("`{word}`"))).count();
        let fewest = rows.map(unlisted).min();
        assert_eq!(fewest, Some(0), "docs/json.md does not list all of {words:?} in a row of `{field}`");
    }
}

/// A row that outlives its field misleads.
#[test]
fn every_row_is_about_a_field_that_an_example_has() {
    // The example of explain has an endpoint with the usual weight.
    let elsewhere = ["share"];
    let fields = fields_of_examples();
    let rows = DOCUMENT.lines().filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
    for name in rows.flat_map(|names| names.split('`').step_by(2)) {
        assert!(fields.contains(name) || elsewhere.contains(&name), "no example has the field {name}");
    }
}
