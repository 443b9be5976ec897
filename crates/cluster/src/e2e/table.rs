//! What came of the tests, for people.

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::{Context as _, Result};

use super::{Results, junit::Outcome};
use crate::{proxy::Proxy, state::named};

/// How many there are of each outcome, and which did not just pass.
pub(super) fn summary(results: &Results) -> String {
    let mut lines = Vec::new();
    for (name, test) in &results.tests {
        let word = match test.outcome {
            Outcome::Passed => continue,
            Outcome::Flaked => "flake",
            Outcome::Failed => "FAIL",
            Outcome::Skipped => "skip",
        };
        lines.push(format!("{word:5} {name}: {}", test.reason.lines().next().unwrap_or_default()));
    }
    let count = |outcome| results.tests.values().filter(|test| test.outcome == outcome).count();
    let (passed, flaked) = (count(Outcome::Passed), count(Outcome::Flaked));
    let (failed, skipped) = (count(Outcome::Failed), count(Outcome::Skipped));
    let seconds = results.seconds;
    lines.push(format!(
        "{passed} passed, {flaked} flaked, {failed} failed, {skipped} skipped in {seconds:.0} s\n"
    ));
    lines.join("\n")
}

/// A column for each proxy that was tried: how many tests passed, and each that did not pass with all of them.
pub(super) fn table(directory: &Path) -> Result<String> {
    let columns = Columns::read(directory)?;
    let mut lines = columns.head();
    for (word, outcome) in [
        ("passed", Outcome::Passed),
        ("passed when repeated alone", Outcome::Flaked),
        ("failed", Outcome::Failed),
        ("skipped themselves", Outcome::Skipped),
    ] {
        lines.push(columns.row(word, |results| {
            results.tests.values().filter(|test| test.outcome == outcome).count().to_string()
        }));
    }
    lines.push(columns.row("minutes", |results| format!("{:.0}", results.seconds / 60.0)));

    lines.extend([
        String::new(),
        "## Tests that did not pass at once with all of them".to_owned(),
        String::new(),
    ]);
    lines.extend(columns.head());
    for name in columns.names() {
        let outcomes = columns.0.iter().map(|(_, results)| results.tests.get(name).map(|test| test.outcome));
        if !outcomes.clone().all(|outcome| outcome == Some(Outcome::Passed)) {
            lines.push(columns.row(name, |results| {
                let word = match results.tests.get(name).map(|test| test.outcome) {
                    None => "–",
                    Some(Outcome::Passed) => "passed",
                    Some(Outcome::Flaked) => "passed alone",
                    Some(Outcome::Failed) => "**failed**",
                    Some(Outcome::Skipped) => "skipped",
                };
                word.to_owned()
            }));
        }
    }

    lines.extend([String::new(), "## Tests that are not run".to_owned(), String::new()]);
    lines.extend(super::left_out().map(|(part, reason)| format!("- `{part}`: {reason}")));
    lines.push(String::new());
    Ok(lines.join("\n"))
}

/// The proxies that were tried.
struct Columns(Vec<(Proxy, Results)>);

impl Columns {
    fn read(directory: &Path) -> Result<Self> {
        let paths = Proxy::ALL.map(|proxy| (proxy, directory.join(proxy.name()).join(super::RESULTS)));
        let there = paths.into_iter().filter(|(_, path)| path.exists());
        let read = |(proxy, path): (Proxy, std::path::PathBuf)| {
            let text = fs::read(&path).with_context(named(&path))?;
            Ok((proxy, serde_json::from_slice(&text).with_context(named(&path))?))
        };
        there.map(read).collect::<Result<_>>().map(Self)
    }

    fn head(&self) -> Vec<String> {
        let names: Vec<&str> = self.0.iter().map(|(proxy, _)| proxy.name()).collect();
        vec![format!("| | {} |", names.join(" | ")), format!("|---|{}", "---|".repeat(names.len()))]
    }

    fn row(&self, first: &str, cell: impl Fn(&Results) -> String) -> String {
        let cells: Vec<String> = self.0.iter().map(|(_, results)| cell(results)).collect();
        format!("| {first} | {} |", cells.join(" | "))
    }

    fn names(&self) -> BTreeSet<&String> {
        self.0.iter().flat_map(|(_, results)| results.tests.keys()).collect()
    }
}
