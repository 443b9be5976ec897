//! Each target on its corpus: answers of a real kernel, inputs that fuzzing found, and former crashes.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use fuzz_targets::TARGETS;

/// The repository stays small.
const MOST_FILES: usize = 30;
const MOST_BYTES: usize = 70_000;

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
fn every_file_of_every_corpus_passes_its_target() {
    for target in TARGETS {
        for (name, input) in files(&fuzz().join("corpus").join(target.name)) {
            println!("{} {name}", target.name);
            (target.run)(&input);
        }
    }
}

#[test]
fn every_target_has_a_small_corpus() {
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
fn every_target_takes_empty_input() {
    for target in TARGETS {
        (target.run)(&[]);
    }
}
