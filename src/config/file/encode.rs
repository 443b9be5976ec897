//! Writing a configuration file.

use std::{io::Write as _, path::Path};

use serde_json::{Map, Value};

use super::defaults;
use crate::{
    config::{Error, KubeProxyConfiguration},
    files,
};

impl KubeProxyConfiguration {
    /// Writes a file that reads back as the same.
    pub fn write_to(&self, path: &Path) -> Result<(), Error> {
        let text = self.to_yaml()?;
        let written = files::overwrite(path).and_then(|mut file| file.write_all(text.as_bytes()));
        written.map_err(|source| Error::Write { path: path.to_owned(), source })
    }

    /// The file's text. What only a flag can say is refused: an empty address in a file is the default.
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

    /// What of the tree differs from the default, with what every file says: a file of it reads back as the same.
    pub(in crate::config) fn differences(&self) -> Value {
        // Where health and metrics are by default depends on the bind address.
        let mut usual = Self { bind_address: self.bind_address.clone(), ..Self::default() };
        defaults::fill(&mut usual);
        let (tree, mut kept) = (self.tree(), Map::new());
        if let Value::Object(differing) = differing(&tree, &usual.tree()) {
            kept = differing;
        }
        let always = ["apiVersion", "kind", "mode"].into_iter();
        let bind_address = (self.bind_address != defaults::filled().bind_address).then_some("bindAddress");
        for name in always.chain(bind_address) {
            kept.insert(name.to_owned(), tree.get(name).cloned().unwrap_or_default());
        }
        Value::Object(kept)
    }

    /// The configuration as a tree of fields.
    pub(in crate::config) fn tree(&self) -> Value {
        // Only maps with keys that are no text cannot be a tree, and there are none.
        serde_json::to_value(self).unwrap_or_default()
    }
}

/// What of a tree is not the same in the other; null for nothing.
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
