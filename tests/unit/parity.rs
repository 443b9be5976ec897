//! docs/parity.md and docs/faults.md keep their word: every test that they name exists.
use std::{fs, path::Path};

/// A document whose rows are numbered, and say what proves them.
struct Document {
    file: &'static str,
    rows: usize,
    /// Which of the three columns names the tests, from 0.
    proven_by: usize,
}

const DOCUMENTS: [Document; 2] = [
    Document { file: "docs/parity.md", rows: 189, proven_by: 1 },
    Document { file: "docs/faults.md", rows: 70, proven_by: 2 },
];

/// A row of such a document: a statement or a fault, and what proves it.
struct Row {
    file: &'static str,
    number: u32,
    proofs: Vec<(String, String)>,
    proven_by: String,
}

fn rows(document: &Document) -> Vec<Row> {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(document.file)).unwrap();
    text.lines().filter_map(|line| row(document, line)).collect()
}

/// `None` for a line that is no numbered row.
fn row(document: &Document, line: &str) -> Option<Row> {
    let file = document.file;
    let cells: Vec<&str> = line.strip_prefix('|')?.split('|').map(str::trim).collect();
    let (number, _) = cells.first()?.split_once(". ")?;
    let number = number.parse().ok()?;
    let [columns @ .., ""] = &cells[..] else { panic!("{file}: row {number} has no end") };
    assert_eq!(columns.len(), 3, "{file}: columns of row {number}");
    let proven_by = columns[document.proven_by];
    Some(Row { file, number, proofs: proofs(proven_by), proven_by: proven_by.to_owned() })
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

/// What `cargo xtask` makes happen, and where it is written down under its name.
const RUNS: [(&str, &[&str]); 2] = [
    (
        "cargo xtask chaos",
        &[
            "crates/xtask/src/chaos/catalogue/api_server.rs",
            "crates/xtask/src/chaos/catalogue/kernel.rs",
            "crates/xtask/src/chaos/catalogue/process.rs",
        ],
    ),
    ("cargo xtask soak", &["crates/xtask/src/soak/samples.rs", "crates/xtask/src/soak.rs"]),
];

/// Whether the file has a function of this name under a test attribute, or such a run does or looks at this.
fn has_test(file: &str, test: &str) -> bool {
    if let Some((_, files)) = RUNS.iter().find(|(run, _)| *run == file) {
        let path = |file: &&str| Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
        return files
            .iter()
            .any(|file| fs::read_to_string(path(file)).unwrap().contains(&format!("\"{test}\"")));
    }
    let source = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap_or_default();
    source.match_indices(&format!("fn {test}(")).any(|(at, _)| {
        let paragraph = source[..at].rsplit("\n\n").next().unwrap_or_default();
        paragraph.contains("#[test]") || paragraph.contains("#[tokio::test")
    })
}

#[test]
fn every_test_that_a_document_names_exists() {
    let mut missing = Vec::new();
    for row in DOCUMENTS.iter().flat_map(rows) {
        for (file, test) in row.proofs.iter().filter(|(file, test)| !has_test(file, test)) {
            missing.push(format!("{}: row {}: no test {test} in {file}", row.file, row.number));
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

#[test]
fn every_row_names_a_test_or_says_why_there_is_none() {
    for row in DOCUMENTS.iter().flat_map(rows) {
        let says_why = ["not yet: ", "cannot happen: "].iter().any(|why| row.proven_by.starts_with(why));
        assert_eq!(row.proofs.is_empty(), says_why, "{}: row {}: {:?}", row.file, row.number, row.proven_by);
    }
}

#[test]
fn the_rows_are_numbered_without_gap() {
    for document in &DOCUMENTS {
        let numbers: Vec<u32> = rows(document).iter().map(|row| row.number).collect();
        let complete: Vec<u32> = (1..).take(document.rows).collect();
        assert_eq!(numbers, complete, "{}", document.file);
    }
}

#[test]
fn a_name_without_a_test_is_found_out() {
    assert!(has_test("tests/unit/parity.rs", "a_name_without_a_test_is_found_out"));
    assert!(!has_test("tests/unit/parity.rs", "rows"), "a function that is no test");
    assert!(!has_test("tests/unit/parity.rs", "a_name"), "the beginning of a name");
    assert!(has_test("cargo xtask chaos", "ipvsadm -C") && !has_test("cargo xtask chaos", "ipvsadm"));
    assert!(!has_test("tests/nowhere.rs", "a_name_without_a_test_is_found_out"));
}
