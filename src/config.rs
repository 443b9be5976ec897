//! What the daemon is told to be: the flags and the configuration file, checked, as one value.
//!
//! As with kube-proxy the flags fill in the same structure as the file, and with `--config` the file
//! alone counts, but for the few flags that go before it.

mod duration;
mod feature_gates;
mod file;
mod validate;
mod without_effect;

use std::{fs, io, net::IpAddr, path::PathBuf, time::Duration};

use clap::ValueEnum;
use ipnet::IpNet;
use ipvs::{Family, Scheduler};
use netfilter::{HostFirewall, LocalTraffic, Policy};
use service::NodePortAddresses;

pub use duration::{GoDuration, InvalidDuration};
pub use feature_gates::{FeatureGates, InvalidGates};
pub use validate::Problem;
pub use without_effect::WithoutEffect;
pub(crate) use without_effect::switch;

use crate::{cli::Flags, logging};
use file::{ClientConnection, DetectLocal, File, Iptables, Ipvs, KubeProxyConfiguration, Logging};

/// Everything the daemon needs to know. Every value has been checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// This node's name: lower case, without spaces around it, not empty.
    pub node_name: String,
    /// Where Services and EndpointSlices come from.
    pub source: Source,
    /// The scheduler of every virtual server. Whether the kernel has it is not known yet.
    pub scheduler: Scheduler,
    /// At the latest after this time everything is compared and repaired; more than zero.
    pub sync_period: Duration,
    /// The least time from the end of one sync to the beginning of the next; at most `sync_period`.
    pub min_sync_period: Duration,
    /// Virtual servers whose address is in one of these are somebody else's.
    pub exclude_cidrs: Vec<IpNet>,
    /// Whether every flow to a ClusterIP is masqueraded.
    pub masquerade_all: bool,
    /// The packet mark that asks for masquerading.
    pub mark: u32,
    /// How pods of this node, whose flows to a ClusterIP are not masqueraded otherwise, are recognised.
    pub local_mode: LocalMode,
    /// What becomes of our traffic in the host's own firewall.
    pub host_firewall: HostFirewall,
    /// At which of this node's addresses NodePorts are served.
    pub node_port_addresses: NodePortAddresses,
    /// The address that counts before the node IP of its family.
    pub bind_address: Option<IpAddr>,
    /// Whether `spec.externalIPs` are served.
    pub external_ips: bool,
    /// How long a TCP real server may drain; `None` is for ever.
    pub drain_timeout: Option<Duration>,
    /// How VIPs are made local.
    pub vip_binding: VipBinding,
    /// Whether ARP is answered only on the interface that has the address.
    pub strict_arp: bool,
    /// What is logged, and how.
    pub log: logging::Options,
    /// Where the control socket is.
    pub control_socket: PathBuf,
    /// What the operator should hear once logging has started, one line each.
    pub warnings: Vec<String>,
}

/// Where Services and EndpointSlices come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The API server. With neither, the pod's service account says where.
    Api {
        /// A kubeconfig file.
        kubeconfig: Option<PathBuf>,
        /// The API server's URL, before that of the kubeconfig.
        master: Option<String>,
    },
    /// The YAML and JSON files of a directory.
    Directory(PathBuf),
}

/// How pods of this node are recognised (`detectLocalMode`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalMode {
    /// In this way.
    Fixed(LocalTraffic),
    /// By the Node's podCIDRs, which only its source knows.
    NodeCidr,
}

/// How VIPs are made local.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum VipBinding {
    /// Each is an address on kube-ipvs0.
    #[default]
    Address,
    /// Each is a local route.
    Route,
}

/// Why there are no settings.
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
    /// The flag asks for something that does not exist yet.
    #[error("{0} is not supported yet")]
    Unsupported(&'static str),
    /// The configuration file cannot be read.
    #[error("{path}: the configuration file cannot be read", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The configuration file is no YAML, or a field has the wrong type. Names file, line and column.
    #[error("{0}")]
    Malformed(String),
    /// The file is something else's, or another version's.
    #[error(
        "{path}: apiVersion {api_version:?} with kind {kind:?} is not supported: \
         expected kubeproxy.config.k8s.io/v1alpha1 with KubeProxyConfiguration",
        path = path.display()
    )]
    Kind {
        /// The file.
        path: PathBuf,
        /// What it says.
        api_version: String,
        /// What it says.
        kind: String,
    },
    /// The kernel does not tell its host name, and no flag or field overrides it.
    #[error("cannot read the host name")]
    HostName(#[source] io::Error),
}

