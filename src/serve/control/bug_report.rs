//! What belongs to a bug report and only the daemon has.

use std::fs;

use serde::{Deserialize, Serialize};
use service::one_line;

use crate::serve::metrics::MetricsPages;

/// What belongs to a bug report and only the daemon has. There are no secrets in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BugReport {
    /// The configuration in use, as JSON. It has paths of credentials, and not what is there.
    pub configuration: String,
    /// The page of metrics, without the traffic of Services.
    pub metrics: String,
    /// The process's limits, or why they are not known.
    pub limits: String,
}

impl BugReport {
    /// Takes them from these pages and from this process.
    pub(crate) fn new(pages: &MetricsPages) -> Self {
        let limits = fs::read_to_string("/proc/self/limits").unwrap_or_else(|error| one_line(&error));
        Self { configuration: pages.configuration().to_owned(), metrics: pages.metrics(), limits }
    }
}
