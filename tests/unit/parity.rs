//! Each row of docs/parity.md and docs/faults.md has its proofs in tests/proofs, and every test that they name exists.
use crate::support::documents;
use std::fs;

/// A page whose rows are numbered, and the file that says what proves each of them.
struct Page {
    name: &'static str,
    proofs: &'static str,
    rows: u32,
}

const PAGES: [Page; 2] = [
    Page { name: "docs/parity.md", proofs: "tests/proofs/parity.txt", rows: 189 },
    Page { name: "docs/faults.md", proofs: "tests/proofs/faults.txt", rows: 70 },
];

/// What proves one row.
struct Proofs {
    file: &'static str,
    row: u32,
    /// `FILE: TEST`, or why there is none.
    lines: Vec<String>,
}

fn read(file: &str) -> String {
    fs::read_to_string(documents::root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// The numbers of the rows of a page, in its order.
fn numbers(page: &Page) -> Vec<u32> {
    let text = read(page.name);
    text.lines().filter_map(|line| line.split_once(". ")?.0.parse().ok()).collect()
}

/// The blocks of a file of proofs: the row's number, then its lines.
fn proofs(page: &Page) -> Vec<Proofs> {
    let file = page.proofs;
    let text = read(file);
    let blocks = text.split("\n\n").filter(|block| !block.starts_with('#'));
    blocks
        .map(|block| {
            let mut lines = block.lines();
            let number = lines.next().unwrap_or_default();
            let row = number.parse().unwrap_or_else(|_| panic!("{file}: {number:?} is no row's number"));
            Proofs { file, row, lines: lines.map(str::to_owned).collect() }
        })
        .collect()
}

/// What `cargo xtask` makes happen, and where it is written down under its name.
const RUNS: [(&str, &[&str]); 2] = [
    (
        "cargo xtask chaos",
        &[
            "crates/lab/src/chaos/catalogue/api_server.rs",
            "crates/lab/src/chaos/catalogue/kernel.rs",
            "crates/lab/src/chaos/catalogue/process.rs",
        ],
    ),
    ("cargo xtask soak", &["crates/lab/src/soak/samples.rs", "crates/lab/src/soak.rs"]),
];

/// Whether the file has a function of this name under a test attribute, or such a run does or looks at this.
fn has_test(file: &str, test: &str) -> bool {
    if let Some((_, files)) = RUNS.iter().find(|(run, _)| *run == file) {
        return files.iter().any(|file| read(file).contains(&format!("\"{test}\"")));
    }
    let source = fs::read_to_string(documents::root().join(file)).unwrap_or_default();
    source.match_indices(&format!("fn {test}(")).any(|(at, _)| {
        let paragraph = source[..at].rsplit("\n\n").next().unwrap_or_default();
        paragraph.contains("#[test]") || paragraph.contains("#[tokio::test")
    })
}

/// Whether a line says why nothing proves the row.
fn says_why(line: &str) -> bool {
    ["not yet: ", "cannot happen: "].iter().any(|why| line.starts_with(why))
}

#[test]
fn every_test_that_proves_a_row_exists() {
    let mut missing = Vec::new();
    for Proofs { file, row, lines } in PAGES.iter().flat_map(proofs) {
        for line in lines.iter().filter(|line| !says_why(line)) {
            let exists = line.split_once(": ").is_some_and(|(file, test)| has_test(file, test));
            if !exists {
                missing.push(format!("{file}: row {row}: no such test: {line}"));
            }
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

#[test]
fn every_row_names_tests_or_says_why_there_are_none() {
    for Proofs { file, row, lines } in PAGES.iter().flat_map(proofs) {
        assert!(!lines.is_empty(), "{file}: row {row} has no proof");
        let why = lines.iter().filter(|line| says_why(line)).count();
        assert!(why == 0 || lines.len() == 1, "{file}: row {row} has proofs and a reason to have none");
        for (at, line) in lines.iter().enumerate() {
            assert!(!lines[..at].contains(line), "{file}: row {row} names {line} twice");
        }
    }
}

#[test]
fn rows_are_numbered_without_gap_and_each_has_its_proofs() {
    for page in &PAGES {
        let complete: Vec<u32> = (1..=page.rows).collect();
        assert_eq!(numbers(page), complete, "{}", page.name);
        let proven: Vec<u32> = proofs(page).iter().map(|proofs| proofs.row).collect();
        assert_eq!(proven, complete, "{}", page.proofs);
    }
}

#[test]
fn a_name_without_a_test_is_found_out() {
    assert!(has_test("tests/unit/parity.rs", "a_name_without_a_test_is_found_out"));
    assert!(!has_test("tests/unit/parity.rs", "numbers"), "a function that is no test");
    assert!(!has_test("tests/unit/parity.rs", "a_name"), "the beginning of a name");
    assert!(has_test("cargo xtask chaos", "ipvsadm -C") && !has_test("cargo xtask chaos", "ipvsadm"));
    assert!(!has_test("tests/nowhere.rs", "a_name_without_a_test_is_found_out"));
}
