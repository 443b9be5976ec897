//! The settings of the daemon: flags and configuration file resolved and checked.

mod kernel;
mod parts;

use std::{
    fs,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use clap::ValueEnum;
use ipnet::IpNet;
use ipvs::{Family, Scheduler, TunnelKind};
use netfilter::{HostFirewall, LocalTraffic};
use serde::{Deserialize, Serialize};
use service::{
    ByDistance, DistanceWeights, Ejection, ExternalForwarding, ExternalIps, NodePortAddresses,
    UntrackedServices,
};
use watcher::Foreign;

use super::{
    Error, Flags, KubeProxyConfiguration, Problem, checks,
    file::{self, File},
    options::{MASQUERADE_BIT, OPTIONS},
};
pub use kernel::{ConntrackSettings, IpvsTimeouts, KernelParameters};

use crate::logging;

/// All settings of the daemon. Every value has been checked.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::struct_excessive_bools, reason = "each is an option of its own")]
pub struct Settings {
    /// This node's name: lower case, without spaces around it, not empty.
    pub node_name: String,
    /// The source of Services and EndpointSlices.
    pub source: Source,
    /// The scheduler of every virtual server. Whether the kernel has it is not known yet.
    pub scheduler: Scheduler,
    /// The factors of weights by distance, if weights depend on it, unless a Service has its own.
    pub distance_weights: Option<DistanceWeights>,
    /// Which failing endpoints get no new connections, unless a Service says otherwise.
    pub ejection: Ejection,
    /// The longest time until everything is compared and repaired again; more than zero.
    pub sync_period: Duration,
    /// The least time from the end of one sync to the beginning of the next; at most `sync_period`.
    pub min_sync_period: Duration,
    /// Virtual servers whose address is in one of these are never touched.
    pub exclude_cidrs: Vec<IpNet>,
    /// Whether virtual servers elsewhere that no Service made are kept.
    pub foreign: Foreign,
    /// Whether every flow to a ClusterIP is masqueraded.
    pub masquerade_all: bool,
    /// The packet mark that asks for masquerading.
    pub mark: u32,
    /// How pods of this node are recognised, whose flows to a ClusterIP are not masqueraded otherwise.
    pub local_mode: LocalMode,
    /// The ranges of the pods of all nodes, as far as they are configured.
    pub pod_ranges: Vec<IpNet>,
    /// What is accepted where the host's own firewall drops.
    pub host_firewall: HostFirewall,
    /// The Services whose connections from pods conntrack does not track.
    pub untracked_services: UntrackedServices,
    /// The addresses of this node at which NodePorts are served.
    pub node_port_addresses: NodePortAddresses,
    /// The address that overrides the node IP of its family.
    pub bind_address: Option<IpAddr>,
    /// The `spec.externalIPs` that are served.
    pub external_ips: ExternalIps,
    /// How long a TCP real server may drain; `None` is for ever.
    pub drain_timeout: Option<Duration>,
    /// How VIPs are made local.
    pub vip_binding: VipBinding,
    /// How traffic to external addresses reaches endpoints, unless a Service has its own method.
    pub external_forwarding_method: ExternalForwarding,
    /// The encapsulation of packets in tunnels.
    pub tunnel: TunnelKind,
    /// The kernel parameters that the start sets.
    pub kernel_parameters: KernelParameters,
    /// When IPVS forgets connections.
    pub ipvs_timeouts: IpvsTimeouts,
    /// The OOM score adjustment of this process; from -1000 to 1000.
    pub oom_score_adj: i32,
    /// The address of the health checks, if they are served.
    pub healthz_bind_address: Option<SocketAddr>,
    /// The address of the metrics, if they are served.
    pub metrics_bind_address: Option<SocketAddr>,
    /// The traffic that the metrics show.
    pub service_metrics: ServiceMetrics,
    /// Whether the daemon ends when one of these addresses cannot be bound.
    pub bind_address_hard_fail: bool,
    /// What is logged, and how.
    pub log: logging::Options,
    /// The path of the control socket.
    pub control_socket: PathBuf,
    /// The configuration file, if there is one.
    pub config_file: Option<PathBuf>,
    /// The configuration file that has the same effect.
    pub effective: KubeProxyConfiguration,
    /// Warnings to log once logging has started, one line each.
    pub warnings: Vec<String>,
}

/// The source of Services and EndpointSlices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The API server. With neither, that of the pod's service account.
    Api {
        /// A kubeconfig file.
        kubeconfig: Option<PathBuf>,
        /// The API server's URL or host, in place of the kubeconfig's.
        master: Option<String>,
    },
    /// The YAML and JSON files of a directory.
    Directory(PathBuf),
}

