//! Resolves flags and file to settings: where each value comes from, and the error if it cannot be used.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use ipvs::Family;
use service::ExternalIps;

use super::{
    Error, KubeProxyConfiguration, Problem, Settings, Source, checks,
    file::{
        decode::{self, File},
        defaults, ignored_fields,
    },
    from_flags, kernel, names,
    values::listen,
};
use crate::cli::Flags;

/// Where a value came from, to name it in errors.
#[derive(Clone, Copy)]
pub(super) enum Origin<'a> {
    Flags,
    File(&'a Path),
}

impl Origin<'_> {
    /// What the operator calls a field: its flag, or its path in the file.
    fn option(self, field: &str) -> String {
        match self {
            Self::Flags => names::flag(field).unwrap_or(field).to_owned(),
            Self::File(path) => format!("{}: {field}", path.display()),
        }
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
        match flags.config.as_deref() {
            None | Some("") => Self::without_file(flags),
            Some(path) => Self::with_file(flags, path.as_ref()),
        }
    }

    fn without_file(flags: &Flags) -> Result<Self, Error> {
        let configuration = from_flags::configuration(flags);
        let warnings = flags.listen.deprecated().collect();
        let usual = defaults::of_flags();
        Self::checked(flags, configuration, &usual, Origin::Flags, warnings)
    }

    fn with_file(flags: &Flags, path: &Path) -> Result<Self, Error> {
        Self::with_text(flags, path, &decode::read(path)?)
    }

    /// Resolves the flags with this text in the configuration file at `path`, which is not looked at.
    pub fn with_text(flags: &Flags, path: &Path, text: &str) -> Result<Self, Error> {
        let File { mut configuration, mut warnings } = decode::decode(path, text)?;
        let said_by_flags = from_flags::configuration(flags).tree();
        let overruled = names::overruled_by_a_file(&said_by_flags, &defaults::of_flags().tree());
        if !overruled.is_empty() {
            let (path, overruled) = (path.display(), overruled.join(", "));
            warnings.push(format!("{overruled}: no effect beside --config, set it in {path}"));
        }
        from_flags::before_file(&mut configuration, flags);
        let settings =
            Self::checked(flags, configuration, &defaults::filled(), Origin::File(path), warnings)?;
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
        let KubeProxyConfiguration { iptables, ipvs, .. } = &configuration;
        origin.check("mode", checks::mode(&configuration.mode))?;
        checks::idle_fields(&configuration, origin)?;
        let (sync_period, min_sync_period) = checks::periods(ipvs, origin)?;
        let listen = |field, text| origin.check(field, listen::address(text));
        let node_port_addresses = origin
            .check("nodePortAddresses", checks::node_port_addresses(&configuration.node_port_addresses))?;

        let mut idle = ignored_fields::among(&configuration, usual);
        idle.extend(configuration.feature_gates.idle().map(|gate| format!("featureGates.{gate}")));
        if !idle.is_empty() {
            let idle: Vec<_> = idle.iter().map(|field| spoken(origin, field)).collect();
            warnings.push(format!("accepted without effect: {}", idle.join(", ")));
        }
        let option = origin.option("nodePortAddresses");
        if node_port_addresses.asks_for_loopback() {
            warnings.push(format!(
                "{option}: loopback addresses (localhost) have no effect here: NodePorts are never served there"
            ));
        }
        if let Some(family) = Family::BOTH.into_iter().find(|family| node_port_addresses.leaves_out(*family))
        {
            warnings.push(format!(
                "{option}: no range is {family}, so NodePorts are served at every {family} address of this node"
            ));
        }
        Ok(Self {
            node_name: node_name(flags, &configuration, origin)?,
            source: source(flags, &configuration)?,
            scheduler: origin.check("ipvs.scheduler", checks::scheduler(&ipvs.scheduler))?,
            sync_period,
            min_sync_period,
            exclude_cidrs: origin.check("ipvs.excludeCIDRs", checks::cidrs(&ipvs.exclude_cidrs))?,
            foreign: flags.foreign_virtual_servers,
            masquerade_all: iptables.masquerade_all,
            mark: origin.check(
                "iptables.masqueradeBit",
                checks::mark(iptables.masquerade_bit.unwrap_or(defaults::MASQUERADE_BIT)),
            )?,
            local_mode: checks::local_mode(&configuration, origin)?,
            pod_ranges: checks::pod_ranges(&configuration, origin)?,
            host_firewall: flags.host_firewall,
            node_port_addresses,
            bind_address: origin.check("bindAddress", checks::bind_address(&configuration.bind_address))?,
            external_ips: external_ips(flags, &configuration)?,
            drain_timeout: drain_timeout(flags)?,
            vip_binding: flags.vip_binding,
            external_forwarding_method: flags.external_forwarding_method,
            tunnel: flags.tunnel,
            strict_arp: ipvs.strict_arp,
            conntrack: kernel::conntrack(&configuration.conntrack, origin)?,
            ipvs_timeouts: kernel::ipvs_timeouts(ipvs, origin)?,
            oom_score_adj: origin.check(
                "oomScoreAdj",
                checks::oom_score_adj(configuration.oom_score_adj.unwrap_or(defaults::OOM_SCORE_ADJ)),
            )?,
            healthz_bind_address: listen("healthzBindAddress", &configuration.healthz_bind_address)?,
            metrics_bind_address: listen("metricsBindAddress", &configuration.metrics_bind_address)?,
            service_metrics: flags.listen.service_metrics,
            bind_address_hard_fail: configuration.bind_address_hard_fail,
            log: checks::logging(&configuration.logging, origin)?,
            control_socket: flags.control_socket.clone(),
            config_file: None,
            warnings,
            effective: {
                defaults::fill_zeros(&mut configuration);
                configuration
            },
        })
    }
}

/// How a field is named beside others of the same origin.
pub(super) fn spoken(origin: Origin, field: &str) -> String {
    match (origin, field.strip_prefix("featureGates.")) {
        (Origin::Flags, Some(gate)) => format!("--feature-gates={gate}"),
        (Origin::Flags, None) => origin.option(field),
        (Origin::File(_), _) => field.to_owned(),
    }
}

/// The flag goes before the file, the file before the kernel's host name.
fn node_name(flags: &Flags, configuration: &KubeProxyConfiguration, origin: Origin) -> Result<String, Error> {
    let name = &configuration.hostname_override;
    if !name.is_empty() {
        let origin = if flags.hostname_override.is_empty() { origin } else { Origin::Flags };
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

/// The feature gate switches off what the flag allows.
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
