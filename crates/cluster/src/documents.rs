//! The commands in docs/, run as they are written.

use std::{path::Path, process::Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use guest::{files, go::CLIENTS, workspace};

use crate::{network, state};

/// The commands in one section of a page, in order, with these words replaced. Fails if none of them has such a word.
pub(crate) fn commands(page: &str, heading: &str, words: &[(&str, &str)]) -> Result<Vec<String>> {
    let mut found = in_section(&files::read(&workspace::root().join("docs").join(page))?, heading);
    ensure!(!found.is_empty(), "{page} has no commands under {heading:?}");
    for (word, with) in words {
        let is_there = found.iter().any(|command| command.contains(word));
        ensure!(is_there, "{page} has no {word:?} in its commands under {heading:?}");
        for command in &mut found {
            *command = command.replace(word, with);
        }
    }
    Ok(found)
}

/// A console block has a command after each `$ `, and what it prints; in a block of sh each line is a command.
fn in_section(text: &str, heading: &str) -> Vec<String> {
    let mut found = Vec::new();
    let (mut is_here, mut block) = (false, None);
    for line in text.lines() {
        let line = line.trim_start();
        match (block, line.strip_prefix("```")) {
            (None, Some(language)) => block = Some(language),
            (Some(_), Some(_)) => block = None,
            (None, None) if line.starts_with("## ") => is_here = line == format!("## {heading}"),
            (Some("sh"), None) if is_here => found.push(line.to_owned()),
            (Some("console"), None) if is_here => found.extend(line.strip_prefix("$ ").map(str::to_owned)),
            _ => {}
        }
    }
    found
}

/// Runs one as an administrator does, at the root of the repository; what it prints.
pub(crate) fn run(command: &str) -> Result<String> {
    run_in(&workspace::root(), command)
}

/// Runs one after the other.
pub(crate) fn run_all<'a>(commands: impl IntoIterator<Item = &'a String>) -> Result<()> {
    commands.into_iter().try_for_each(|command| run(command).map(drop))
}

/// Runs one in a directory.
pub(crate) fn run_in(directory: &Path, command: &str) -> Result<String> {
    println!("$ {command}");
    let path = std::env::var("PATH").unwrap_or_default();
    let mut shell = network::on_router_within_limit("bash");
    shell
        .args(["-o", "pipefail", "-c", command])
        .current_dir(directory)
        .env("PATH", format!("{}:{path}", CLIENTS.built()?.display()))
        .env("KUBECONFIG", state::kubeconfig())
        .stdin(Stdio::null());
    let output = shell.output().context("starting bash")?;
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        bail!("{command}: {printed}{}", String::from_utf8_lossy(&output.stderr).trim_end());
    }
    Ok(printed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_those_of_the_section_with_and_without_a_prompt() {
        let text = "## One\n```sh\na\n```\n## Two\nwords\n   ```console\n   $ b\n   printed\n   ```\n```sh\nc | d\n```\n## Three\n";
        assert_eq!(in_section(text, "Two"), ["b", "c | d"]);
        assert!(in_section(text, "Three").is_empty());
    }
}
