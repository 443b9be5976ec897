//! Each target with the bytes of its corpus: what a real kernel has said, what was found by fuzzing, and what once
//! was a crash.
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use fuzz_targets::TARGETS;

/// So that the repository stays small.
const MOST_FILES: usize = 30;
const MOST_BYTES: usize = 50_000;

fn fuzz() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz")
}

/// The files of a directory, with their names.
fn files(directory: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let mut files: Vec<_> = entries
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read(path).unwrap()))
        .collect();
    files.sort();
    files
}

#[test]
fn every_file_of_every_corpus_is_read_as_it_should_be() {
    for target in TARGETS {
        for (name, input) in files(&fuzz().join("corpus").join(target.name)) {
            println!("{} {name}", target.name);
            (target.run)(&input);
        }
    }
}

#[test]
fn a_corpus_is_there_for_every_target_and_small() {
    for target in TARGETS {
        let files = files(&fuzz().join("corpus").join(target.name));
        let bytes: usize = files.iter().map(|(_, input)| input.len()).sum();
        assert!((1..=MOST_FILES).contains(&files.len()), "{}: {} files", target.name, files.len());
        assert!(bytes <= MOST_BYTES, "{}: {bytes} bytes", target.name);
    }
}

#[test]
fn every_target_has_a_program_that_fuzzes_it() {
    let programs: BTreeSet<_> = files(&fuzz().join("src/bin")).into_iter().map(|(name, _)| name).collect();
    let expected = TARGETS.iter().map(|target| format!("{}.rs", target.name)).collect();
    assert_eq!(programs, expected);
}

#[test]
fn nothing_at_all_is_an_input_too() {
    for target in TARGETS {
        (target.run)(&[]);
    }
}