/// How pods of this node are recognised (`detectLocalMode`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalMode {
    /// By their addresses or interfaces.
    Fixed(LocalTraffic),
    /// By the Node's podCIDRs, which only its source knows.
    NodeCidr,
}

/// How VIPs are made local.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VipBinding {
    /// Each is an address of kube-ipvs0.
    #[default]
    Address,
    /// Each is a local route.
    Route,
}

/// The traffic that the metrics show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ServiceMetrics {
    /// None: each Service would be ten series.
    #[default]
    Off,
    /// The traffic of each virtual server.
    Service,
    /// The traffic of each virtual server, and of each real server.
    Endpoint,
}

/// The origin of a value, to name it in errors.
#[derive(Clone, Copy)]
pub(super) enum Origin<'a> {
    Flags,
    File(&'a Path),
}

impl Origin<'_> {
    /// The name of an option, with the file if it is there.
    fn option(self, field: &str) -> String {
        match self {
            Self::Flags => self.name(field),
            Self::File(path) => format!("{}: {field}", path.display()),
        }
    }

    /// The name of an option beside others of the same origin: its flag, or the field's path in the file.
    pub(super) fn name(self, field: &str) -> String {
        let Self::Flags = self else { return field.to_owned() };
        if let Some(gate) = field.strip_prefix("featureGates.") {
            return format!("--feature-gates={gate}");
        }
        let row = OPTIONS.iter().find(|option| option.field == field);
        let flag = row.and_then(|option| option.flag.as_ref());
        flag.map_or_else(|| field.to_owned(), |flag| format!("--{}", flag.name))
    }

    pub(super) fn invalid(self, field: &str, problem: Problem) -> Error {
        Error::Invalid { option: self.option(field), problem }
    }

    pub(super) fn check<T>(self, field: &str, value: Result<T, Problem>) -> Result<T, Error> {
        value.map_err(|problem| self.invalid(field, problem))
    }
}

impl Settings {
    /// Reads the configuration file, if one is named, and checks every value. Writes nothing.
    pub fn resolve(flags: &Flags) -> Result<Self, Error> {
        Self::resolve_in_mode(flags, None)
    }

    /// Resolves the flags as if their mode and that of the file were ipvs.
    pub fn resolve_as_ipvs(flags: &Flags) -> Result<Self, Error> {
        Self::resolve_in_mode(flags, Some("ipvs"))
    }

    fn resolve_in_mode(flags: &Flags, mode: Option<&str>) -> Result<Self, Error> {
        if let Some(path) = flags.config.as_deref().filter(|path| !path.is_empty()) {
            return Self::with_file(flags, path.as_ref(), &file::read(path.as_ref())?, mode);
        }
        let configuration = in_mode(flags.configuration(), mode);
        let usual = KubeProxyConfiguration::of_no_flags();
        Self::checked(flags, configuration, &usual, Origin::Flags, flags.deprecated().collect())
    }

    /// Resolves the flags with this text in the configuration file at `path`, which is not read.
    pub fn with_text(flags: &Flags, path: &Path, text: &str) -> Result<Self, Error> {
        Self::with_file(flags, path, text, None)
    }

