//! Which sources these are, as git has them, and the program of the version before.

use std::{path::PathBuf, process::Command};

use anyhow::{Context as _, ensure};

use crate::{cache, files, programs::run, workspace};

/// A commit, and whether what is built is made of it alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The commit, in 40 hexadecimal digits.
    pub commit: String,
    /// When it was made, in seconds since 1970. What is built says this instead of its own time, and so is the same
    /// whenever it is built.
    pub seconds: u64,
    /// The same as RFC 3339 has it, in UTC.
    pub time: String,
    /// Whether every file is as the commit has it, and there is no other that git does not ignore.
    pub is_clean: bool,
}

impl Source {
    /// Those of this workspace; `None` where git does not know: in an archive, say.
    pub fn here() -> Option<Self> {
        let commit = git(&[
            "log",
            "-1",
            "--no-show-signature",
            "--format=%H %ct %cd",
            "--date=format-local:%Y-%m-%dT%H:%M:%SZ",
        ])?;
        let changes = git(&["status", "--porcelain", "--untracked-files=all"])?;
        Self::parse(&commit, &changes)
    }

    fn parse(commit: &str, changes: &str) -> Option<Self> {
        let mut words = commit.split_whitespace().map(str::to_owned);
        Some(Self {
            commit: words.next()?,
            seconds: words.next()?.parse().ok()?,
            time: words.next()?,
            is_clean: changes.trim().is_empty(),
        })
    }

    /// What `kube-ipvs version` shows of it.
    pub fn revision(&self) -> String {
        let short = self.commit.get(..12).unwrap_or(&self.commit);
        let state = if self.is_clean { "" } else { "-dirty" };
        format!("{short}{state}")
    }
}

fn git(arguments: &[&str]) -> Option<String> {
    let mut command = Command::new("git");
    let output = command.arg("-C").arg(workspace::root()).args(arguments).env("TZ", "UTC").output().ok()?;
    output.status.success().then(|| String::from_utf8(output.stdout).ok())?
}

/// What stands for it until there is a tag: a commit of the days before the API server was asked for protobuf.
const UNTIL_THERE_IS_A_TAG: &str = "24c03c91f26459a45568e5c66c24934e793099ca";

/// Where the program of the version before is, which the present one has to go together with; built once.
pub fn earlier_program() -> anyhow::Result<PathBuf> {
    let version = earlier_version()?;
    cache::made_once("earlier", &version, |place| {
        eprintln!("xtask: building kube-ipvs of {version} (once; it takes minutes)");
        let sources = place.join("sources");
        let mut clone = Command::new("git");
        run(clone.args(["clone", "--quiet", "--no-checkout"]).arg(workspace::root()).arg(&sources))?;
        run(Command::new("git").arg("-C").arg(&sources).args(["checkout", "--quiet", "--detach", &version]))
            .with_context(|| format!("is the history of this clone whole? It lacks {version}"))?;
        let mut build = workspace::cargo();
        run(build.current_dir(&sources).args(["build", "--quiet", "--locked", "--bin", "kube-ipvs"]))?;
        Ok(sources.join("target/debug/kube-ipvs"))
    })
}

/// What git knows the version before by, or what stands for it.
pub fn earlier_version() -> anyhow::Result<String> {
    Ok(released_version()?.unwrap_or_else(|| UNTIL_THERE_IS_A_TAG.to_owned()))
}

/// The newest tag before this commit; `None` before the first version. A clone that lacks the tag is an error.
pub fn released_version() -> anyhow::Result<Option<String>> {
    // No version before another one, such as a release candidate.
    let newest = git(&["describe", "--tags", "--abbrev=0", "--match=v*", "--exclude=*-*", "HEAD^"]);
    if let Some(tag) = newest.map(|tag| tag.trim().to_owned()).filter(|tag| !tag.is_empty()) {
        return Ok(Some(tag));
    }
    let changelog = files::read(&workspace::root().join("CHANGELOG.md"))?;
    // The first may be what is being released.
    let released = changelog.lines().filter(|line| line.starts_with("## [")).nth(1);
    ensure!(released.is_none(), "this clone has no tag of a version before: git fetch --tags --unshallow");
    Ok(None)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on must stop")]

    use super::*;

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567 1774883289 2026-03-30T15:08:09Z\n";

    #[test]
    fn a_revision_says_whether_there_are_changes() {
        let clean = Source::parse(COMMIT, "").unwrap();
        assert_eq!((clean.seconds, clean.time.as_str()), (1_774_883_289, "2026-03-30T15:08:09Z"));
        assert_eq!(clean.revision(), "0123456789ab");
        assert_eq!(Source::parse(COMMIT, "?? new\n").unwrap().revision(), "0123456789ab-dirty");
        assert_eq!(Source::parse("", ""), None);
    }
}
