//! Reading a configuration file.

use std::{fs, path::Path};

use serde::Deserialize;
use serde_json::Value;
use serde_saphyr::options::DuplicateKeyPolicy;

use super::{Error, KubeProxyConfiguration, defaults};
use crate::yaml;

const API_VERSION: &str = "kubeproxy.config.k8s.io/v1alpha1";
const KIND: &str = "KubeProxyConfiguration";

/// A configuration file that could be read.
#[derive(Debug, Default)]
pub(super) struct File {
    /// What it says, with every default filled in.
    pub(super) configuration: KubeProxyConfiguration,
    /// What is odd about it.
    pub(super) warnings: Vec<String>,
}

/// Reads a configuration file.
pub(super) fn read(path: &Path) -> Result<File, Error> {
    let text = fs::read_to_string(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
    decode(path, &text)
}

pub(super) fn decode(path: &Path, text: &str) -> Result<File, Error> {
    let mut warnings = Vec::new();
    let tree: Value = parse(text).or_else(|strict| {
        // A field given twice does not stop kube-proxy either: the last one counts.
        let tree = parse_leniently(text).map_err(|_| Error::Malformed(yaml::fault(path, &strict)))?;
        warnings.push(yaml::fault(path, &strict));
        Ok(tree)
    })?;
    check_kind(path, &tree)?;
    let mut configuration: KubeProxyConfiguration =
        parse_leniently(text).map_err(|error| Error::Malformed(yaml::fault(path, &error)))?;
    defaults::fill(&mut configuration);

    let mut unknown = Vec::new();
    collect_unknown(&tree, &configuration.tree(), "", &mut unknown);
    warnings
        .extend(unknown.iter().map(|field| format!("{}: unknown field {field} is ignored", path.display())));
    Ok(File { configuration, warnings })
}

fn parse(text: &str) -> Result<Value, serde_saphyr::Error> {
    serde_saphyr::from_str(text)
}

fn parse_leniently<T: for<'de> Deserialize<'de>>(text: &str) -> Result<T, serde_saphyr::Error> {
    let lenient = serde_saphyr::options! { duplicate_keys: DuplicateKeyPolicy::LastWins };
    serde_saphyr::from_str_with_options(text, lenient)
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
