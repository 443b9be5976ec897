//! A table in Markdown, and its cells.

use std::fmt::Write as _;

use testkit::kernel_baseline::Size;

use crate::bench::figures::Percentiles;

/// What is shown where a measurement failed or was not made.
pub(super) const NONE: &str = "–";

/// A table with its heading; nothing until there is a row.
pub(super) struct Table<'a> {
    heading: &'a str,
    columns: &'a [&'a str],
    pub(super) text: String,
}

impl<'a> Table<'a> {
    pub(super) fn new(heading: &'a str, columns: &'a [&'a str]) -> Self {
        Self { heading, columns, text: String::new() }
    }

    pub(super) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        // Writing to a String cannot fail.
        if self.text.is_empty() {
            let line = vec!["---"; self.columns.len()].join("|");
            let _ =
                writeln!(self.text, "\n### {}\n\n| {} |\n|{line}|", self.heading, self.columns.join(" | "));
        }
        let cells: Vec<String> = cells.into_iter().collect();
        let _ = writeln!(self.text, "| {} |", cells.join(" | "));
    }
}

pub(super) fn size_cell(Size { services, endpoints }: Size) -> String {
    format!("{services} × {endpoints}")
}

pub(super) fn seconds(time: Option<f64>) -> String {
    match time {
        Some(time) if time >= 1.0 => format!("{time:.1} s"),
        Some(time) => format!("{:.1} ms", time * 1e3),
        None => NONE.to_owned(),
    }
}

pub(super) fn both(times: Option<Percentiles>) -> String {
    times.map_or(NONE.to_owned(), |Percentiles { p50, p99 }| {
        format!("{} / {}", seconds(Some(p50)), seconds(Some(p99)))
    })
}

pub(super) fn ratio(of: Option<f64>, to: Option<f64>) -> String {
    of.zip(to).map_or(NONE.to_owned(), |(of, to)| format!("{:.1}", of / to))
}

pub(super) fn megabytes(size: Option<u64>) -> String {
    size.map_or(NONE.to_owned(), |size| format!("{:.0} MB", bytes(size) / 1e6))
}

#[expect(clippy::cast_precision_loss, reason = "at most two digits after the point are shown")]
pub(super) fn bytes(size: u64) -> f64 {
    size as f64
}
