//! docs/parity.md keeps its word: every test that it names exists.
#![allow(clippy::panic, clippy::unwrap_used, reason = "only tests are here")]

use std::{fs, path::Path};

/// A row of docs/parity.md: a statement and what proves it.
struct Row {
    number: u32,
    proofs: Vec<(String, String)>,
    proven_by: String,
}

fn rows() -> Vec<Row> {
    let table = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/parity.md")).unwrap();
    table.lines().filter_map(row).collect()
}

/// `None` for a line that is no row of a statement.
fn row(line: &str) -> Option<Row> {
    let cells: Vec<&str> = line.strip_prefix('|')?.split('|').map(str::trim).collect();
    let (number, _) = cells.first()?.split_once(". ")?;
    let number = number.parse().ok()?;
    let [_, proven_by, _, ""] = cells[..] else { panic!("statement {number} needs three columns") };
    Some(Row { number, proofs: proofs(proven_by), proven_by: proven_by.to_owned() })
}

/// The `file: test` pairs in backticks.
fn proofs(cell: &str) -> Vec<(String, String)> {
    let quoted = cell.split('`').skip(1).step_by(2);
    quoted
        .map(|proof| {
            let (file, test) =
                proof.split_once(": ").unwrap_or_else(|| panic!("{proof:?} is not FILE: TEST"));
            (file.to_owned(), test.to_owned())
        })
        .collect()
}

/// Whether the file has a function of this name under a test attribute.
fn has_test(file: &str, test: &str) -> bool {
    let source = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap_or_default();
    source.match_indices(&format!("fn {test}(")).any(|(at, _)| {
        let paragraph = source[..at].rsplit("\n\n").next().unwrap_or_default();
        paragraph.contains("#[test]") || paragraph.contains("#[tokio::test")
    })
}

#[test]
fn every_test_that_the_parity_table_names_exists() {
    let mut missing = Vec::new();
    for row in rows() {
        for (file, test) in row.proofs.iter().filter(|(file, test)| !has_test(file, test)) {
            missing.push(format!("statement {}: no test {test} in {file}", row.number));
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

#[test]
fn every_statement_is_proven_or_not_yet() {
    for row in rows() {
        let not_yet = row.proven_by.starts_with("not yet: ");
        assert_eq!(row.proofs.is_empty(), not_yet, "statement {}: {:?}", row.number, row.proven_by);
    }
}

#[test]
fn the_statements_are_numbered_without_gap() {
    let numbers: Vec<u32> = rows().iter().map(|row| row.number).collect();
    let complete: Vec<u32> = (1..).take(numbers.len()).collect();
    assert_eq!(numbers, complete);
    assert!(numbers.len() == 189);
}

#[test]
fn a_name_without_a_test_is_found_out() {
    assert!(has_test("tests/parity.rs", "a_name_without_a_test_is_found_out"));
    assert!(!has_test("tests/parity.rs", "rows"), "a function that is no test");
    assert!(!has_test("tests/parity.rs", "a_name"), "the beginning of a name");
    assert!(!has_test("tests/nowhere.rs", "a_name_without_a_test_is_found_out"));
}