impl Error {
    /// Whether the command line or a value in the configuration file is wrong, rather than the machine.
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::Invalid { .. } | Self::Unsupported(_))
    }
}

/// Where a value came from, to name it in errors.
enum Origin {
    Flags,
    File(PathBuf),
}

impl Origin {
    /// The option that is called `flag` on the command line and `field` in the file.
    fn option(&self, flag: &str, field: &str) -> String {
        match self {
            Self::Flags => flag.to_owned(),
            Self::File(path) => format!("{}: {field}", path.display()),
        }
    }

    /// An error about the option that is called `flag` on the command line and `field` in the file.
    fn invalid(&self, flag: &str, field: &str, problem: impl Into<Problem>) -> Error {
        Error::Invalid { option: self.option(flag, field), problem: problem.into() }
    }
}

impl Settings {
    /// Reads the configuration file, if one is named, and checks every value. Writes nothing.
    pub fn resolve(flags: &Flags) -> Result<Self, Error> {
        if let Some(flag) = flags.unsupported.first() {
            return Err(Error::Unsupported(flag));
        }
        let (origin, file) = match flags.config.as_deref() {
            None | Some("") => (Origin::Flags, from_flags(flags)),
            Some(path) => (Origin::File(path.into()), file::read(path.as_ref())?),
        };
        let File { configuration, mut warnings, mut without_effect } = file;
        if let (Origin::File(path), overruled @ [_, ..]) = (&origin, flags.overruled().as_slice()) {
            let (path, overruled) = (path.display(), overruled.join(", "));
            warnings.push(format!("{overruled}: no effect beside --config, set it in {path}"));
        }
        without_effect.extend(configuration.feature_gates.without_effect().map(|gate| match origin {
            Origin::Flags => format!("--feature-gates={gate}"),
            Origin::File(_) => format!("featureGates.{gate}"),
        }));
        if !without_effect.is_empty() {
            warnings.push(format!("accepted without effect: {}", without_effect.join(", ")));
        }

        validate::mode(&configuration.mode).map_err(|p| origin.invalid("--proxy-mode", "mode", p))?;
        let (sync_period, min_sync_period) = validate::periods(&configuration.ipvs, &origin)?;
        let node_port_addresses = validate::node_port_addresses(&configuration.node_port_addresses)
            .map_err(|p| origin.invalid("--nodeport-addresses", "nodePortAddresses", p))?;
        if let Some(family) = served_everywhere(&node_port_addresses) {
            let option = origin.option("--nodeport-addresses", "nodePortAddresses");
            warnings.push(format!(
                "{option}: no range is {family}, so NodePorts are served at every {family} address of this node"
            ));
        }
        Ok(Self {
            node_name: node_name(flags, &configuration, &origin)?,
            source: source(flags, &configuration)?,
            scheduler: validate::scheduler(&configuration.ipvs.scheduler)
                .map_err(|p| origin.invalid("--ipvs-scheduler", "ipvs.scheduler", p))?,
            sync_period,
            min_sync_period,
            exclude_cidrs: validate::cidrs(&configuration.ipvs.exclude_cidrs)
                .map_err(|p| origin.invalid("--ipvs-exclude-cidrs", "ipvs.excludeCIDRs", p))?,
            masquerade_all: configuration.iptables.masquerade_all,
            mark: validate::mark(configuration.iptables.masquerade_bit)
                .map_err(|p| origin.invalid("--iptables-masquerade-bit", "iptables.masqueradeBit", p))?,
            local_mode: validate::local_mode(&configuration, &origin)?,
            host_firewall: flags.host_firewall,
            node_port_addresses,
            bind_address: validate::bind_address(&configuration.bind_address)
                .map_err(|p| origin.invalid("--bind-address", "bindAddress", p))?,
            external_ips: configuration.feature_gates.external_ips(),
            drain_timeout: Some(flags.drain_timeout.0).filter(|timeout| !timeout.is_zero()),
            vip_binding: flags.vip_binding,
            strict_arp: configuration.ipvs.strict_arp,
            log: logging::Options {
                format: log_format(flags, &configuration, &origin)?,
                verbosity: flags.v.unwrap_or(configuration.logging.verbosity),
            },
            control_socket: flags.control_socket.clone(),
            warnings,
        })
    }

