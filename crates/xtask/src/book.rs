//! `cargo xtask book`: the documents as a site with search, in `target/book/html`. mdBook makes it.
//!
//! The pages are the repository's own, at the same paths, so that their links hold. A link to a file that is no page leads
//! to the repository.

mod links;

use std::{
    fs,
    path::Path,
    process::{Command, ExitCode},
};

use anyhow::{Context as _, Result, ensure};
use guest::{programs::run as run_program, workspace, workspace::CargoTool};

use crate::files;

const MDBOOK: CargoTool = CargoTool { name: "mdbook", version: "0.5.4", arguments: &[] };

/// Makes the site, and follows each of its links.
pub(crate) fn run() -> Result<ExitCode> {
    let (root, book) = (workspace::root(), workspace::root().join("target/book"));
    files::make_anew(&book)?;
    let pages = book.join("pages");
    let contents = read_contents(&root)?;
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

/// The pages, in the order in which one reads them.
struct Contents {
    parts: Vec<Part>,
}

/// Pages below one heading.
struct Part {
    heading: String,
    pages: Vec<Page>,
}

struct Page {
    /// From the repository's root.
    path: String,
    /// Its first heading.
    title: String,
}

/// What comes before every part.
const FIRST: [&str; 2] = ["README.md", "docs/README.md"];

/// What is not about using it.
const FOR_DEVELOPERS: [&str; 9] = [
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "tests/README.md",
    "tests/peer/README.md",
    "crates/ipvs/README.md",
    "SECURITY.md",
    "CHANGELOG.md",
    "MAINTAINERS.md",
    "CODE_OF_CONDUCT.md",
];

/// Reads the table of contents from docs/README.md.
fn read_contents(root: &Path) -> Result<Contents> {
    let page = |path: &str| -> Result<Page> {
        let text = fs::read_to_string(root.join(path)).with_context(|| path.to_owned())?;
        let title = text.lines().find_map(|line| line.strip_prefix("# "));
        Ok(Page {
            path: path.to_owned(),
            title: title.with_context(|| format!("{path} has no heading"))?.to_owned(),
        })
    };
    let pages = |paths: &[&str]| paths.iter().map(|path| page(path)).collect::<Result<Vec<_>>>();
    let mut parts = vec![Part { heading: String::new(), pages: pages(&FIRST)? }];
    let table = fs::read_to_string(root.join("docs/README.md")).context("docs/README.md")?;
    for section in table.split("\n## ").skip(1) {
        let heading = section.lines().next().unwrap_or_default().to_owned();
        let rows = section.lines().filter(|line| line.starts_with("| ["));
        let first_cells = rows.filter_map(|row| row.split('|').nth(1));
        let paths =
            first_cells.flat_map(links::all).map(|link| format!("docs/{link}")).filter(|path| is_page(path));
        let pages = paths.map(|path| page(&path)).collect::<Result<Vec<_>>>()?;
        if !pages.is_empty() {
            parts.push(Part { heading, pages });
        }
    }
    ensure!(parts.len() > 2, "docs/README.md has no tables of pages");
    parts.push(Part { heading: "To change the code".to_owned(), pages: pages(&FOR_DEVELOPERS)? });
    Ok(Contents { parts })
}

fn is_page(path: &str) -> bool {
    Path::new(path).extension().is_some_and(|extension| extension == "md")
}

impl Contents {
    /// The paths of all pages.
    fn pages(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().flat_map(|part| &part.pages).map(|page| page.path.as_str())
    }

    /// As mdBook reads it.
    fn summary(&self) -> String {
        let mut lines = vec!["# Summary\n".to_owned()];
        for Part { heading, pages } in &self.parts {
            // A chapter before the first part is no item of a list.
            let item = if heading.is_empty() { "" } else { "- " };
            if !heading.is_empty() {
                lines.push(format!("\n# {heading}\n"));
            }
            lines.extend(pages.iter().map(|Page { path, title }| format!("{item}[{title}]({path})")));
        }
        lines.join("\n") + "\n"
    }
}
