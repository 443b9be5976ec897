//! Why an input is not converted.

use crate::config;

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The input is no YAML or JSON. Names input, line and column.
    #[error("{0}")]
    Malformed(String),
    /// An object in the input is not as its kind says.
    #[error("{name}: {kind}")]
    Object {
        /// The input.
        name: String,
        /// Of what kind the object is.
        kind: &'static str,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// Nothing that is known was found in the input.
    #[error(
        "{0}: nothing of kube-proxy's configuration is in it: expected its ConfigMap, DaemonSet or Pod, a \
         KubeProxyConfiguration, a machine configuration of Talos, or a config.yaml of k3s or RKE2 with kube-proxy-arg, \
         cluster-cidr or disable-kube-proxy"
    )]
    Nothing(String),
    /// Two inputs show the same part of the configuration.
    #[error("{second}: {what}, and {first} has shown one already: give one of them")]
    Twice {
        /// Which part.
        what: &'static str,
        /// One input.
        first: String,
        /// The other input.
        second: String,
    },
    /// The container starts another program, which may be a shell with a script.
    #[error("{name}: the container runs {program:?}: give the flags that kube-proxy gets after --")]
    Program {
        /// The input.
        name: String,
        /// The program.
        program: String,
    },
    /// A command line that kube-proxy would not take.
    #[error("{name}: {problem}")]
    CommandLine {
        /// The input, or what was given after `--`.
        name: String,
        /// What is wrong.
        problem: String,
    },
    /// The command line names a file that is not among the inputs.
    #[error(
        "{name}: the configuration is in --config={path}: give that file too, or the ConfigMap{config_map} that has it"
    )]
    FileWanted {
        /// The input, or what was given after `--`.
        name: String,
        /// The file.
        path: String,
        /// The ConfigMap's name after a space, if the input says it.
        config_map: String,
    },
    /// A value cannot be used, or the file cannot be read.
    #[error(transparent)]
    Configuration(#[from] config::Error),
}
