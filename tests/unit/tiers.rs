//! Every test runs in some tier: its file is part of a program, and if it is ignored, its program is that of the tier that it
//! names.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// The files of Rust below a directory of the repository; none if it is not there.
fn sources(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().map(|entry| entry.unwrap().path());
    let (directories, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    let here = files.into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "rs"));
    here.chain(directories.iter().flat_map(|directory| sources(directory))).collect()
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The package of the program, and every crate.
fn packages() -> Vec<PathBuf> {
    let crates = fs::read_dir(root().join("crates")).unwrap().map(|entry| entry.unwrap().path());
    crates.chain([root().to_owned()]).collect()
}

/// What the attributes `ignore` of a source say.
fn ignored(source: &str) -> impl Iterator<Item = &str> {
    source.lines().map(str::trim).filter(|line| line.starts_with("#[ignore"))
}

#[test]
fn every_ignored_test_is_in_the_program_of_the_tier_that_it_names() {
    let mut seen = 0;
    for package in packages() {
        let tests = package.join("tests");
        for path in ["src", "tests", "benches"].iter().flat_map(|part| sources(&package.join(part))) {
            let source = fs::read_to_string(&path).unwrap();
            let program = path.strip_prefix(&tests).ok().and_then(|path| path.iter().next());
            let program = program.unwrap_or_default().to_string_lossy();
            // A part of the program kernel needs the program of the version before, and so is in another tier.
            let tier = if path.ends_with("tests/kernel/upgrades.rs") { "release" } else { &program };
            let tier = format!("cargo xtask test --tier {tier}\"]");
            for line in ignored(&source) {
                assert!(line.ends_with(&tier), "{}: {line}", path.display());
                seen += 1;
            }
        }
    }
    assert!(seen > 300, "{seen}");
}

/// Whether another source of this directory, the one that is named after it, or the program's root beside that declares the
/// module.
fn is_declared(path: &Path) -> bool {
    let (name, directory) = (path.file_stem().unwrap().to_str().unwrap(), path.parent().unwrap());
    let (module, directory) = match name {
        "mod" => (directory.file_name().unwrap().to_str().unwrap(), directory.parent().unwrap()),
        _ => (name, directory),
    };
    let above = [directory.with_extension("rs"), directory.with_file_name("main.rs")];
    let declares = |source: &PathBuf| {
        let source = fs::read_to_string(source).unwrap_or_default();
        source.contains(&format!("mod {module};"))
    };
    let beside =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).filter(|it| it.is_file());
    beside.chain(above).any(|source| declares(&source))
}

#[test]
fn every_source_below_a_directory_of_tests_is_part_of_a_program() {
    let mut seen = 0;
    for path in packages().iter().flat_map(|package| sources(&package.join("tests"))) {
        // Several programs have this one by its path.
        let is_root = path.ends_with("main.rs") || path.ends_with("tests/support/mod.rs");
        assert!(is_root || is_declared(&path), "no module: {}", path.display());
        seen += 1;
    }
    assert!(seen > 150, "{seen}");
}