    /// The policy where pods of this node are recognised like this.
    pub fn policy(&self, local_traffic: LocalTraffic) -> Policy {
        Policy {
            masquerade_all: self.masquerade_all,
            mark: self.mark,
            local_traffic,
            host_firewall: self.host_firewall,
        }
    }
}

/// What the file would say if it said what the flags say.
fn from_flags(flags: &Flags) -> File {
    let configuration = KubeProxyConfiguration {
        bind_address: flags.bind_address.clone(),
        client_connection: ClientConnection { kubeconfig: flags.kubeconfig.clone() },
        cluster_cidr: flags.cluster_cidr.clone(),
        detect_local_mode: flags.detect_local_mode.clone(),
        detect_local: DetectLocal {
            bridge_interface: flags.pod_bridge_interface.clone(),
            interface_name_prefix: flags.pod_interface_name_prefix.clone(),
        },
        feature_gates: FeatureGates::merged(&flags.feature_gates),
        hostname_override: String::new(),
        iptables: Iptables {
            masquerade_bit: Some(flags.iptables_masquerade_bit),
            masquerade_all: flags.masquerade_all,
        },
        ipvs: Ipvs {
            sync_period: flags.ipvs_sync_period,
            min_sync_period: flags.ipvs_min_sync_period,
            scheduler: flags.ipvs_scheduler.clone(),
            exclude_cidrs: flags.ipvs_exclude_cidrs.clone(),
            strict_arp: flags.ipvs_strict_arp,
        },
        logging: Logging::default(),
        mode: flags.proxy_mode.clone(),
        node_port_addresses: flags.nodeport_addresses.clone(),
    };
    File { configuration, warnings: Vec::new(), without_effect: flags.without_effect.0.clone() }
}

/// The family that the ranges say nothing of although they limit the other.
fn served_everywhere(addresses: &NodePortAddresses) -> Option<Family> {
    let NodePortAddresses::Ranges(ranges) = addresses else { return None };
    [Family::V4, Family::V6]
        .into_iter()
        .find(|family| !ranges.iter().any(|range| Family::of(range.addr()) == *family))
}

/// The flag goes before the file, the file before the kernel's host name.
fn node_name(
    flags: &Flags,
    configuration: &KubeProxyConfiguration,
    origin: &Origin,
) -> Result<String, Error> {
    if !flags.hostname_override.is_empty() {
        return validate::node_name(&flags.hostname_override)
            .map_err(|p| Origin::Flags.invalid("--hostname-override", "", p));
    }
    if !configuration.hostname_override.is_empty() {
        return validate::node_name(&configuration.hostname_override)
            .map_err(|p| origin.invalid("", "hostnameOverride", p));
    }
    let host_name = fs::read_to_string("/proc/sys/kernel/hostname").map_err(Error::HostName)?;
    validate::node_name(&host_name)
        .map_err(|problem| Error::Invalid { option: "the kernel's host name".to_owned(), problem })
}

fn source(flags: &Flags, configuration: &KubeProxyConfiguration) -> Result<Source, Error> {
    if let Some(directory) = &flags.manifests {
        return Ok(Source::Directory(directory.clone()));
    }
    let given = |text: &String| (!text.is_empty()).then(|| text.clone());
    let master = given(&flags.master);
    if let Some(url) = &master {
        validate::url(url).map_err(|p| Origin::Flags.invalid("--master", "", p))?;
    }
    Ok(Source::Api {
        kubeconfig: given(&configuration.client_connection.kubeconfig).map(PathBuf::from),
        master,
    })
}

fn log_format(
    flags: &Flags,
    configuration: &KubeProxyConfiguration,
    origin: &Origin,
) -> Result<logging::Format, Error> {
    match (flags.logging_format, configuration.logging.format.as_str()) {
        (Some(format), _) => Ok(format),
        (None, "" | "text") => Ok(logging::Format::Text),
        (None, "json") => Ok(logging::Format::Json),
        (None, other) => {
            Err(origin.invalid("--logging-format", "logging.format", Problem::LogFormat(other.to_owned())))
        }
    }
}

#[cfg(test)]
mod tests;
