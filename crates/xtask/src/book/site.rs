//! The links of the finished site: mdBook makes anchors of headings by rules of its own, and says nothing of a link that
//! leads nowhere.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};

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
