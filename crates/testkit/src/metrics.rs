//! Reading metrics as the daemon shows them.

use anyhow::{Context as _, Result};

/// The value of a metric, which is named with its labels: `name` or `name{label="value"}`.
pub fn value(page: &str, metric: &str) -> Result<f64> {
    let value = page.lines().find_map(|line| line.strip_prefix(metric)?.strip_prefix(' '));
    Ok(value.with_context(|| format!("{metric} is not in\n{page}"))?.parse()?)
}
