//! The commands that the documents show. Tests of xtask and lab try whether they parse.

use std::{fs, path::PathBuf};

use anyhow::{Context as _, Result};

use crate::workspace;

/// A command in a document.
#[derive(Debug)]
pub struct Shown {
    /// The document.
    pub page: PathBuf,
    /// The words after `cargo xtask`, without quotes and comments.
    pub words: Vec<String>,
}

/// Every `cargo xtask` command in README.md, CONTRIBUTING.md, tests/README.md and docs.
pub fn commands() -> Result<Vec<Shown>> {
    let root = workspace::root();
    let mut pages = ["README.md", "CONTRIBUTING.md", "tests/README.md"].map(|page| root.join(page)).to_vec();
    for page in fs::read_dir(root.join("docs"))? {
        pages.push(page?.path());
    }
    pages.retain(|page| page.extension().is_some_and(|extension| extension == "md"));
    let mut shown = Vec::new();
    for page in pages {
        let text = fs::read_to_string(&page).with_context(|| page.display().to_string())?;
        shown.extend(words(&text).map(|words| Shown { page: page.clone(), words }));
    }
    Ok(shown)
}

/// A word with a colon names a fault of `chaos`, as in docs/faults.md.
fn words(text: &str) -> impl Iterator<Item = Vec<String>> {
    let commands = text.split("cargo xtask ").skip(1);
    let commands = commands.map(|rest| rest.split(['`', '#', '\n', '"']).next().unwrap_or_default());
    let commands = commands.filter(|command| !command.contains(": "));
    commands
        .map(|command| command.split_whitespace().map(|word| word.trim_matches('\'').to_owned()).collect())
}
