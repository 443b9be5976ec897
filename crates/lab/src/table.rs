//! A table in Markdown, and what its cells show.

use std::fmt;

use crate::statistics::Percentiles;

/// What is shown where a measurement failed or was not made.
pub(crate) const NONE: &str = "–";

/// A table with its heading; nothing until there is a row.
pub(crate) struct Table {
    head: String,
    rows: String,
}

impl Table {
    /// A table whose columns have these names, with bars between them.
    pub(crate) fn new(heading: &str, columns: &str) -> Self {
        let line = vec!["---"; columns.split(" | ").count()].join("|");
        Self { head: format!("\n### {heading}\n\n| {columns} |\n|{line}|\n"), rows: String::new() }
    }

    /// Adds a row of these cells, with bars between them.
    pub(crate) fn row(&mut self, cells: &str) {
        self.rows.extend(["| ", cells, " |\n"]);
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.rows.is_empty() { Ok(()) } else { write!(f, "{}{}", self.head, self.rows) }
    }
}

pub(crate) fn seconds(time: impl Into<Option<f64>>) -> String {
    match time.into() {
        Some(time) if time >= 1.0 => format!("{time:.1} s"),
        Some(time) => format!("{:.1} ms", time * 1e3),
        None => NONE.to_owned(),
    }
}

/// The median, and what one of a hundred exceeds.
pub(crate) fn both(times: impl Into<Option<Percentiles>>) -> String {
    let times = times.into();
    times.map_or(NONE.to_owned(), |times| format!("{} / {}", seconds(times.p50), seconds(times.p99)))
}

/// The same, and the longest.
pub(crate) fn with_longest(times: Percentiles) -> String {
    format!("{} / {}", both(times), seconds(times.longest))
}

pub(crate) fn ratio(of: Option<f64>, to: Option<f64>) -> String {
    of.zip(to).map_or(NONE.to_owned(), |(of, to)| format!("{:.1}", of / to))
}

/// A size in bytes.
pub(crate) fn megabytes(size: impl Into<Option<f64>>) -> String {
    size.into().map_or(NONE.to_owned(), |size| format!("{:.0} MB", size / 1e6))
}
