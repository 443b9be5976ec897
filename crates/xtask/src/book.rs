//! `cargo xtask book`: the documents as a site with search, in `target/book/html`. mdBook makes it.
//!
//! The pages are the repository's own, at the same paths, so that their links hold. A link to any other file
//! leads to the repository.

use std::{
    path::Path,
    process::{Command, ExitCode},
};

use anyhow::{Context as _, Result, ensure};
use guest::{files, programs::run as run_program, workspace, workspace::CargoTool};

const MDBOOK: CargoTool = CargoTool { name: "mdbook", version: "0.5.4", arguments: &[] };

/// Makes the site.
pub(crate) fn run() -> Result<ExitCode> {
    let (root, book) = (workspace::root(), workspace::root().join("target/book"));
    files::make_anew(&book)?;
    let pages = book.join("pages");
    let contents = read_contents(&root)?;
    for page in contents.pages() {
        let text = files::read(&root.join(page))?;
        files::write(&pages.join(page), to_the_site(page, &text, &contents))?;
        for picture in pictures(page, &text) {
            files::copy(&root.join(&picture), &pages.join(&picture))?;
        }
    }
    files::write(&pages.join("SUMMARY.md"), contents.summary())?;
    for file in ["book.toml", "book.css"] {
        files::copy(&root.join("docs").join(file), &book.join(file))?;
    }
    run_program(Command::new(MDBOOK.installed()?).arg("build").arg(&book))?;
    println!("{} pages: {}", contents.pages().count(), book.join("html/index.html").display());
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
        let text = files::read(&root.join(path))?;
        let title = text.lines().find_map(|line| line.strip_prefix("# "));
        Ok(Page {
            path: path.to_owned(),
            title: title.with_context(|| format!("{path} has no heading"))?.to_owned(),
        })
    };
    let pages = |paths: &[&str]| paths.iter().map(|path| page(path)).collect::<Result<Vec<_>>>();
    let mut parts = vec![Part { heading: String::new(), pages: pages(&FIRST)? }];
    let table = files::read(&root.join("docs/README.md"))?;
    for section in table.split("\n## ").skip(1) {
        let heading = section.lines().next().unwrap_or_default().to_owned();
        let items = section.split("\n- ").skip(1);
        let names = items.filter_map(|item| item.split(": ").next());
        let paths = names.flat_map(links).map(|link| format!("docs/{link}")).filter(|path| is_page(path));
        let pages = paths.map(|path| page(&path)).collect::<Result<Vec<_>>>()?;
        if !pages.is_empty() {
            parts.push(Part { heading, pages });
        }
    }
    ensure!(parts.len() > 2, "docs/README.md has no lists of pages");
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
            // mdBook wants a chapter before the first part outside of a list.
            let item = if heading.is_empty() { "" } else { "- " };
            if !heading.is_empty() {
                lines.push(format!("\n# {heading}\n"));
            }
            lines.extend(pages.iter().map(|Page { path, title }| format!("{item}[{title}]({path})")));
        }
        lines.join("\n") + "\n"
    }
}

/// Where links lead to files that have no page on the site.
const REPOSITORY: &str = env!("CARGO_PKG_REPOSITORY");

/// Where the links in a text lead. Their form is `[text](path#heading)`; tests/unit/documentation.rs keeps every one.
fn links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link)
}

/// The text of a page; its links to files other than pages and pictures lead to the repository.
fn to_the_site(page: &str, text: &str, contents: &Contents) -> String {
    let mut parts = text.split("](");
    let mut changed = parts.next().unwrap_or_default().to_owned();
    let mut is_code = changed.matches("```").count() % 2 == 1;
    for part in parts {
        changed.push_str("](");
        let (link, rest) = part.split_once(')').unwrap_or((part, ""));
        if is_code || link.contains("://") || link.starts_with('#') || leads_to_the_site(page, link, contents)
        {
            changed.push_str(part);
        } else {
            let target = resolved(page, link);
            changed.push_str(&[REPOSITORY, "/blob/main/", &target, ")", rest].concat());
        }
        is_code ^= part.matches("```").count() % 2 == 1;
    }
    changed
}

fn leads_to_the_site(page: &str, link: &str, contents: &Contents) -> bool {
    let target = resolved(page, link);
    let path = target.split('#').next().unwrap_or_default();
    is_picture(path) || contents.pages().any(|other| other == path)
}

/// The pictures of a page, from the repository's root.
fn pictures(page: &str, text: &str) -> Vec<String> {
    links(text).filter(|link| is_picture(link)).map(|link| resolved(page, link)).collect()
}

fn is_picture(link: &str) -> bool {
    let extension = Path::new(link).extension();
    !link.contains("://") && extension.is_some_and(|extension| extension == "png" || extension == "svg")
}

/// The path of a link from the repository's root, with what follows a `#`.
fn resolved(page: &str, link: &str) -> String {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in link.split('/') {
        match part {
            "." => {}
            ".." => drop(parts.pop()),
            _ => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on must stop")]

    use super::*;

    #[test]
    fn links_to_pages_stay_and_others_lead_to_the_repository() {
        let contents = read_contents(&workspace::root()).unwrap();
        let text = "[a](faq.md#x) [b](../Cargo.toml) [c](#here) [d](https://example.com) ![e](pictures/a.png)\n\
                    ```text\n[f](../Cargo.toml)\n```\n[g](../LICENSE)";
        let expected = text
            .replace("[b](../Cargo.toml)", &format!("[b]({REPOSITORY}/blob/main/Cargo.toml)"))
            .replace("../LICENSE", &format!("{REPOSITORY}/blob/main/LICENSE"));
        assert_eq!(to_the_site("docs/install.md", text, &contents), expected);
        assert_eq!(pictures("docs/install.md", text), ["docs/pictures/a.png"]);
    }
}
