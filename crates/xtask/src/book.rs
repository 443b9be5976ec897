//! `cargo xtask book`: the documents as a site with search, in `target/book/html`. mdBook makes it.
//!
//! The pages are the repository's own, at the same paths, so that their links hold. A link to a file that is no page leads
//! to the repository.

mod contents;
mod links;

use std::{
    fs,
    process::{Command, ExitCode},
};

use anyhow::{Context as _, Result};
use guest::{programs::run as run_program, workspace, workspace::CargoTool};

use crate::files;

const MDBOOK: CargoTool = CargoTool { name: "mdbook", version: "0.5.4", arguments: &[] };

/// Makes the site, and follows each of its links.
pub(crate) fn run() -> Result<ExitCode> {
    let (root, book) = (workspace::root(), workspace::root().join("target/book"));
    files::make_anew(&book)?;
    let pages = book.join("pages");
    let contents = contents::read(&root)?;
    for page in contents.pages() {
        let text = fs::read_to_string(root.join(page)).with_context(|| page.to_owned())?;
        files::write(&pages.join(page), links::to_the_site(page, &text, &contents)?.as_bytes())?;
        for picture in links::pictures(page, &text) {
            let bytes = fs::read(root.join(&picture)).with_context(|| picture.clone())?;
            files::write(&pages.join(&picture), &bytes)?;
        }
    }
    files::write(&pages.join("SUMMARY.md"), contents.summary().as_bytes())?;
    for file in ["book.toml", "book.css"] {
        fs::copy(root.join("docs").join(file), book.join(file))
            .with_context(|| format!("copying docs/{file}"))?;
    }
    run_program(Command::new(MDBOOK.installed()?).arg("build").arg(&book))?;
    let links = links::check(&book.join("html"))?;
    println!("{} pages, {links} links: {}", contents.pages().count(), book.join("html/index.html").display());
    Ok(ExitCode::SUCCESS)
}
