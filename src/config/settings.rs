//! The settings of the daemon: flags and configuration file resolved and checked.

mod kernel;
mod parts;
mod services;

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use clap::ValueEnum;
use ipnet::IpNet;
use ipvs::Family;
use netfilter::{HostFirewall, LocalTraffic};
use reconciler::Timing;
use serde::{Deserialize, Serialize};
use service::Options;
use watcher::Foreign;

use super::{
    Error, Flags, KubeProxyConfiguration, Problem, checks,
    file::{self, File},
    options::{Ipvs, MASQUERADE_BIT, OPTIONS},
};
pub use kernel::{ConntrackSettings, IpvsTimeouts, KernelParameters};

use crate::logging;

/// All settings of the daemon. Every value has been checked.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::struct_excessive_bools, reason = "each is an option of its own")]
pub struct Settings {
    /// The source of Services and EndpointSlices.
    pub source: Source,
    /// How Services are served. Whether the kernel has the scheduler is not known yet, nor in which families the Node
    /// has podCIDRs.
    pub services: Options,
    /// When to sync; the kernel's timeout of TCP connections is not known yet.
    pub timing: Timing,
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
    /// What is accepted where the host's own firewall drops.
    pub host_firewall: HostFirewall,
    /// How VIPs are made local.
    pub vip_binding: VipBinding,
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

impl LocalMode {
    /// The families in which pods of this node are recognised. By the Node's podCIDRs they are in each that it has, and
    /// it is not known yet which those are.
    fn knows_pods(&self) -> BTreeSet<Family> {
        let is_known = |family: &Family| match self {
            Self::Fixed(local_traffic) => local_traffic.is_known(*family),
            Self::NodeCidr => true,
        };
        Family::BOTH.into_iter().filter(is_known).collect()
    }
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
        let timing = timing(flags, ipvs, origin)?;
        let listen = |field, address| origin.check(field, checks::listen_address(address));
        let healthz_bind_address = listen("healthzBindAddress", &configuration.healthz_bind_address)?;
        let local_mode = checks::local_mode(&configuration, origin)?;
        let services = Options {
            knows_pods: local_mode.knows_pods(),
            answers_peers: port_for_peers(healthz_bind_address).is_some(),
            ..services::options(flags, &configuration, origin)?
        };
        warnings.extend(ignored(&configuration, usual, origin));
        warnings.extend(services::doubts(&services.node_port_addresses, origin));
        Ok(Self {
            source: source(flags, &configuration)?,
            services,
            timing,
            exclude_cidrs: origin.check("ipvs.excludeCIDRs", checks::cidrs(&ipvs.exclude_cidrs))?,
            foreign: flags.foreign_virtual_servers,
            masquerade_all: iptables.masquerade_all,
            mark: origin.check(
                "iptables.masqueradeBit",
                checks::mark(iptables.masquerade_bit.unwrap_or(MASQUERADE_BIT)),
            )?,
            local_mode,
            host_firewall: flags.host_firewall,
            vip_binding: flags.vip_binding,
            kernel_parameters: KernelParameters::new(flags, &configuration, origin)?,
            ipvs_timeouts: IpvsTimeouts::new(ipvs, origin)?,
            oom_score_adj: origin.check(
                "oomScoreAdj",
                checks::oom_score_adj(configuration.oom_score_adj.unwrap_or_default()),
            )?,
            healthz_bind_address,
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

/// The port at which other nodes can ask about this one's health, if any.
fn port_for_peers(healthz_bind_address: Option<SocketAddr>) -> Option<u16> {
    healthz_bind_address.filter(|address| !address.ip().is_loopback()).map(|address| address.port())
}

/// When to sync, and how long a TCP real server may drain.
fn timing(flags: &Flags, ipvs: &Ipvs, origin: Origin) -> Result<Timing, Error> {
    let sync_period = origin.check("ipvs.syncPeriod", checks::period(ipvs.sync_period))?;
    let min_sync_period = origin.check("ipvs.minSyncPeriod", checks::duration(ipvs.min_sync_period))?;
    if min_sync_period > sync_period {
        let problem = Problem::MinimumAbovePeriod { minimum: min_sync_period, period: sync_period };
        return Err(origin.invalid("ipvs.minSyncPeriod", problem));
    }
    let drain_timeout = Origin::Flags.check("--drain-timeout", checks::duration(flags.drain_timeout))?;
    Ok(Timing {
        sync_period,
        min_sync_period,
        drain_timeout: Some(drain_timeout).filter(|timeout| !timeout.is_zero()),
        tcp_timeout: Timing::TCP_TIMEOUT,
    })
}
