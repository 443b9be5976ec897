//! The links of a page. Their form is `[text](path#heading)`; a test keeps every one of them true in the repository
//! (tests/unit/documentation.rs).

use std::path::Path;

use anyhow::{Result, ensure};
use guest::workspace;

use super::contents::Contents;

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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on must stop")]

    use super::{super::contents, *};

    #[test]
    fn links_to_pages_stay_and_others_lead_to_the_repository() {
        let contents = contents::read(&workspace::root()).unwrap();
        let text = "[a](faq.md#x) [b](../Cargo.toml) [c](#here) [d](https://example.com) ![e](pictures/a.png)\n\
                    ```text\n[f](../Cargo.toml)\n```\n[g](../LICENSE)";
        let expected = text
            .replace("[b](../Cargo.toml)", &format!("[b]({REPOSITORY}/blob/main/Cargo.toml)"))
            .replace("../LICENSE", &format!("{REPOSITORY}/blob/main/LICENSE"));
        assert_eq!(to_the_site("docs/install.md", text, &contents).unwrap(), expected);
        assert_eq!(pictures("docs/install.md", text), ["docs/pictures/a.png"]);
        assert!(to_the_site("docs/install.md", "[a](../nowhere.rs)", &contents).is_err());
    }
}
