//! The configuration of the daemon: flags and configuration file, checked, as one value.
//!
//! As with kube-proxy the flags fill in the same structure as the file, and with `--config` the file alone is
//! used, except for the few flags that override it. `options.rs` has the file and a row for each option of kube-proxy,
//! [`Flags`] the flags that only kube-ipvs has.

mod checks;
pub mod convert;
pub(crate) mod file;
mod flags;
mod option;
mod options;
mod settings;
mod values;

use std::{io, path::PathBuf};

pub use checks::Problem;
pub use file::Excluded;
pub use flags::Flags;
pub use options::KubeProxyConfiguration;
use settings::Origin;
pub use settings::{
    ConntrackSettings, IpvsTimeouts, KernelParameters, LocalMode, ServiceMetrics, Settings, Source,
    VipBinding,
};
pub use values::{FeatureGates, GoDuration, InvalidDuration, InvalidGates};

/// A configuration that cannot be used, read or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A value cannot be used: the operator's mistake.
    #[error("{option}: {problem}")]
    Invalid {
        /// The flag, or the file and the field's path in it.
        option: String,
        /// What is wrong.
        problem: Problem,
    },
    /// The configuration file cannot be read.
    #[error("{path}: the configuration file cannot be read", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The configuration file is not YAML, or a field has the wrong type. Names file, line and column.
    #[error("{0}")]
    Malformed(String),
    /// The file has another kind or version.
    #[error(
        "{path}: apiVersion {api_version:?} with kind {kind:?} is not supported: \
         expected kubeproxy.config.k8s.io/v1alpha1 with KubeProxyConfiguration",
        path = path.display()
    )]
    Kind {
        /// The file.
        path: PathBuf,
        /// Its `apiVersion`.
        api_version: String,
        /// Its `kind`.
        kind: String,
    },
    /// A configuration that no file can have.
    #[error("{0}: a file cannot disable this address, since empty means the default there: use the flag")]
    OnlyByFlag(&'static str),
    /// The configuration cannot be written as YAML.
    #[error("the configuration cannot be written as YAML")]
    Encode(#[source] serde_saphyr::SerializeError),
    /// The configuration file cannot be written.
    #[error("{path}: the configuration file cannot be written", path = path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The kernel's host name cannot be read, and no flag or field overrides it.
    #[error("cannot read the host name")]
    HostName(#[source] io::Error),
}

impl Error {
    /// Whether the command line, or the configuration file that it names, cannot be used: not the machine's
    /// fault.
    pub fn is_usage(&self) -> bool {
        match self {
            Self::Invalid { .. }
            | Self::Read { .. }
            | Self::Malformed(_)
            | Self::Kind { .. }
            | Self::OnlyByFlag(_) => true,
            Self::Encode(_) | Self::Write { .. } | Self::HostName(_) => false,
        }
    }

    /// Whether another mode of kube-proxy is all that is known to be wrong.
    pub fn is_mode_of_kube_proxy(&self) -> bool {
        matches!(self, Self::Invalid { problem: Problem::Mode(mode), .. } if ["iptables", "nftables"].contains(&mode.as_str()))
    }
}

#[cfg(test)]
pub(crate) mod tests;
