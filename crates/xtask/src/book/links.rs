//! The links of a page, and those of the finished site. The form in a page is `[text](path#heading)`; a test keeps every one
//! (tests/unit/documentation.rs).

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use guest::workspace;

use super::Contents;

const REPOSITORY: &str = env!("CARGO_PKG_REPOSITORY");

/// Where the links in a text lead.
pub(super) fn all(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link)
}

/// The text of a page, with links to what is no page or picture leading to the repository.
pub(super) fn to_the_site(page: &str, text: &str, contents: &Contents) -> Result<String> {
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
            let path = target.split('#').next().unwrap_or_default();
            ensure!(workspace::root().join(path).exists(), "{page}: {link} leads nowhere");
            changed.push_str(&[REPOSITORY, "/blob/main/", &target, ")", rest].concat());
        }
        is_code ^= part.matches("```").count() % 2 == 1;
    }
    Ok(changed)
}

fn leads_to_the_site(page: &str, link: &str, contents: &Contents) -> bool {
    let target = resolved(page, link);
    let path = target.split('#').next().unwrap_or_default();
    is_picture(path) || contents.pages().any(|other| other == path)
}

/// The pictures of a page, from the repository's root.
pub(super) fn pictures(page: &str, text: &str) -> Vec<String> {
    all(text).filter(|link| is_picture(link)).map(|link| resolved(page, link)).collect()
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

/// A file of the site, and the anchors in it.
type Anchors = BTreeMap<PathBuf, BTreeSet<String>>;

/// Follows every link of every page, and returns how many there are.
pub(super) fn check(site: &Path) -> Result<usize> {
    let mut texts = BTreeMap::new();
    // Then the place of a link is a key as it is.
    let site = site.canonicalize().with_context(|| site.display().to_string())?;
    read(&site, &mut texts)?;
    let ids = |text: &String| attributes(text, "id").map(str::to_owned).collect();
    let anchors: Anchors = texts.iter().map(|(path, text)| (path.clone(), ids(text))).collect();
    let (mut count, mut broken) = (0, Vec::new());
    for (page, text) in &texts {
        for link in attributes(text, "href").chain(attributes(text, "src")) {
            count += 1;
            if !leads_somewhere(page, link, &anchors) {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    ensure!(broken.is_empty(), "these links lead nowhere:\n{}", broken.join("\n"));
    Ok(count)
}

/// The pages below a directory.
fn read(directory: &Path, texts: &mut BTreeMap<PathBuf, String>) -> Result<()> {
    for entry in fs::read_dir(directory).with_context(|| directory.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() {
            read(&path, texts)?;
        } else if path.extension().is_some_and(|extension| extension == "html") {
            let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            texts.insert(path, text);
        }
    }
    Ok(())
}

/// The values of an attribute. mdBook writes them in double quotes.
fn attributes<'a>(text: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let begin = format!(" {name}=\"");
    let parts: Vec<&str> = text.split(begin.as_str()).skip(1).collect();
    parts.into_iter().filter_map(|rest| rest.split_once('"')).map(|(value, _)| value)
}

fn leads_somewhere(page: &Path, link: &str, anchors: &Anchors) -> bool {
    if link.contains("://") || link.starts_with("data:") || link.starts_with("javascript:") {
        return true;
    }
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let file = if path.is_empty() { page.to_owned() } else { page.with_file_name("").join(path) };
    let Ok(file) = file.canonicalize() else { return false };
    anchor.is_empty() || anchors.get(&file).is_some_and(|anchors| anchors.contains(anchor))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on must stop")]

    use super::*;
    use crate::book::read_contents;

    #[test]
    fn links_to_pages_stay_and_others_lead_to_the_repository() {
        let contents = read_contents(&workspace::root()).unwrap();
        let text = "[a](faq.md#x) [b](../Cargo.toml) [c](#here) [d](https://example.com) ![e](pictures/a.png)\n\
                    ```text\n[f](../Cargo.toml)\n```\n[g](../LICENSE)";
        let expected = text
            .replace("[b](../Cargo.toml)", &format!("[b]({REPOSITORY}/blob/main/Cargo.toml)"))
            .replace("../LICENSE", &format!("{REPOSITORY}/blob/main/LICENSE"));
        assert_eq!(to_the_site("docs/install.md", text, &contents).unwrap(), expected);
        assert_eq!(pictures("docs/install.md", text), ["docs/pictures/a.png"]);
        assert!(to_the_site("docs/install.md", "[a](../nowhere.rs)", &contents).is_err());
    }

    #[test]
    fn link_to_a_page_or_an_anchor_that_is_not_there_is_found() {
        let site = tempfile::tempdir().unwrap();
        fs::create_dir(site.path().join("docs")).unwrap();
        fs::write(site.path().join("docs/faq.html"), r#"<h2 id="why">Why</h2>"#).unwrap();
        let page = |links: &str| {
            fs::write(site.path().join("index.html"), links).unwrap();
            check(site.path()).map_err(|error| error.to_string())
        };
        let good = r##"<a href="docs/faq.html#why"></a> <a href="https://example.com"></a> <a href="#x" id="x"></a>"##;
        assert_eq!(page(good), Ok(3));
        assert!(page(r#"<a href="docs/faq.html#how"></a>"#).unwrap_err().contains("docs/faq.html#how"));
        assert!(page(r#"<img src="nothing.png">"#).unwrap_err().contains("nothing.png"));
    }
}
