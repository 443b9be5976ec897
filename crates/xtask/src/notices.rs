//! The licences of what is linked into the program. Most of them want their text to go where the program goes.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use anyhow::{Context as _, Result, ensure};
use guest::{files, platform::Platform, programs::printed, workspace};
use serde_json::Value;

/// What the files begin with that have them, at the top of a crate.
const NAMES: [&str; 6] = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"];

/// What is linked beside crates.
const BESIDE_CRATES: &str = "\
The standard library of Rust, under MIT OR Apache-2.0: https://github.com/rust-lang/rust/blob/main/COPYRIGHT
musl, under MIT: https://git.musl-libc.org/cgit/musl/tree/COPYRIGHT
";

/// Every text once, below the crates that it is for.
pub(crate) fn text() -> Result<String> {
    let mut metadata = workspace::cargo();
    metadata.args(["metadata", "--format-version", "1", "--locked"]);
    let metadata = printed(&mut metadata)?;
    let metadata: Value = serde_json::from_str(&metadata).context("what cargo metadata prints")?;
    let linked = linked()?;
    let mut crates_of_text: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut without_text = BTreeSet::new();
    for package in metadata.pointer("/packages").and_then(Value::as_array).into_iter().flatten() {
        // A field may be null.
        let text = |field: &str| package.get(field).and_then(Value::as_str).unwrap_or_default();
        let name = format!("{} {}", text("name"), text("version"));
        // Crates of the workspace have no source.
        if !linked.contains(&name) || text("source").is_empty() {
            continue;
        }
        let name = format!("{name} ({})", text("license"));
        let texts = texts(Path::new(text("manifest_path")))?;
        if texts.is_empty() {
            without_text.insert(name.clone());
        }
        for text in texts {
            crates_of_text.entry(text).or_default().insert(name.clone());
        }
    }
    ensure!(crates_of_text.len() > 10, "the crates' licences were not found");
    let mut parts =
        vec!["kube-ipvs is under Apache-2.0. Linked into it are:\n\n".to_owned(), BESIDE_CRATES.to_owned()];
    parts.extend(without_text.iter().map(|name| format!("{name}, which brings no text\n")));
    // In the order of the crates, not of the texts.
    let mut texts: Vec<_> =
        crates_of_text.into_iter().map(|(text, crates)| (Vec::from_iter(crates), text)).collect();
    texts.sort();
    for (crates, text) in texts {
        parts.push(format!("\n{}\n{}\n\n{}\n", "-".repeat(72), crates.join("\n"), text.trim_end()));
    }
    Ok(parts.concat())
}

/// The names and versions of what the program is linked with, such as `ring 0.17.14`: neither for tests nor for build
/// scripts alone.
fn linked() -> Result<BTreeSet<String>> {
    let mut tree = workspace::cargo();
    tree.args(["tree", "--locked", "--edges", "normal", "--prefix", "none", "--package", "kube-ipvs"]);
    tree.args(Platform::ALL.iter().flat_map(|platform| ["--target", platform.target()]));
    // `ring v0.17.14`, and more of macros and of what is in the workspace.
    let name = |line: &str| {
        let (name, rest) = line.split_once(" v")?;
        Some(format!("{name} {}", rest.split(' ').next()?))
    };
    Ok(printed(&mut tree)?.lines().filter_map(name).collect())
}

/// The texts at the top of a crate.
fn texts(manifest: &Path) -> Result<Vec<String>> {
    let directory = manifest.parent().context("a manifest without a directory")?;
    let mut texts = Vec::new();
    for path in files::list(directory)? {
        let name = files::name(&path).to_uppercase();
        if path.is_file() && NAMES.iter().any(|begin| name.starts_with(begin)) {
            texts.push(String::from_utf8_lossy(&files::bytes(&path)?).replace('\r', ""));
        }
    }
    texts.sort();
    Ok(texts)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on must stop")]

    use super::*;

    #[test]
    fn what_is_linked_has_its_licence_and_what_tests_need_has_none() {
        let text = text().unwrap();
        assert!(text.contains("\nring 0.") && text.contains("Permission is hereby granted"), "{text}");
        assert!(!text.contains("\nproptest "));
        assert!(!text.contains("\nkube-ipvs"));
    }
}
