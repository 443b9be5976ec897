//! Reads kube-proxy's command line: the flags that a configuration file can say.

use std::{
    ffi::OsString,
    fmt::{self, Display},
    iter,
};

use clap::Arg;

use super::{Error, present::CommandLine};
use crate::{
    cli::{self, Flags},
    config::names,
};

/// What was given after `--`.
pub(super) const TYPED: &str = "the command line";

/// A command line.
pub(super) struct Read {
    /// The flags that a file can say, and how the log is.
    pub(super) flags: Flags,
    /// The configuration file that it names.
    pub(super) config: Option<String>,
}

/// A flag as it was given.
struct Given {
    name: String,
    value: Option<String>,
}

impl Given {
    /// Whether the value is a variable of the container, which has another value on each node.
    fn is_of_one_node(&self) -> bool {
        self.value.as_ref().is_some_and(|value| value.contains("$("))
    }

    /// Whether our DaemonSet has the same.
    fn is_the_daemon_set_s(&self) -> bool {
        self.name == "hostname-override" && self.is_of_one_node()
    }
}

impl Display for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            Some(value) => write!(f, "--{}={value}", self.name),
            None => write!(f, "--{}", self.name),
        }
    }
}

/// Reads the command line, which ends with what the operator has typed. The notes name what no file can say.
pub(super) fn read(
    of_input: Option<&CommandLine>,
    typed: &[OsString],
    notes: &mut Vec<String>,
) -> Result<Read, Error> {
    let name = of_input.map_or(TYPED, |line| &line.name);
    let wrong = |problem| Error::CommandLine { name: name.to_owned(), problem };
    let command = cli::command();
    let words = of_input.map(|line| line.words.clone()).unwrap_or_default().into_iter();
    let words = words.chain(typed.iter().map(|word| word.to_string_lossy().into_owned()));

    let (mut config, mut kept) = (None, Vec::new());
    for flag in split(words, &command).map_err(wrong)? {
        let Some(long) = definition(&command, &flag.name).and_then(Arg::get_long) else {
            notes.push(format!("--{}: no effect here: kube-proxy 1.37 has no such flag", flag.name));
            continue;
        };
        match no_field(long) {
            None if flag.is_of_one_node() => {
                notes
                    .push(format!("{flag}: left out: the file is for all nodes, and each has another value"));
            }
            None => kept.push(flag.to_string()),
            Some(_) if long == "config" => config = flag.value.filter(|path| !path.is_empty()),
            Some(_) if flag.is_the_daemon_set_s() => {}
            Some(why) => notes.push(format!("--{long}: {why}")),
        }
    }
    let arguments = iter::once("kube-ipvs").chain(kept.iter().map(String::as_str)).map(OsString::from);
    let parsed = cli::parse(arguments).map_err(|error| wrong(first_line(&error)))?;
    let flags = parsed.flags().ok_or_else(|| wrong("there are no flags in it".to_owned()))?.clone();
    Ok(Read { flags, config })
}

/// Splits the words into flags with their values.
fn split(words: impl Iterator<Item = String>, command: &clap::Command) -> Result<Vec<Given>, String> {
    let mut words = words.peekable();
    let mut given = Vec::new();
    while let Some(word) = words.next() {
        let (name, value) = name_and_value(&word).ok_or_else(|| format!("{word:?} is no flag"))?;
        let next_is_value = |next: &String| match definition(command, &name) {
            Some(flag) => !flag.is_require_equals_set(),
            None => !next.starts_with('-'),
        };
        let value = value.or_else(|| words.next_if(next_is_value));
        given.push(Given { name, value });
    }
    Ok(given)
}

/// `--name`, `--name=value`, `-n`, `-n=value` or `-nvalue`.
fn name_and_value(word: &str) -> Option<(String, Option<String>)> {
    if let Some(long) = word.strip_prefix("--") {
        let (name, value) = long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value)));
        return Some((name.replace('_', "-"), value.map(str::to_owned)));
    }
    let mut letters = word.strip_prefix('-')?.chars();
    let name = letters.next()?.to_string();
    let value = letters.as_str();
    Some((name, (!value.is_empty()).then(|| value.trim_start_matches('=').to_owned())))
}

/// The flag of this name.
fn definition<'a>(command: &'a clap::Command, name: &str) -> Option<&'a Arg> {
    let is_it = |flag: &&Arg| {
        let short = flag.get_short().is_some_and(|short| name.chars().eq([short]));
        let aliases = flag.get_all_aliases().unwrap_or_default();
        short || flag.get_long() == Some(name) || aliases.contains(&name)
    };
    command.get_arguments().find(is_it)
}

/// Why a flag cannot be in the file; `None` if it can.
fn no_field(flag: &str) -> Option<&'static str> {
    match flag {
        // Parts of an address.
        "healthz-port" | "metrics-port" => None,
        "hostname-override" => {
            Some("left out: our DaemonSet gives each node its own name; a service needs --hostname-override")
        }
        "master" => Some("set it as server in manifests/base/kubeconfig.conf"),
        "boot-id-file" | "machine-id-file" => Some("no effect here: no such id is needed"),
        "cleanup" | "init-only" | "write-config-to" => Some("left out: it is no configuration"),
        _ if names::sets_a_field(&format!("--{flag}")) => None,
        _ => Some("no file can say it: keep it as a flag"),
    }
}

/// What is wrong, without the usage that follows.
fn first_line(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let line = text.lines().next().unwrap_or_default();
    line.strip_prefix("error: ").unwrap_or(line).to_owned()
}
