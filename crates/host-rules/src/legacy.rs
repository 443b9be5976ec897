//! The old iptables (`iptables-legacy`), whose tables are not part of nf_tables.
//!
//! The kernel only gives and takes a whole table, by `getsockopt` and `setsockopt` with a special structure,
//! so this is left to the host's own programs. It is the only place where the daemon runs a program.

use std::{fs, io, process::Command, time::Duration};

use ipvs::Family;
use program::Bounds;

/// The most that a program may take: `iptables-save` of kube-proxy's 30 rules for each of 10,000 Services
/// prints 30 MB.
const BOUNDS: Bounds = Bounds { time: Duration::from_secs(60), output: 256 << 20 };

/// Why the tables of the old iptables could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The list of the tables could not be read.
    #[error("cannot read {path}")]
    Tables {
        /// The file.
        path: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// A program of the host's could not be run.
    #[error("cannot run {program}")]
    Run {
        /// Its name.
        program: String,
        /// The system's answer, or what the program did.
        source: program::Error,
    },
    /// A program of the host's failed.
    #[error("{program} failed with {status}: {said}")]
    Program {
        /// Its name.
        program: String,
        /// How it ended.
        status: String,
        /// Its output to standard error.
        said: String,
    },
}

/// The names of the tables of a family that are in use, one per line; empty if the kernel has none. Loads
/// nothing.
pub fn tables_in_use(family: Family) -> Result<String, Error> {
    // Of the calling thread's network namespace. `/proc/net` would be that of the process.
    let path = match family {
        Family::V4 => "/proc/thread-self/net/ip_tables_names",
        Family::V6 => "/proc/thread-self/net/ip6_tables_names",
    };
    match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        read => read.map_err(|source| Error::Tables { path, source }),
    }
}

/// The programs for one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Programs {
    save: String,
    restore: String,
}

impl Programs {
    /// Searches PATH for the programs. `None` if those for the old tables are missing.
    pub(crate) fn find(family: Family) -> Option<Self> {
        let stem = stem(family);
        // The second name may be either kind; before 1.8 it did not say which, and the old kind was the only
        // one.
        [format!("{stem}-legacy"), stem.to_owned()]
            .into_iter()
            .map(|name| Self { save: format!("{name}-save"), restore: format!("{name}-restore") })
            .find(|programs| says_legacy(&programs.save) && says_legacy(&programs.restore))
    }

    /// What `iptables-save -t TABLE` prints.
    pub(crate) fn save(&self, table: &str) -> Result<String, Error> {
        run(&self.save, &["-t", table], "")
    }

    /// Carries out this input of `iptables-restore --noflush` completely, or not at all: it replaces a table as a
    /// whole.
    pub(crate) fn restore(&self, input: &str) -> Result<(), Error> {
        // Waits for the lock of other iptables programs, but not for ever.
        run(&self.restore, &["-w", "5", "--noflush"], input).map(drop)
    }
}

/// How the names of a family's programs begin.
pub(crate) fn stem(family: Family) -> &'static str {
    match family {
        Family::V4 => "iptables",
        Family::V6 => "ip6tables",
    }
}

/// Whether the program exists and says that it is of the old kind: `iptables-save v1.8.9 (legacy)`.
fn says_legacy(program: &str) -> bool {
    run(program, &["--version"], "").is_ok_and(|version| version.contains("(legacy)"))
}

/// Runs a program with this input, and returns what it prints.
pub(crate) fn run(program: &str, arguments: &[&str], input: &str) -> Result<String, Error> {
    let output = program::run(Command::new(program).args(arguments), input.as_bytes(), BOUNDS)
        .map_err(|source| Error::Run { program: program.to_owned(), source })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
    Err(Error::Program { program: program.to_owned(), status: output.status.to_string(), said })
}

/// The words of a rule. One in double quotes, such as a comment, is one word; within it a backslash takes the
/// next character as it is (`xtables_save_string` in iptables' libxtables).
pub(crate) fn words(rule: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let (mut start, mut quoted, mut escaped) = (0, false, false);
    for (position, character) in rule.char_indices() {
        match character {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            ' ' if !quoted => {
                words.extend(rule.get(start..position));
                start = position + 1;
            }
            _ => {}
        }
    }
    words.extend(rule.get(start..));
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_not_there_is_named() {
        assert!(!says_legacy("no-such-iptables-save"));
        let error = run("no-such-iptables-save", &[], "").unwrap_err();
        assert_eq!(error.to_string(), "cannot run no-such-iptables-save");
    }

    #[test]
    fn what_is_in_quotes_is_one_word() {
        let rule = r#"FORWARD -m comment --comment "no \" -j DROP" -j ACCEPT"#;
        let comment = r#""no \" -j DROP""#;
        assert_eq!(words(rule), ["FORWARD", "-m", "comment", "--comment", comment, "-j", "ACCEPT"]);
    }
}