    fn with_file(flags: &Flags, path: &Path, text: &str, mode: Option<&str>) -> Result<Self, Error> {
        let File { mut configuration, mut warnings } = file::decode(path, text)?;
        let overruled = flags.overruled_by_file();
        if !overruled.is_empty() {
            let (path, overruled) = (path.display(), overruled.join(", "));
            warnings.push(format!("{overruled}: no effect together with --config; set it in {path}"));
        }
        flags.override_file(&mut configuration);
        let usual = KubeProxyConfiguration::of_empty_file();
        let configuration = in_mode(configuration, mode);
        let settings = Self::checked(flags, configuration, &usual, Origin::File(path), warnings)?;
        Ok(Self { config_file: Some(path.to_owned()), ..settings })
    }

    /// Checks every value of the configuration. `usual` is the configuration without any setting.
    pub(super) fn checked(
        flags: &Flags,
        mut configuration: KubeProxyConfiguration,
        usual: &KubeProxyConfiguration,
        origin: Origin,
        mut warnings: Vec<String>,
    ) -> Result<Self, Error> {
        for option in OPTIONS {
            origin.check(option.field, option.place.check(&configuration))?;
        }
        let KubeProxyConfiguration { iptables, ipvs, .. } = &configuration;
        let (sync_period, min_sync_period) = checks::periods(ipvs, origin)?;
        let listen = |field, address| origin.check(field, checks::listen_address(address));
        let node_port_addresses = origin
            .check("nodePortAddresses", checks::node_port_addresses(&configuration.node_port_addresses))?;
        warnings.extend(ignored(&configuration, usual, origin));
        warnings.extend(doubts(&node_port_addresses, origin));
        Ok(Self {
            node_name: node_name(flags, &configuration, origin)?,
            source: source(flags, &configuration)?,
            scheduler: origin.check("ipvs.scheduler", ipvs.scheduler.parse().map_err(Problem::from))?,
            distance_weights: match flags.weights_by_distance {
                ByDistance::Off => None,
                ByDistance::By(weights) => Some(weights),
            },
            ejection: flags.eject,
            sync_period,
            min_sync_period,
            exclude_cidrs: origin.check("ipvs.excludeCIDRs", checks::cidrs(&ipvs.exclude_cidrs))?,
            foreign: flags.foreign_virtual_servers,
            masquerade_all: iptables.masquerade_all,
            mark: origin.check(
                "iptables.masqueradeBit",
                checks::mark(iptables.masquerade_bit.unwrap_or(MASQUERADE_BIT)),
            )?,
            local_mode: checks::local_mode(&configuration, origin)?,
            pod_ranges: checks::pod_ranges(&configuration, origin)?,
            host_firewall: flags.host_firewall,
            untracked_services: flags.untracked_services,
            node_port_addresses,
            bind_address: origin.check("bindAddress", checks::bind_address(&configuration.bind_address))?,
            external_ips: external_ips(flags, &configuration)?,
            drain_timeout: drain_timeout(flags)?,
            vip_binding: flags.vip_binding,
            external_forwarding_method: flags.external_forwarding_method,
            tunnel: flags.tunnel,
            kernel_parameters: KernelParameters {
                strict_arp: ipvs.strict_arp,
                direct_return: flags.external_forwarding_method.may_tunnel(),
                conntrack: checks::conntrack(&configuration.conntrack, origin)?,
            },
            ipvs_timeouts: checks::ipvs_timeouts(ipvs, origin)?,
            oom_score_adj: origin.check(
                "oomScoreAdj",
                checks::oom_score_adj(configuration.oom_score_adj.unwrap_or_default()),
            )?,
            healthz_bind_address: listen("healthzBindAddress", &configuration.healthz_bind_address)?,
            metrics_bind_address: listen("metricsBindAddress", &configuration.metrics_bind_address)?,
            service_metrics: flags.service_metrics,
            bind_address_hard_fail: configuration.bind_address_hard_fail,
            log: checks::logging(&configuration.logging, origin)?,
            control_socket: flags.control_socket.clone(),
            config_file: None,
            warnings,
            effective: {
                // A zero in a file means the default.
                configuration.fill_zeros();
                configuration
            },
        })
    }
}

