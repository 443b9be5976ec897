//! The configuration file: reading and writing it.

use std::{io::Write as _, net::IpAddr, path::Path};

use ipnet::IpNet;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};
use serde_saphyr::options::DuplicateKeyPolicy;

use super::{Error, Flags, KubeProxyConfiguration, Origin, checks};
use crate::files;

const API_VERSION: &str = "kubeproxy.config.k8s.io/v1alpha1";
const KIND: &str = "KubeProxyConfiguration";

/// The only version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum ApiVersion {
    #[default]
    #[serde(rename = "kubeproxy.config.k8s.io/v1alpha1")]
    V1Alpha1,
}

/// The only kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Kind {
    #[default]
    KubeProxyConfiguration,
}

/// A configuration file that was read.
#[derive(Debug, Default)]
pub(super) struct File {
    /// Its fields.
    pub(super) configuration: KubeProxyConfiguration,
    /// What is wrong with the file, one line each.
    pub(super) warnings: Vec<String>,
}

/// The text of a configuration file.
pub(super) fn read(path: &Path) -> Result<String, Error> {
    files::read_to_string(path).map_err(|source| Error::Read { path: path.to_owned(), source })
}

/// Decodes the text of the file at `path`, and fills in what it leaves to the program.
pub(super) fn decode(path: &Path, text: &str) -> Result<File, Error> {
    let mut file = decode_as_given(path, text)?;
    file.configuration.fill();
    Ok(file)
}

