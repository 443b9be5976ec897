//! Recognises an input by its content, and reads from it what it shows of kube-proxy.

mod config_map;
mod container;
mod k3s;
mod talos;

use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_saphyr::options::DuplicateKeyPolicy;

use super::{Error, Input, present::Present};
use crate::config::file::yaml;

/// Reads one input.
pub(super) fn read(input: Input, present: &mut Present) -> Result<(), Error> {
    let Input { name, text } = input;
    let mut reader = text.as_bytes();
    let options = serde_saphyr::options! { duplicate_keys: DuplicateKeyPolicy::LastWins };
    let documents = serde_saphyr::read_with_options(&mut reader, options);
    let documents = documents
        .map(|document| document.map_err(|error| Error::Malformed(yaml::fault(Path::new(name), &error))));
    let mut documents = documents.filter(|document| !matches!(document, Ok(Value::Null)));
    let Some(first) = documents.next().transpose()? else { return Err(Error::Nothing(name.to_owned())) };
    if kind(&first) == "KubeProxyConfiguration" {
        // Whatever follows does not count.
        return present.add_file(name.to_owned(), text.to_owned());
    }
    let mut all = vec![first];
    for document in documents {
        all.push(document?);
    }
    let is_something =
        if talos::is_among(&all) { talos::read(name, all, present)? } else { objects(name, all, present)? };
    if is_something { Ok(()) } else { Err(Error::Nothing(name.to_owned())) }
}

/// Reads these objects. Returns whether one of them shows something.
fn objects(name: &str, objects: Vec<Value>, present: &mut Present) -> Result<bool, Error> {
    let mut is_something = false;
    for mut object in objects {
        is_something |= match kind(&object) {
            "List" => match object.get_mut("items").map(Value::take) {
                Some(Value::Array(items)) => self::objects(name, items, present)?,
                _ => false,
            },
            "ConfigMap" => config_map::read(name, object, present)?,
            "DaemonSet" => container::read_daemon_set(name, object, present)?,
            "Pod" => container::read_pod(name, object, present)?,
            "" => k3s::read(name, &object, present)?,
            _ => false,
        };
    }
    Ok(is_something)
}

/// The kind of an object; nothing where it has none.
fn kind(object: &Value) -> &str {
    object.get("kind").and_then(Value::as_str).unwrap_or_default()
}

/// The object as its kind says.
fn object<T: DeserializeOwned>(name: &str, kind: &'static str, object: Value) -> Result<T, Error> {
    serde_json::from_value(object).map_err(|source| Error::Object { name: name.to_owned(), kind, source })
}

/// The text of a value that stands for itself.
fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// The texts of a list, or of the one value that stands for it.
fn texts(value: &Value) -> Vec<String> {
    match value {
        Value::Array(values) => values.iter().filter_map(text).collect(),
        value => text(value).into_iter().collect(),
    }
}
