//! What the inputs show of the present kube-proxy, and the configuration that is in force with it.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use super::{Error, command_line};
use crate::{
    cli::Flags,
    config::{
        KubeProxyConfiguration,
        file::{decode, defaults},
        from_flags, names,
    },
};

/// What the inputs show.
#[derive(Debug, Default)]
pub(super) struct Present {
    file: Option<File>,
    command_line: Option<CommandLine>,
    /// Whence the proxy has the pods' ranges.
    pub(super) cluster_cidr: ClusterCidr,
    /// What the operator is to know besides, one line each.
    pub(super) notes: Vec<String>,
}

/// A configuration file of kube-proxy.
#[derive(Debug)]
pub(super) struct File {
    /// What the operator calls it.
    pub(super) name: String,
    pub(super) text: String,
}

/// A command line of kube-proxy, after the program's name.
#[derive(Debug)]
pub(super) struct CommandLine {
    /// The input that has it.
    pub(super) name: String,
    pub(super) words: Vec<String>,
    /// The ConfigMaps that the container has as directories.
    pub(super) config_maps: Vec<(PathBuf, String)>,
}

/// Whence the proxy has the pods' ranges, if its own configuration does not say them.
#[derive(Debug, Default)]
pub(super) enum ClusterCidr {
    /// From nowhere.
    #[default]
    Own,
    /// The distribution passes them on, and this is what it was told, if anything.
    Distribution(Option<String>),
}

/// The configuration that is in force.
pub(super) struct InForce {
    /// The flags that a file can say, and those that count beside one.
    pub(super) flags: Flags,
    pub(super) configuration: KubeProxyConfiguration,
    /// The mode, as it was given.
    pub(super) mode: String,
    /// The configuration file, if it counts and not the flags.
    pub(super) file: Option<PathBuf>,
    pub(super) cluster_cidr: ClusterCidr,
    pub(super) notes: Vec<String>,
}

impl Present {
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

    /// What kube-proxy makes of file and command line, which ends with these flags.
    pub(super) fn in_force(self, typed: &[OsString]) -> Result<InForce, Error> {
        let Self { file, command_line, cluster_cidr, mut notes } = self;
        let command_line::Read { flags, config } =
            command_line::read(command_line.as_ref(), typed, &mut notes)?;
        let Some(File { name, text }) = file else {
            if let Some(path) = config {
                return Err(file_wanted(command_line, path));
            }
            let configuration = from_flags::configuration(&flags);
            let mode = flags.proxy_mode.clone();
            return Ok(InForce { flags, configuration, mode, file: None, cluster_cidr, notes });
        };
        let path = PathBuf::from(name);
        let decode::File { mut configuration, warnings } = decode::decode_as_given(&path, &text)?;
        notes.extend(warnings);
        let mode = configuration.mode.clone();
        defaults::fill(&mut configuration);
        let said_by_flags = from_flags::configuration(&flags).tree();
        let overruled = names::overruled_by_a_file(&said_by_flags, &defaults::of_flags().tree());
        notes.extend(overruled.iter().map(|flag| format!("{flag}: no effect beside {}", path.display())));
        from_flags::before_file(&mut configuration, &flags);
        Ok(InForce { flags, configuration, mode, file: Some(path), cluster_cidr, notes })
    }
}

fn file_wanted(command_line: Option<CommandLine>, path: String) -> Error {
    let (name, config_maps) = match command_line {
        Some(CommandLine { name, config_maps, .. }) => (name, config_maps),
        None => (command_line::TYPED.to_owned(), Vec::new()),
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
    /// Fills in the ranges where only the distribution has them; a note says if it is not known what they are.
    pub(super) fn fill(self, configuration: &mut KubeProxyConfiguration) -> Option<String> {
        match self {
            Self::Own => None,
            Self::Distribution(Some(ranges)) => {
                configuration.cluster_cidr = ranges;
                None
            }
            Self::Distribution(None) => Some(
                "clusterCIDR: add the pods' ranges: the distribution passes them to kube-proxy, and the input does not \
                 say them. The default is 10.42.0.0/16 with k3s and RKE2, 10.244.0.0/16 with Talos"
                    .to_owned(),
            ),
        }
    }
}
