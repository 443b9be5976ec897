//! Which sources these are, as git has them.

use std::process::Command;

use crate::workspace;

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