/// The configuration, with this mode if one is given.
fn in_mode(configuration: KubeProxyConfiguration, mode: Option<&str>) -> KubeProxyConfiguration {
    let mode = mode.unwrap_or(&configuration.mode).to_owned();
    KubeProxyConfiguration { mode, ..configuration }
}

/// The warning that names the options without effect, if there are any.
fn ignored(
    configuration: &KubeProxyConfiguration,
    usual: &KubeProxyConfiguration,
    origin: Origin,
) -> Option<String> {
    let fields = configuration.ignored(usual).map(|option| origin.name(option.field));
    let gates = configuration.feature_gates.ignored();
    let gates = gates.map(|gate| origin.name(&format!("featureGates.{gate}")));
    let names: Vec<_> = fields.chain(gates).collect();
    (!names.is_empty()).then(|| format!("accepted without effect: {}", names.join(", ")))
}

/// The warnings about addresses for NodePorts.
fn doubts(addresses: &NodePortAddresses, origin: Origin) -> impl Iterator<Item = String> {
    let option = origin.option("nodePortAddresses");
    let loopback = addresses.asks_for_loopback().then(|| {
        format!(
            "{option}: loopback addresses (localhost) have no effect here: NodePorts are never served there"
        )
    });
    let left_out = Family::BOTH.into_iter().find(|family| addresses.leaves_out(*family)).map(|family| {
        format!(
            "{option}: no range is {family}, so NodePorts are served at every {family} address of this node"
        )
    });
    loopback.into_iter().chain(left_out)
}

/// The node's name: the flag's, or the file's, or the kernel's host name.
fn node_name(flags: &Flags, configuration: &KubeProxyConfiguration, origin: Origin) -> Result<String, Error> {
    let name = &configuration.hostname_override;
    if !name.is_empty() {
        let origin = if flags.overrides_node_name() { Origin::Flags } else { origin };
        return origin.check("hostnameOverride", checks::node_name(name));
    }
    let host_name = fs::read_to_string("/proc/sys/kernel/hostname").map_err(Error::HostName)?;
    checks::node_name(&host_name)
        .map_err(|problem| Error::Invalid { option: "the kernel's host name".to_owned(), problem })
}

fn source(flags: &Flags, configuration: &KubeProxyConfiguration) -> Result<Source, Error> {
    if let Some(directory) = &flags.manifests {
        return Ok(Source::Directory(directory.clone()));
    }
    let given = |text: &String| (!text.is_empty()).then(|| text.clone());
    let master = given(&flags.master);
    if let Some(server) = &master {
        Origin::Flags.check("--master", checks::server(server))?;
    }
    Ok(Source::Api {
        kubeconfig: given(&configuration.client_connection.kubeconfig).map(PathBuf::from),
        master,
    })
}

/// The external IPs that are served; the feature gate switches off what the flag allows.
fn external_ips(flags: &Flags, configuration: &KubeProxyConfiguration) -> Result<ExternalIps, Error> {
    let ranges = Origin::Flags.check("--external-ip-policy", checks::cidrs(&flags.external_ip_policy))?;
    if !configuration.feature_gates.external_ips() {
        return Ok(ExternalIps::Off);
    }
    Ok(if ranges.is_empty() { ExternalIps::Unowned } else { ExternalIps::In(ranges) })
}

fn drain_timeout(flags: &Flags) -> Result<Option<Duration>, Error> {
    let timeout = Origin::Flags.check("--drain-timeout", checks::duration(flags.drain_timeout))?;
    Ok(Some(timeout).filter(|timeout| !timeout.is_zero()))
}
