//! Each row of tests/proofs has tests, every one of them exists, and the pages say the same.

use std::{collections::BTreeMap, fs};

use crate::support::documents;

/// A page with the rows that people need, by their number, and the file that has all of them with their proofs.
struct Page {
    name: &'static str,
    proofs: &'static str,
    /// How the page calls all of them, after their number.
    rows: &'static str,
}

const PAGES: [Page; 3] = [
    Page { name: "docs/evidence/parity.md", proofs: "tests/proofs/parity.txt", rows: "statements" },
    Page { name: "docs/evidence/faults.md", proofs: "tests/proofs/faults.txt", rows: "faults" },
    Page { name: "SECURITY.md", proofs: "tests/proofs/security.txt", rows: "lines" },
];

/// What proves one row.
struct Proofs {
    file: &'static str,
    row: u32,
    /// What kube-proxy does, or what goes wrong.
    statement: String,
    /// `FILE: TEST`, or why there is none.
    lines: Vec<String>,
}

fn read(file: &str) -> String {
    fs::read_to_string(documents::root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// The number that a line begins with, and what follows it.
fn numbered(line: &str) -> Option<(u32, &str)> {
    let (number, rest) = line.split_once(". ")?;
    Some((number.parse().ok()?, rest))
}

/// The numbered items of a page, each in one line.
fn items(page: &Page) -> BTreeMap<u32, String> {
    let mut items: BTreeMap<u32, String> = BTreeMap::new();
    let mut last = None;
    for line in read(page.name).lines() {
        if let Some((number, text)) = numbered(line) {
            let former = items.insert(number, text.to_owned());
            assert!(former.is_none(), "{}: {number} is there twice", page.name);
            last = Some(number);
        } else if let (Some(item), true) = (last.and_then(|it| items.get_mut(&it)), line.starts_with(' ')) {
            item.extend([" ", line.trim()]);
        } else {
            last = None;
        }
    }
    items
}

/// The blocks of a file of proofs: the row's number and statement, then its lines.
fn proofs(page: &Page) -> Vec<Proofs> {
    let file = page.proofs;
    let text = read(file);
    let blocks = text.split("\n\n").filter(|block| !block.starts_with('#'));
    blocks
        .map(|block| {
            let mut lines = block.lines();
            let first = lines.next().unwrap_or_default();
            let (row, statement) =
                numbered(first).unwrap_or_else(|| panic!("{file}: {first:?} is not a row"));
            Proofs { file, row, statement: statement.to_owned(), lines: lines.map(str::to_owned).collect() }
        })
        .collect()
}

/// What `cargo xtask` makes happen, and where it is written down under its name.
const RUNS: [(&str, &[&str]); 2] = [
    (
        "cargo xtask chaos",
        &[
            "crates/lab/src/chaos/catalogue.rs",
            "crates/lab/src/chaos/catalogue/endpoints.rs",
            "crates/lab/src/chaos/catalogue/kernel.rs",
            "crates/lab/src/chaos/catalogue/process.rs",
        ],
    ),
    (
        "cargo xtask soak",
        &[
            "crates/lab/src/soak/ejecting.rs",
            "crates/lab/src/soak/ejecting/troubles.rs",
            "crates/lab/src/soak/samples.rs",
            "crates/lab/src/soak.rs",
        ],
    ),
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
    for Proofs { file, row, lines, .. } in PAGES.iter().flat_map(proofs) {
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
    for Proofs { file, row, lines, .. } in PAGES.iter().flat_map(proofs) {
        assert!(!lines.is_empty(), "{file}: row {row} has no proof");
        let why = lines.iter().filter(|line| says_why(line)).count();
        assert!(why == 0 || lines.len() == 1, "{file}: row {row} has proofs and a reason to have none");
        for (at, line) in lines.iter().enumerate() {
            assert!(!lines[..at].contains(line), "{file}: row {row} names {line} twice");
        }
    }
}

#[test]
fn rows_are_numbered_without_gap_and_each_page_says_how_many_there_are() {
    for page in &PAGES {
        let proven: Vec<u32> = proofs(page).iter().map(|proofs| proofs.row).collect();
        assert!(proven.iter().copied().eq((1..).take(proven.len())), "{}: {proven:?}", page.proofs);
        let said = format!("{} {}", proven.len(), page.rows);
        assert!(read(page.name).contains(&said), "{} does not say: {said}", page.name);
    }
}

#[test]
fn pages_have_the_rows_that_are_proven_in_the_same_words() {
    for page in &PAGES {
        let items = items(page);
        assert!(items.len() > 15, "{}: {} rows", page.name, items.len());
        let rows = proofs(page);
        for (number, text) in &items {
            let row = rows.iter().find(|row| row.row == *number);
            let row = row.unwrap_or_else(|| panic!("{}: no row {number} in {}", page.name, page.proofs));
            let statement = text.trim_start_matches("**");
            assert!(statement.starts_with(&format!("{}.", row.statement)), "{}: {number}: {text}", page.name);
        }
    }
}

#[test]
fn a_name_without_a_test_is_found_out() {
    assert!(has_test("tests/unit/parity.rs", "a_name_without_a_test_is_found_out"));
    assert!(!has_test("tests/unit/parity.rs", "items"), "a function without the attribute");
    assert!(!has_test("tests/unit/parity.rs", "a_name"), "the beginning of a name");
    assert!(has_test("cargo xtask chaos", "ipvsadm -C") && !has_test("cargo xtask chaos", "ipvsadm"));
    assert!(!has_test("tests/nowhere.rs", "a_name_without_a_test_is_found_out"));
}
