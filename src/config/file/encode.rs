//! Writing a configuration file.

use std::{fs, path::Path};

use serde_json::Value;

use crate::config::{Error, KubeProxyConfiguration};

impl KubeProxyConfiguration {
    /// Writes a file that reads back as the same.
    pub fn write_to(&self, path: &Path) -> Result<(), Error> {
        fs::write(path, self.to_yaml()?).map_err(|source| Error::Write { path: path.to_owned(), source })
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

    /// The configuration as a tree of fields.
    pub(in crate::config) fn tree(&self) -> Value {
        // Only maps with keys that are no text cannot be a tree, and there are none.
        serde_json::to_value(self).unwrap_or_default()
    }
}
