//! Reading a configuration file.

use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_saphyr::options::DuplicateKeyPolicy;

use super::{defaults, yaml};
use crate::{
    config::{Error, KubeProxyConfiguration},
    files,
};

const API_VERSION: &str = "kubeproxy.config.k8s.io/v1alpha1";
const KIND: &str = "KubeProxyConfiguration";

/// A configuration file that could be read.
#[derive(Debug, Default)]
pub(in crate::config) struct File {
    /// What it says.
    pub(in crate::config) configuration: KubeProxyConfiguration,
    /// Oddities of the file, one line each.
    pub(in crate::config) warnings: Vec<String>,
}

/// The text of a configuration file.
pub(in crate::config) fn read(path: &Path) -> Result<String, Error> {
    files::read_to_string(path).map_err(|source| Error::Read { path: path.to_owned(), source })
}

/// Decodes the text of the file at `path`, and fills in what it leaves to the program.
pub(in crate::config) fn decode(path: &Path, text: &str) -> Result<File, Error> {
    let mut file = decode_as_given(path, text)?;
    defaults::fill(&mut file.configuration);
    Ok(file)
}

/// Decodes the text of the file at `path`.
pub(in crate::config) fn decode_as_given(path: &Path, text: &str) -> Result<File, Error> {
    let malformed = |error: &_| Error::Malformed(yaml::fault(path, error));
    let mut warnings = Vec::new();
    let (tree, _) = first_document(text, DuplicateKeyPolicy::Error).or_else(|strict| {
        // A field given twice does not stop kube-proxy either: the last one counts.
        let tree = first_document(text, DuplicateKeyPolicy::LastWins).map_err(|_| malformed(&strict))?;
        warnings.push(yaml::fault(path, &strict));
        Ok(tree)
    })?;
    check_kind(path, &tree)?;
    let (configuration, more): (KubeProxyConfiguration, _) =
        first_document(text, DuplicateKeyPolicy::LastWins).map_err(|error| malformed(&error))?;

    if more {
        warnings.push(format!("{}: what follows the first YAML document is ignored", path.display()));
    }
    let mut unknown = Vec::new();
    collect_unknown(&tree, &configuration.tree(), "", &mut unknown);
    warnings
        .extend(unknown.iter().map(|field| format!("{}: unknown field {field} is ignored", path.display())));
    Ok(File { configuration, warnings })
}

/// The first document that is not empty, and whether something follows it, which does not count. kube-proxy decodes
/// the first one alone too, but refuses a file in which that one is empty.
fn first_document<T: DeserializeOwned + Default>(
    text: &str,
    duplicate_keys: DuplicateKeyPolicy,
) -> Result<(T, bool), serde_saphyr::Error> {
    let mut text = text.as_bytes();
    let mut documents =
        serde_saphyr::read_with_options(&mut text, serde_saphyr::options! { duplicate_keys: duplicate_keys });
    let first = documents.next().unwrap_or_else(|| Ok(T::default()))?;
    Ok((first, documents.next().is_some()))
}

fn check_kind(path: &Path, tree: &Value) -> Result<(), Error> {
    let text = |key| tree.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    if api_version == API_VERSION && kind == KIND {
        return Ok(());
    }
    Err(Error::Kind { path: path.to_owned(), api_version, kind })
}

/// Collects the paths of the fields that are in the file and not in what was read from it, which has them all.
fn collect_unknown(file: &Value, read: &Value, parent: &str, unknown: &mut Vec<String>) {
    let (Value::Object(file), Value::Object(read)) = (file, read) else { return };
    for (name, value) in file {
        let path = if parent.is_empty() { name.clone() } else { format!("{parent}.{name}") };
        match read.get(name) {
            Some(read) => collect_unknown(value, read, &path, unknown),
            None => unknown.push(path),
        }
    }
}
