//! The recorded pages, and what Prometheus reads of them.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};

/// How often a page is read.
pub(super) const EVERY: Duration = Duration::from_secs(5);

/// Keeps a page of a node, which was read now. The names of the files are in the order of time.
pub(super) fn keep(pages: &Path, node: &str, page: &str) -> Result<()> {
    let milliseconds = SystemTime::UNIX_EPOCH.elapsed()?.as_millis();
    let path = pages.join(format!("{milliseconds} {node}"));
    fs::write(&path, page).with_context(|| path.display().to_string())
}

/// All pages as one text of OpenMetrics in which each value has its time, and when the first was read and the last, in
/// seconds.
pub(super) fn as_openmetrics(pages: &Path) -> Result<(String, [u64; 2])> {
    let entries = fs::read_dir(pages).with_context(|| pages.display().to_string())?;
    let mut names =
        entries.map(|entry| Ok(entry?.file_name().into_string().ok())).collect::<Result<Vec<_>>>()?;
    names.sort();
    let (mut text, mut times) = (String::new(), Vec::new());
    for name in names.iter().flatten() {
        let page = fs::read_to_string(pages.join(name)).with_context(|| name.clone())?;
        let (milliseconds, node) = name.split_once(' ').context("not the name of a page")?;
        let milliseconds: u64 = milliseconds.parse()?;
        times.push(milliseconds / 1000);
        for line in page.lines().filter_map(|line| value(line, node, milliseconds)) {
            writeln!(text, "{line}")?;
        }
    }
    let first_and_last = times.first().copied().zip(times.last().copied());
    let (first, last) = first_and_last.with_context(|| format!("nothing is in {}", pages.display()))?;
    Ok((text + "# EOF\n", [first, last]))
}

/// A line with a value, with the labels that Prometheus gives to what it reads of a target, and with the time. Types
/// are left out: nothing asks for them, and OpenMetrics has other rules for names than the format of our pages.
fn value(line: &str, node: &str, milliseconds: u64) -> Option<String> {
    let (series, value) = line.rsplit_once(' ').filter(|_| !line.starts_with('#'))?;
    let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
    let comma = if labels == "}" { "" } else { "," };
    let (seconds, rest) = (milliseconds / 1000, milliseconds % 1000);
    Some(format!("{name}{{job=\"kube-ipvs\",instance=\"{node}\"{comma}{labels} {value} {seconds}.{rest:03}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_get_labels_and_a_time() {
        let read = |line| value(line, "n", 1_700_000_000_042);
        assert_eq!(read("# TYPE a counter"), None);
        let labelled = "a{job=\"kube-ipvs\",instance=\"n\",b=\"c d\"} 1e3 1700000000.042";
        assert_eq!(read("a{b=\"c d\"} 1e3").unwrap(), labelled);
        assert_eq!(read("a 2").unwrap(), "a{job=\"kube-ipvs\",instance=\"n\"} 2 1700000000.042");
    }
}
