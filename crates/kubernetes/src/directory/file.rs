//! One file of manifests: its documents, and the objects in them.

use std::{
    fs::File,
    io::{self, Read as _},
    path::Path,
};

use serde::Deserialize;
use serde_json::Value;
use serde_saphyr::UserMessageFormatter;
use service::{EndpointSlice, Node, Service};
use tracing::debug;

use super::Error;
use crate::objects::{Kind, VERSION, View};

/// The objects of a file, in the file's order.
#[derive(Debug, Default)]
pub(super) struct Manifests {
    pub(super) services: Vec<View<Service>>,
    pub(super) slices: Vec<View<EndpointSlice>>,
    pub(super) nodes: Vec<View<Node>>,
    /// The documents that are not objects, each with its place and the reason in one line.
    pub(super) skipped: Vec<String>,
}

/// The longest file in bytes: as long as the longest list of an API server.
const LONGEST: u64 = 1 << 30;

/// Reads the file's text; `None` if the file is gone.
pub(super) fn read(path: &Path) -> Result<Option<Vec<u8>>, Error> {
    let mut text = Vec::new();
    match File::open(path).and_then(|file| file.take(LONGEST + 1).read_to_end(&mut text)) {
        Ok(length) if u64::try_from(length).is_ok_and(|length| length > LONGEST) => {
            let source = io::Error::other(format!("it is longer than {} MiB", LONGEST >> 20));
            Err(Error::ReadFile { path: path.to_owned(), source })
        }
        Ok(_) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::ReadFile { path: path.to_owned(), source }),
    }
}

/// Reads the objects in a text, which is JSON if the file's name says so, and YAML otherwise.
pub(super) fn parse(path: &Path, text: &[u8]) -> Result<Manifests, Error> {
    let text = match str::from_utf8(text) {
        Ok(text) => text,
        Err(error) => {
            let good = text.get(..error.valid_up_to()).unwrap_or_default();
            let lines = good.split(|byte| *byte == b'\n');
            let (line, column) = lines.enumerate().last().map_or((1, 1), |(i, last)| (i + 1, last.len() + 1));
            return Err(malformed(path, line, column, "not UTF-8".to_owned()));
        }
    };
    let documents = if path.extension().is_some_and(|extension| extension == "json") {
        json(path, text)?
    } else {
        yaml(path, text)?
    };
    let mut manifests = Manifests::default();
    for (i, document) in documents.into_iter().enumerate() {
        manifests.add(document, "", "", &format!("{}, document {}", path.display(), i + 1));
    }
    Ok(manifests)
}

fn malformed(path: &Path, line: usize, column: usize, message: String) -> Error {
    Error::Malformed { path: path.to_owned(), line: line as u64, column: column as u64, message }
}

fn json(path: &Path, text: &str) -> Result<Vec<Value>, Error> {
    serde_json::Deserializer::from_str(text)
        .into_iter()
        .collect::<Result<_, _>>()
        .map_err(|error| malformed(path, error.line(), error.column(), without_position(&error.to_string())))
}

fn yaml(path: &Path, text: &str) -> Result<Vec<Value>, Error> {
    // The operator's own files: the limit is memory, not the number of objects. Aliases, by which
    // little text can become much data, keep their limits.
    let options = serde_saphyr::options! {
        with_snippet: false,
        budget: serde_saphyr::budget! {
            max_documents: usize::MAX,
            max_nodes: usize::MAX,
            max_events: usize::MAX,
        },
    };
    serde_saphyr::from_multiple_with_options(text, options).map_err(|error| {
        let (line, column) = error.location().map_or((1, 1), |at| (at.line(), at.column()));
        let message = without_position(&error.render_with_formatter(&UserMessageFormatter));
        Error::Malformed { path: path.to_owned(), line, column, message }
    })
}

/// The message without the position that both parsers end it with.
fn without_position(message: &str) -> String {
    message.rsplit_once(" at line ").map_or(message, |(words, _)| words).to_owned()
}

impl Manifests {
    /// Adds the object, or the objects of a list. `kind` and `version` are those of the list, for elements
    /// without their own.
    fn add(&mut self, mut object: Value, kind: &str, version: &str, place: &str) {
        let text = |field, otherwise: &str| {
            object.get(field).and_then(Value::as_str).unwrap_or(otherwise).to_owned()
        };
        let (kind, version) = (text("kind", kind), text("apiVersion", version));
        if object.get("items").is_some()
            && let Some(element) = kind.strip_suffix("List")
        {
            let items = object.get_mut("items").map(Value::take);
            let Some(Value::Array(items)) = items else {
                self.skipped.push(format!("{place}: items of the {kind} is not a list; it is skipped"));
                return;
            };
            let version = if element.is_empty() { "" } else { version.as_str() };
            for (i, item) in items.into_iter().enumerate() {
                self.add(item, element, version, &format!("{place}, items[{i}]"));
            }
            return;
        }
        if is::<Service>(&kind, &version) {
            in_default_namespace(&mut object);
            push(&mut self.services, object, place, &mut self.skipped);
        } else if is::<EndpointSlice>(&kind, &version) {
            in_default_namespace(&mut object);
            with_port_names(&mut object);
            push(&mut self.slices, object, place, &mut self.skipped);
        } else if is::<Node>(&kind, &version) {
            push(&mut self.nodes, object, place, &mut self.skipped);
        } else if kind.is_empty() || version.is_empty() {
            self.skipped.push(format!("{place}: not an object with apiVersion and kind; it is skipped"));
        } else {
            debug!("{place}: {version} {kind} is ignored");
        }
    }
}

fn is<T: Kind>(kind: &str, version: &str) -> bool {
    let (group, version) = version.rsplit_once('/').unwrap_or(("", version));
    kind == T::KIND && group == T::GROUP && version == VERSION
}

fn push<T: Kind>(views: &mut Vec<View<T>>, object: Value, place: &str, skipped: &mut Vec<String>) {
    match View::deserialize(object) {
        Ok(view) => views.push(view),
        Err(error) => skipped.push(format!("{place}: {error}; the {} is skipped", T::KIND)),
    }
}

/// Fills in the namespace, as kubectl does.
fn in_default_namespace(object: &mut Value) {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.entry("namespace").or_insert_with(|| "default".into());
    }
}

/// Fills in the empty name of ports, as the API server does.
fn with_port_names(slice: &mut Value) {
    let ports = slice.get_mut("ports").and_then(Value::as_array_mut);
    for port in ports.into_iter().flatten().filter_map(Value::as_object_mut) {
        port.entry("name").or_insert_with(|| "".into());
    }
}
