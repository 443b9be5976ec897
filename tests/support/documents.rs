//! The documents, as their readers use them: what they link to, and the commands that they show.
//!
//! The commands are tried where they stand, because a copy in Rust would go its own way.
//!
//! A command stands in a block of the language `console` or `sh`. In `console` it follows a prompt, which says where it is
//! typed: `$ ` on the node, `client$ ` and `pod-1$ ` on these hosts of the examples. What follows a command is what it
//! prints ([`expectation`] says how the two are compared). Every line of `sh` is a command.
//!
//! Comments before a block, which readers do not see, set the scene:
//!
//! - `<!-- first: COMMANDS -->` is done on the node, in the directory that the daemon reads its manifests from.
//! - `<!-- daemon: FLAGS -->` puts the manifests there again as they are in docs/examples, and starts the daemon anew, with
//!   these flags beside the usual ones; `<!-- daemon: none -->` ends it.
mod commands;
pub(crate) mod expectation;
mod markdown;
mod place;

use std::{
    fs,
    path::{Path, PathBuf},
};

pub(crate) use commands::{Command, Scene};
pub(crate) use markdown::{Block, links, slugs, spans};
pub(crate) use place::{ELSEWHERE, Place};

/// A file of Markdown.
pub(crate) struct Document {
    /// Its path below the root of the repository.
    pub(crate) name: String,
    pub(crate) text: String,
}

/// The repository.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// What is written for operators: README.md and docs. Their commands are tried.
pub(crate) fn for_operators() -> Vec<Document> {
    let mut found = vec![read("README.md")];
    found.extend(
        ["docs", "docs/install", "docs/evidence"].iter().flat_map(|directory| in_directory(directory)),
    );
    found
}

/// Every document of the project.
pub(crate) fn all() -> Vec<Document> {
    let mut found = for_operators();
    let others = ["", "crates/ipvs", "tests", "tests/peer"];
    found.extend(others.iter().flat_map(|directory| in_directory(directory)));
    found.sort_by(|one, other| one.name.cmp(&other.name));
    found.dedup_by(|one, other| one.name == other.name);
    found
}

pub(crate) fn read(name: &str) -> Document {
    let text = fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    Document { name: name.to_owned(), text }
}

/// The documents that are directly in a directory.
fn in_directory(directory: &str) -> Vec<Document> {
    let files = fs::read_dir(root().join(directory)).unwrap();
    let paths = files.map(|file| Path::new(directory).join(file.unwrap().file_name()));
    let mut paths: Vec<PathBuf> =
        paths.filter(|path| path.extension().is_some_and(|it| it == "md")).collect();
    paths.sort();
    paths.iter().map(|path| read(path.to_str().unwrap())).collect()
}
