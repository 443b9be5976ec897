//! The present configuration of kube-proxy: its file and its command line, of which a file of ours can have
//! the flags with a field.

use std::{
    ffi::OsString,
    fmt::{self, Display},
    path::{Path, PathBuf},
};

use clap::Arg;

use super::Error;
use crate::config::{Flags, KubeProxyConfiguration, file, options::OPTIONS};

/// The parts of the configuration that the inputs contain.
#[derive(Debug, Default)]
pub(super) struct Inputs {
    file: Option<File>,
    command_line: Option<CommandLine>,
    /// Where the proxy has the pods' ranges from.
    pub(super) cluster_cidr: ClusterCidr,
    /// What else the operator must know, one line each.
    pub(super) notes: Vec<String>,
}

/// A configuration file of kube-proxy.
#[derive(Debug)]
pub(super) struct File {
    /// Its name for the operator.
    pub(super) name: String,
    pub(super) text: String,
}

/// A command line of kube-proxy, after the program's name.
#[derive(Debug)]
pub(super) struct CommandLine {
    /// The input that contains it.
    pub(super) name: String,
    pub(super) words: Vec<String>,
    /// The ConfigMaps that the container mounts, by directory.
    pub(super) config_maps: Vec<(PathBuf, String)>,
}

/// Where the proxy has the pods' ranges from, if its own configuration lacks them.
#[derive(Debug, Default)]
pub(super) enum ClusterCidr {
    /// Only from its own configuration.
    #[default]
    Own,
    /// From the distribution, whose own configuration has these, if any.
    Distribution(Option<String>),
}

/// The configuration that is in force.
pub(super) struct Effective {
    /// The flags that have a field in the file.
    pub(super) flags: Flags,
    pub(super) configuration: KubeProxyConfiguration,
    /// The mode, as it was given.
    pub(super) mode: String,
    /// The configuration file, if there is one: then the flags have no effect.
    pub(super) file: Option<PathBuf>,
    pub(super) cluster_cidr: ClusterCidr,
    pub(super) notes: Vec<String>,
}

impl Inputs {
    /// Adds a configuration file.
    pub(super) fn add_file(&mut self, name: String, text: String) -> Result<(), Error> {
        match &self.file {
            Some(File { name: first, .. }) => {
                Err(Error::Twice { what: "a configuration file", first: first.clone(), second: name })
            }
            None => {
                self.file = Some(File { name, text });
                Ok(())
            }
        }
    }

    /// Adds a command line. The same one once more is that of another node.
    pub(super) fn add_command_line(&mut self, command_line: CommandLine) -> Result<(), Error> {
        match &self.command_line {
            Some(first) if first.is_of_another_node(&command_line) => Ok(()),
            Some(CommandLine { name: first, .. }) => Err(Error::Twice {
                what: "a command line of kube-proxy",
                first: first.clone(),
                second: command_line.name,
            }),
            None => {
                self.command_line = Some(command_line);
                Ok(())
            }
        }
    }

    /// The configuration that kube-proxy has with this file and this command line, which ends with the typed
    /// flags.
    pub(super) fn effective(self, typed: &[OsString]) -> Result<Effective, Error> {
        let Self { file, command_line, cluster_cidr, mut notes } = self;
        let Read { flags, config } = read(command_line.as_ref(), typed, &mut notes)?;
        let Some(File { name, text }) = file else {
            if let Some(path) = config {
                return Err(file_wanted(command_line, path));
            }
            let configuration = flags.configuration();
            let mode = flags.mode().unwrap_or_default().to_owned();
            return Ok(Effective { flags, configuration, mode, file: None, cluster_cidr, notes });
        };
        let path = PathBuf::from(name);
        let file::File { mut configuration, warnings } = file::decode_as_given(&path, &text)?;
        notes.extend(warnings);
        let mode = configuration.mode.clone();
        configuration.fill();
        let overruled = flags.overruled_by_file();
        notes.extend(overruled.iter().map(|flag| format!("{flag}: no effect beside {}", path.display())));
        flags.override_file(&mut configuration);
        Ok(Effective { flags, configuration, mode, file: Some(path), cluster_cidr, notes })
    }
}