/// Decodes the text of the file at `path`.
pub(super) fn decode_as_given(path: &Path, text: &str) -> Result<File, Error> {
    let malformed = |error: &_| Error::Malformed(fault(path, error));
    let mut warnings = Vec::new();
    let (tree, _) = first_document(text, DuplicateKeyPolicy::Error).or_else(|strict| {
        // A field given twice does not stop kube-proxy either: the last one counts.
        let tree = first_document(text, DuplicateKeyPolicy::LastWins).map_err(|_| malformed(&strict))?;
        warnings.push(fault(path, &strict));
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

/// The first document that is not empty, and whether something follows it, which does not count. kube-proxy
/// decodes the first one alone too, but refuses a file in which that one is empty.
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

/// Collects the paths of the fields that are in the file but not in the configuration read from it, which has
/// all fields.
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

impl KubeProxyConfiguration {
    /// Writes a file that reads back as the same.
    pub fn write_to(&self, path: &Path) -> Result<(), Error> {
        let text = self.to_yaml()?;
        let written = files::overwrite(path).and_then(|mut file| file.write_all(text.as_bytes()));
        written.map_err(|source| Error::Write { path: path.to_owned(), source })
    }

    /// The file's text. Fails if health or metrics are not served: an empty address in a file is the default.
    pub fn to_yaml(&self) -> Result<String, Error> {
        let addresses = [
            ("healthzBindAddress", &self.healthz_bind_address),
            ("metricsBindAddress", &self.metrics_bind_address),
        ];
        match addresses.into_iter().find(|(_, address)| address.is_empty()) {
            Some((field, _)) => Err(Error::OnlyByFlag(field)),
            None => serde_saphyr::to_string(self).map_err(Error::Encode),
        }
    }

    /// The fields that differ from the default, and those of every file: a file of them reads back as the
    /// same.
    pub(super) fn differences(&self) -> Value {
        // Where health and metrics are by default depends on the bind address.
        let mut usual = Self { bind_address: self.bind_address.clone(), ..Self::default() };
        usual.fill();
        let (tree, mut kept) = (self.tree(), Map::new());
        if let Value::Object(differing) = differing(&tree, &usual.tree()) {
            kept = differing;
        }
        let always = ["apiVersion", "kind", "mode"].into_iter();
        let bind_address = (self.bind_address != Self::of_empty_file().bind_address).then_some("bindAddress");
        for name in always.chain(bind_address) {
            kept.insert(name.to_owned(), tree.get(name).cloned().unwrap_or_default());
        }
        Value::Object(kept)
    }

    /// The configuration as a tree of fields.
    pub(super) fn tree(&self) -> Value {
        // Only a map whose keys are not strings cannot be a tree, and there is none.
        serde_json::to_value(self).unwrap_or_default()
    }
}

/// The part of a tree that is not the same in the other; null for nothing.
fn differing(tree: &Value, other: &Value) -> Value {
    match (tree, other) {
        (Value::Object(fields), Value::Object(others)) => {
            let fields = fields.iter().map(|(name, value)| {
                let other = others.get(name).unwrap_or(&Value::Null);
                (name.clone(), differing(value, other))
            });
            let kept: Map<_, _> = fields.filter(|(_, value)| !value.is_null()).collect();
            if kept.is_empty() { Value::Null } else { Value::Object(kept) }
        }
        _ if tree == other => Value::Null,
        _ => tree.clone(),
    }
}

/// Describes the fault of a YAML file in one line, `FILE:LINE:COLUMN: what is wrong`: the parser draws the
/// lines around it.
pub(crate) fn fault(file: &Path, error: &serde_saphyr::Error) -> String {
    let message = error.without_snippet().to_string();
    let message = message.lines().next().unwrap_or_default();
    match error.location() {
        Some(at) => {
            // The parser ends its messages with the place.
            let place = format!(" at line {}, column {}", at.line(), at.column());
            let message = message.trim_end_matches(&place);
            format!("{}:{}:{}: {message}", file.display(), at.line(), at.column())
        }
        None => format!("{}: {message}", file.display()),
    }
}

/// The ranges in which a cleanup removes no virtual servers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Excluded {
    /// The ranges.
    pub cidrs: Vec<IpNet>,
    /// What is wrong with the file, one line each: a range may be in a field whose name is misspelt.
    pub warnings: Vec<String>,
}

impl Excluded {
    /// Reads the ranges of the file, if one is named, and adds those of the flag. Nothing else of the file
    /// is used: it may be that of another mode, to which the node goes back.
    pub fn read(file: Option<&str>, flag: &[String]) -> Result<Self, Error> {
        const FIELD: &str = "ipvs.excludeCIDRs";
        let mut excluded = match file.map(Path::new).filter(|path| !path.as_os_str().is_empty()) {
            None => Self::default(),
            Some(path) => {
                let File { configuration, warnings } = decode(path, &read(path)?)?;
                let cidrs = checks::cidrs(&configuration.ipvs.exclude_cidrs);
                Self { cidrs: Origin::File(path).check(FIELD, cidrs)?, warnings }
            }
        };
        excluded.cidrs.extend(Origin::Flags.check(FIELD, checks::cidrs(flag))?);
        Ok(excluded)
    }

    /// The ranges of the daemon's flags, and of the file that they name.
    pub fn from_flags(flags: &Flags) -> Result<Self, Error> {
        Self::read(flags.config.as_deref(), &flags.configuration().ipvs.exclude_cidrs)
    }

    /// Whether an address is in one of the ranges.
    pub fn contains(&self, ip: IpAddr) -> bool {
        self.cidrs.iter().any(|range| range.contains(&ip))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::config::tests::HEAD;

    #[test]
    fn what_the_file_spares_and_what_the_flag_spares_is_spared() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config.conf");
        let fields = "mode: iptables\nipvs: {scheduler: NO SUCH, excludeCIDRs: [10.99.0.0/16]}\n";
        fs::write(&path, format!("{HEAD}{fields}")).unwrap();
        let flag = ["fd00:99::/112".to_owned()];
        let excluded = Excluded::read(path.to_str(), &flag).unwrap();
        assert_eq!(excluded.cidrs, ["10.99.0.0/16", "fd00:99::/112"].map(|cidr| cidr.parse().unwrap()));
        assert_eq!(excluded.warnings, [""; 0]);
        for none in [None, Some("")] {
            assert_eq!(Excluded::read(none, &flag).unwrap().cidrs.len(), 1);
        }
    }
}
