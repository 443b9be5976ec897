//! From the flags to the configuration that a file with the same settings would have.

use super::{
    FeatureGates, KubeProxyConfiguration,
    file::{
        defaults,
        v1alpha1::{
            ClientConnection, Conntrack, DetectLocal, FlushFrequency, Iptables, Ipvs, Logging, Quantity,
        },
    },
    values::listen,
};
use crate::cli::{Flags, IgnoredFlags, KernelFlags, ListenFlags};

/// The configuration without a file.
///
/// A zero means zero here, since every flag has its default already.
pub(super) fn configuration(flags: &Flags) -> KubeProxyConfiguration {
    let usual = defaults::filled();
    let given = |flag: &String, usual: String| if flag.is_empty() { usual } else { flag.clone() };
    let Flags { idle, kernel, .. } = flags;
    let (healthz_bind_address, metrics_bind_address) = addresses(&flags.listen);
    let mut configuration = KubeProxyConfiguration {
        bind_address: given(&flags.bind_address, usual.bind_address),
        bind_address_hard_fail: flags.listen.bind_address_hard_fail,
        client_connection: ClientConnection {
            burst: idle.kube_api_burst,
            content_type: idle.kube_api_content_type.clone(),
            kubeconfig: flags.kubeconfig.clone(),
            qps: idle.kube_api_qps,
            ..usual.client_connection
        },
        cluster_cidr: flags.cluster_cidr.clone(),
        config_sync_period: idle.config_sync_period,
        conntrack: conntrack(kernel),
        detect_local: DetectLocal {
            bridge_interface: flags.pod_bridge_interface.clone(),
            interface_name_prefix: flags.pod_interface_name_prefix.clone(),
        },
        detect_local_mode: given(&flags.detect_local_mode, usual.detect_local_mode),
        enable_profiling: idle.profiling,
        feature_gates: FeatureGates::merged(&flags.feature_gates),
        healthz_bind_address,
        iptables: iptables(flags),
        ipvs: ipvs(flags),
        metrics_bind_address,
        mode: given(&flags.proxy_mode, usual.mode),
        node_port_addresses: listed(&flags.nodeport_addresses),
        oom_score_adj: Some(kernel.oom_score_adj),
        show_hidden_metrics_for_version: idle.show_hidden_metrics_for_version.clone(),
        ..usual
    };
    before_file(&mut configuration, flags);
    configuration
}

/// Puts in the flags that count even if there is a file.
pub(super) fn before_file(configuration: &mut KubeProxyConfiguration, flags: &Flags) {
    if !flags.hostname_override.is_empty() {
        configuration.hostname_override.clone_from(&flags.hostname_override);
    }
    logging(&mut configuration.logging, flags);
}

fn logging(logging: &mut Logging, flags: &Flags) {
    fn put<T>(value: &mut T, given: Option<T>) {
        if let Some(given) = given {
            *value = given;
        }
    }
    let size = |given: &Option<String>| given.clone().map(Quantity);
    let IgnoredFlags { log_flush_frequency, vmodule, .. } = &flags.idle;
    put(&mut logging.format, flags.logging_format.map(|format| format.name().to_owned()));
    put(&mut logging.verbosity, flags.v);
    put(&mut logging.vmodule, vmodule.clone().map(|modules| modules.0));
    put(&mut logging.flush_frequency, log_flush_frequency.map(FlushFrequency));
    let (json, text) = (&mut logging.options.json, &mut logging.options.text);
    put(&mut json.info_buffer_size, size(&flags.idle.log_json_info_buffer_size));
    put(&mut json.split_stream, flags.idle.log_json_split_stream);
    put(&mut text.info_buffer_size, size(&flags.idle.log_text_info_buffer_size));
    put(&mut text.split_stream, flags.idle.log_text_split_stream);
}

/// The addresses at which health and metrics are served. As with kube-proxy, a port of its own counts only
/// for an address without one, which the defaults are not, and 0 means nowhere.
fn addresses(flags: &ListenFlags) -> (String, String) {
    let address = |address: &str, port: Option<i32>, usual: u16| match port {
        Some(0) => String::new(),
        port => listen::with_port(address, port.unwrap_or(usual.into())),
    };
    (
        address(&flags.healthz_bind_address, flags.healthz_port, defaults::HEALTHZ_PORT),
        address(&flags.metrics_bind_address, flags.metrics_port, defaults::METRICS_PORT),
    )
}

fn conntrack(flags: &KernelFlags) -> Conntrack {
    Conntrack {
        max_per_core: Some(flags.conntrack_max_per_core),
        min: Some(flags.conntrack_min),
        tcp_be_liberal: flags.conntrack_tcp_be_liberal,
        tcp_close_wait_timeout: Some(flags.conntrack_tcp_timeout_close_wait),
        tcp_established_timeout: Some(flags.conntrack_tcp_timeout_established),
        udp_stream_timeout: flags.conntrack_udp_timeout_stream,
        udp_timeout: flags.conntrack_udp_timeout,
    }
}

fn iptables(flags: &Flags) -> Iptables {
    Iptables {
        localhost_node_ports: Some(flags.idle.iptables_localhost_nodeports),
        masquerade_all: flags.masquerade_all,
        masquerade_bit: Some(flags.iptables_masquerade_bit),
        min_sync_period: flags.idle.iptables_min_sync_period,
        sync_period: flags.idle.iptables_sync_period,
    }
}

/// A list that is given as empty has no element, and not an empty one.
fn listed(given: &[String]) -> Vec<String> {
    given.iter().filter(|element| !element.is_empty()).cloned().collect()
}

fn ipvs(flags: &Flags) -> Ipvs {
    Ipvs {
        exclude_cidrs: listed(&flags.ipvs_exclude_cidrs),
        min_sync_period: flags.ipvs_min_sync_period,
        scheduler: flags.ipvs_scheduler.clone(),
        strict_arp: flags.ipvs_strict_arp,
        sync_period: flags.ipvs_sync_period,
        tcp_fin_timeout: flags.kernel.ipvs_tcpfin_timeout,
        tcp_timeout: flags.kernel.ipvs_tcp_timeout,
        udp_timeout: flags.kernel.ipvs_udp_timeout,
    }
}
