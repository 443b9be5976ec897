//! How Services are served: what flags and file say about it.

use std::fs;

use ipnet::IpNet;
use ipvs::{Family, Tunnel, TunnelKind};
use netfilter::tunnel::GUE_PORT;
use service::{ByDistance, ExternalIps, NodePortAddresses, Options};

use super::Origin;
use crate::config::{Error, Flags, KubeProxyConfiguration, Problem, checks};

/// The options of all Services, as if no pod were recognised and no other node asked this one.
pub(super) fn options(
    flags: &Flags,
    configuration: &KubeProxyConfiguration,
    origin: Origin,
) -> Result<Options, Error> {
    let node_name = node_name(flags, configuration, origin)?;
    let scheduler = configuration.ipvs.scheduler.parse().map_err(Problem::from);
    let node_port_addresses = checks::node_port_addresses(&configuration.node_port_addresses);
    let pod_ranges = checks::pod_ranges(configuration, origin)?;
    let is_any_untracked = !flags.untracked_services.is_empty() && !configuration.iptables.masquerade_all;
    Ok(Options {
        scheduler: origin.check("ipvs.scheduler", scheduler)?,
        distance_weights: match flags.weights_by_distance {
            ByDistance::Off => None,
            ByDistance::By(weights) => Some(weights),
        },
        ejection: flags.eject,
        node_port_addresses: origin.check("nodePortAddresses", node_port_addresses)?,
        bind_address: origin.check("bindAddress", checks::bind_address(&configuration.bind_address))?,
        external_ips: external_ips(flags, configuration)?,
        external_forwarding: flags.external_forwarding_method,
        tunnel: match flags.tunnel {
            TunnelKind::Gue => Tunnel::new(TunnelKind::Gue).port(GUE_PORT),
            other => Tunnel::new(other),
        },
        untracked_services: flags.untracked_services,
        untracked_pods: if is_any_untracked { one_per_family(&pod_ranges) } else { Vec::new() },
        pod_ranges,
        watches_nodes: true,
        ..Options::new(node_name)
    })
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

/// The external IPs that are served; the feature gate switches off what the flag allows.
fn external_ips(flags: &Flags, configuration: &KubeProxyConfiguration) -> Result<ExternalIps, Error> {
    let ranges = Origin::Flags.check("--external-ip-policy", checks::cidrs(&flags.external_ip_policy))?;
    if !configuration.feature_gates.external_ips() {
        return Ok(ExternalIps::Off);
    }
    Ok(if ranges.is_empty() { ExternalIps::Unowned } else { ExternalIps::In(ranges) })
}

/// The first range of each family.
fn one_per_family(ranges: &[IpNet]) -> Vec<IpNet> {
    let first = |family| ranges.iter().find(|range| Family::from(range.addr()) == family);
    Family::BOTH.into_iter().filter_map(first).copied().collect()
}

/// The warnings about addresses for NodePorts.
pub(super) fn doubts(addresses: &NodePortAddresses, origin: Origin) -> impl Iterator<Item = String> {
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
