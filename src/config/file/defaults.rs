//! What absent, null and zero values of a configuration file stand for.
//!
//! The values are kube-proxy's, but for the mode: none means `ipvs` here.

use std::net::IpAddr;

use super::v1alpha1::{FlushFrequency, KubeProxyConfiguration};
use crate::config::{GoDuration, values::listen};

pub(crate) const CONFIG_SYNC_PERIOD: GoDuration = GoDuration::from_seconds(15 * 60);
pub(crate) const CONTENT_TYPE: &str = "application/vnd.kubernetes.protobuf";
pub(crate) const BURST: i32 = 10;
pub(crate) const QPS: f32 = 5.0;
pub(crate) const CLOSE_WAIT_TIMEOUT: GoDuration = GoDuration::from_seconds(3_600);
pub(crate) const ESTABLISHED_TIMEOUT: GoDuration = GoDuration::from_seconds(24 * 3_600);
const FLUSH_FREQUENCY: GoDuration = GoDuration::from_seconds(5);
pub(crate) const HEALTHZ_PORT: u16 = 10_256;
pub(crate) const LOCALHOST_NODE_PORTS: bool = true;
pub(crate) const MASQUERADE_BIT: i32 = 14;
pub(crate) const MAX_PER_CORE: i32 = 32 * 1_024;
pub(crate) const METRICS_PORT: u16 = 10_249;
pub(crate) const CONNTRACK_MIN: i32 = 128 * 1_024;
/// The iptables and nftables modes'; in IPVS mode it is zero, unless flags alone count.
pub(crate) const MIN_SYNC_PERIOD: GoDuration = GoDuration::from_seconds(1);
pub(crate) const OOM_SCORE_ADJ: i32 = -999;
pub(crate) const SCHEDULER: &str = "rr";
pub(crate) const SYNC_PERIOD: GoDuration = GoDuration::from_seconds(30);

/// What a file leads to that says nothing.
pub(in crate::config) fn filled() -> KubeProxyConfiguration {
    let mut configuration = KubeProxyConfiguration::default();
    fill(&mut configuration);
    configuration
}

/// What flags lead to that say nothing. kube-proxy has taken the iptables mode's least time between two syncs by
/// the time it looks at the mode.
pub(in crate::config) fn of_flags() -> KubeProxyConfiguration {
    let mut configuration = filled();
    configuration.ipvs.min_sync_period = MIN_SYNC_PERIOD;
    configuration
}

/// Fills in what the file leaves to the program.
pub(in crate::config) fn fill(configuration: &mut KubeProxyConfiguration) {
    fill_addresses(configuration);
    fill_zeros(configuration);
}

/// Fills in the addresses, with their ports.
pub(in crate::config) fn fill_addresses(configuration: &mut KubeProxyConfiguration) {
    let KubeProxyConfiguration { bind_address, healthz_bind_address, metrics_bind_address, .. } =
        configuration;
    text(bind_address, "0.0.0.0");
    // As the bind address is of one family, so is where health and metrics are asked for.
    let (any, loopback) = match bind_address.parse() {
        Ok(IpAddr::V6(_)) => ("::", "::1"),
        _ => ("0.0.0.0", "127.0.0.1"),
    };
    text(healthz_bind_address, any);
    text(metrics_bind_address, loopback);
    *healthz_bind_address = listen::with_port(healthz_bind_address, HEALTHZ_PORT.into());
    *metrics_bind_address = listen::with_port(metrics_bind_address, METRICS_PORT.into());
}

/// Fills in all but the addresses, which are the only fields where empty means something if it comes from a flag.
pub(in crate::config) fn fill_zeros(configuration: &mut KubeProxyConfiguration) {
    let KubeProxyConfiguration { client_connection, conntrack, iptables, ipvs, logging, nftables, .. } =
        configuration;
    zero(&mut client_connection.burst, BURST);
    zero(&mut client_connection.qps, QPS);
    text(&mut client_connection.content_type, CONTENT_TYPE);

    conntrack.max_per_core.get_or_insert(MAX_PER_CORE);
    conntrack.min.get_or_insert(CONNTRACK_MIN);
    conntrack.tcp_close_wait_timeout.get_or_insert(CLOSE_WAIT_TIMEOUT);
    conntrack.tcp_established_timeout.get_or_insert(ESTABLISHED_TIMEOUT);

    iptables.localhost_node_ports.get_or_insert(LOCALHOST_NODE_PORTS);
    iptables.masquerade_bit.get_or_insert(MASQUERADE_BIT);
    zero(&mut iptables.sync_period, SYNC_PERIOD);
    zero(&mut iptables.min_sync_period, MIN_SYNC_PERIOD);
    text(&mut ipvs.scheduler, SCHEDULER);
    zero(&mut ipvs.sync_period, SYNC_PERIOD);
    nftables.masquerade_bit.get_or_insert(MASQUERADE_BIT);
    zero(&mut nftables.sync_period, SYNC_PERIOD);
    zero(&mut nftables.min_sync_period, MIN_SYNC_PERIOD);

    text(&mut logging.format, "text");
    zero(&mut logging.flush_frequency, FlushFrequency(FLUSH_FREQUENCY));

    zero(&mut configuration.config_sync_period, CONFIG_SYNC_PERIOD);
    text(&mut configuration.detect_local_mode, "ClusterCIDR");
    text(&mut configuration.mode, "ipvs");
    configuration.oom_score_adj.get_or_insert(OOM_SCORE_ADJ);
}

fn text(value: &mut String, default: &str) {
    if value.is_empty() {
        default.clone_into(value);
    }
}

fn zero<T: Default + PartialEq>(value: &mut T, default: T) {
    if *value == T::default() {
        *value = default;
    }
}