fn file_wanted(command_line: Option<CommandLine>, path: String) -> Error {
    let (name, config_maps) = match command_line {
        Some(CommandLine { name, config_maps, .. }) => (name, config_maps),
        None => (TYPED.to_owned(), Vec::new()),
    };
    let directory = Path::new(&path).parent();
    let config_map = config_maps.into_iter().find(|(mounted, _)| Some(mounted.as_path()) == directory);
    let config_map = config_map.map(|(_, name)| format!(" {name}")).unwrap_or_default();
    Error::FileWanted { name, path, config_map }
}

impl CommandLine {
    fn is_of_another_node(&self, other: &Self) -> bool {
        let of_all = |line: &Self| {
            let words = line.words.iter().filter(|word| !word.starts_with("--hostname-override="));
            words.cloned().collect::<Vec<_>>()
        };
        of_all(self) == of_all(other)
    }
}

impl ClusterCidr {
    /// Fills in the ranges where only the distribution has them; a note asks for them if they are unknown.
    pub(super) fn fill(self, configuration: &mut KubeProxyConfiguration) -> Option<String> {
        match self {
            Self::Own => None,
            Self::Distribution(Some(ranges)) => {
                configuration.cluster_cidr = ranges;
                None
            }
            Self::Distribution(None) => Some(
                "clusterCIDR: add the pods' ranges: the distribution passes them to kube-proxy, and the input does not \
                 contain them. The default is 10.42.0.0/16 with k3s and RKE2, 10.244.0.0/16 with Talos"
                    .to_owned(),
            ),
        }
    }
}

/// What was given after `--`.
const TYPED: &str = "the command line";

/// A command line.
struct Read {
    /// The flags that have a field in the file.
    flags: Flags,
    /// The configuration file that it names.
    config: Option<String>,
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

    /// Whether our DaemonSet has the flag too.
    fn is_in_our_daemon_set(&self) -> bool {
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

/// Reads the command line, which ends with the typed flags. The notes name what has no field in the file.
fn read(of_input: Option<&CommandLine>, typed: &[OsString], notes: &mut Vec<String>) -> Result<Read, Error> {
    let name = of_input.map_or(TYPED, |line| &line.name);
    let wrong = |problem| Error::CommandLine { name: name.to_owned(), problem };
    let command = Flags::command();
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
                notes.push(format!(
                    "{flag}: left out: the file is for all nodes, and the value differs from node to node"
                ));
            }
            None => kept.push(flag.to_string()),
            Some(_) if long == "config" => config = flag.value.filter(|path| !path.is_empty()),
            Some(_) if flag.is_in_our_daemon_set() => {}
            Some(why) => notes.push(format!("--{long}: {why}")),
        }
    }
    let flags = Flags::parse(kept.iter().map(OsString::from)).map_err(|error| wrong(first_line(&error)))?;
    Ok(Read { flags, config })
}

/// Splits the words into flags with their values.
fn split(words: impl Iterator<Item = String>, command: &clap::Command) -> Result<Vec<Given>, String> {
    let mut words = words.peekable();
    let mut given = Vec::new();
    while let Some(word) = words.next() {
        let (name, value) =
            name_and_value(&word).ok_or_else(|| format!("invalid argument {word:?}: expected a flag"))?;
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
        "boot-id-file" | "machine-id-file" => Some("no effect here: this id is not used"),
        "cleanup" | "init-only" | "write-config-to" => Some("left out: it is not configuration"),
        _ if OPTIONS.iter().filter_map(|option| option.flag.as_ref()).any(|of| of.name == flag) => None,
        _ => Some("the file has no field for it: keep it as a flag"),
    }
}

/// What is wrong, without the usage that follows.
fn first_line(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let line = text.lines().next().unwrap_or_default();
    line.strip_prefix("error: ").unwrap_or(line).to_owned()
}
