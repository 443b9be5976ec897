//! The licences of what is linked into the program. Most of them want their text to go where the program goes.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::Stdio,
};

use anyhow::{Context as _, Result, ensure};
use guest::{platform::Platform, workspace};
use serde_json::Value;

/// What the files begin with that have them, at the top of a crate.
const NAMES: [&str; 6] = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"];

/// Of what is no crate.
const BESIDE_CRATES: &str = "\
The standard library of Rust, under MIT OR Apache-2.0: https://github.com/rust-lang/rust/blob/main/COPYRIGHT
musl, under MIT: https://git.musl-libc.org/cgit/musl/tree/COPYRIGHT
";

/// Every text once, below the crates that it is for.
pub(crate) fn text() -> Result<String> {
    let metadata = metadata()?;
    let linked = linked(&metadata)?;
    let mut crates_of_text: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut without_text = BTreeSet::new();
    for package in list(&metadata, "/packages") {
        // Crates of the workspace have no source.
        if !linked.contains(string(package, "/id")) || string(package, "/source").is_empty() {
            continue;
        }
        let licence = string(package, "/license");
        let name = format!("{} {} ({licence})", string(package, "/name"), string(package, "/version"));
        let texts = texts(Path::new(string(package, "/manifest_path")))?;
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

fn metadata() -> Result<Value> {
    let mut cargo = workspace::cargo();
    cargo.args(["metadata", "--format-version", "1", "--locked"]);
    cargo.args(Platform::ALL.iter().flat_map(|platform| ["--filter-platform", platform.target()]));
    let output = cargo.stderr(Stdio::inherit()).output().context("starting cargo")?;
    ensure!(output.status.success(), "cargo metadata failed");
    serde_json::from_slice(&output.stdout).context("what cargo metadata prints")
}

/// The packages that the program is linked with, itself among them.
fn linked(metadata: &Value) -> Result<BTreeSet<&str>> {
    let nodes: BTreeMap<&str, &Value> =
        list(metadata, "/resolve/nodes").map(|node| (string(node, "/id"), node)).collect();
    let root = list(metadata, "/packages").find(|package| string(package, "/name") == "kube-ipvs");
    let mut open = vec![string(root.context("cargo metadata has no kube-ipvs")?, "/id")];
    let mut found = BTreeSet::new();
    while let Some(id) = open.pop() {
        if !found.insert(id) {
            continue;
        }
        let Some(node) = nodes.get(id) else { continue };
        // Neither for tests nor for build scripts alone.
        let is_linked =
            |dependency: &&Value| list(dependency, "/dep_kinds").any(|kind| string(kind, "/kind").is_empty());
        open.extend(list(node, "/deps").filter(is_linked).map(|dependency| string(dependency, "/pkg")));
    }
    Ok(found)
}

/// The texts at the top of a crate.
fn texts(manifest: &Path) -> Result<Vec<String>> {
    let directory = manifest.parent().context("a manifest without a directory")?;
    let mut texts = Vec::new();
    for entry in fs::read_dir(directory).with_context(|| directory.display().to_string())? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
        if path.is_file() && NAMES.iter().any(|begin| name.starts_with(begin)) {
            let bytes = fs::read(&path).with_context(|| path.display().to_string())?;
            texts.push(String::from_utf8_lossy(&bytes).replace('\r', ""));
        }
    }
    texts.sort();
    Ok(texts)
}

fn list<'a>(value: &'a Value, pointer: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    value.pointer(pointer).and_then(Value::as_array).into_iter().flatten()
}

/// The text there; none for null.
fn string<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
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
