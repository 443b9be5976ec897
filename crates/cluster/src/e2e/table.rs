//! What came of the tests, for people.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use super::junit::Outcome;
use super::selection;
use super::{Results, Test};
use crate::proxy::Proxy;
use crate::state::named;

/// How many there are of each outcome, and which did not just pass.
pub(super) fn summary(results: &Results) -> String {
    let mut text = String::new();
    for (name, test) in &results.tests {
        let (word, reason) = match test.outcome {
            Outcome::Passed => continue,
            Outcome::Flaked => ("flake", &test.reason),
            Outcome::Failed => ("FAIL", &test.reason),
            Outcome::Skipped => ("skip", &test.reason),
        };
        let reason = reason.lines().next().unwrap_or_default();
        text += &format!("{word:5} {name}: {reason}\n");
    }
    let count = |outcome| results.tests.values().filter(|test| test.outcome == outcome).count();
    let (passed, flaked) = (count(Outcome::Passed), count(Outcome::Flaked));
    let (failed, skipped) = (count(Outcome::Failed), count(Outcome::Skipped));
    text += &format!(
        "{passed} passed, {flaked} flaked, {failed} failed, {skipped} skipped in {:.0} s\n",
        results.seconds
    );
    text
}

/// A table with a column for each proxy that was tried, and the lines that are not all the same.
pub(super) fn table(directory: &Path) -> Result<String> {
    let mut columns = Vec::new();
    for proxy in Proxy::ALL {
        let path = directory.join(proxy.name()).join("results.json");
        if path.exists() {
            let text = fs::read(&path).with_context(named(&path))?;
            columns.push((proxy, serde_json::from_slice::<Results>(&text).with_context(named(&path))?));
        }
    }
    let row = |first: &str, cell: &dyn Fn(&Results) -> String| {
        let cells: Vec<String> = columns.iter().map(|(_, results)| cell(results)).collect();
        format!("| {first} | {} |\n", cells.join(" | "))
    };
    let mut text =
        format!("| | {} |\n", columns.iter().map(|(proxy, _)| proxy.name()).collect::<Vec<_>>().join(" | "));
    text += &format!("|---|{}\n", "---|".repeat(columns.len()));
    for (word, outcome) in [
        ("passed", Outcome::Passed),
        ("passed when repeated alone", Outcome::Flaked),
        ("failed", Outcome::Failed),
        ("skipped themselves", Outcome::Skipped),
    ] {
        let count = |results: &Results| results.tests.values().filter(|test| test.outcome == outcome).count();
        text += &row(word, &|results| count(results).to_string());
    }
    text += &row("minutes", &|results| format!("{:.0}", results.seconds / 60.0));

    text += "\nTests that did not pass the first time with every proxy:\n\n";
    text +=
        &format!("| | {} |\n", columns.iter().map(|(proxy, _)| proxy.name()).collect::<Vec<_>>().join(" | "));
    text += &format!("|---|{}\n", "---|".repeat(columns.len()));
    let names: BTreeSet<&String> = columns.iter().flat_map(|(_, results)| results.tests.keys()).collect();
    for name in names {
        let outcome = |results: &Results| results.tests.get(name).map(|test: &Test| test.outcome);
        let same = columns.iter().all(|(_, results)| matches!(outcome(results), Some(Outcome::Passed)));
        if !same {
            text += &row(name, &|results| match outcome(results) {
                None => "–".to_owned(),
                Some(Outcome::Passed) => "passed".to_owned(),
                Some(Outcome::Flaked) => "passed alone".to_owned(),
                Some(Outcome::Failed) => "**failed**".to_owned(),
                Some(Outcome::Skipped) => "skipped".to_owned(),
            });
        }
    }
    text += "\nNot run:\n\n";
    for (part, reason) in selection::left_out() {
        text += &format!("- `{part}`: {reason}\n");
    }
    Ok(text)
}
