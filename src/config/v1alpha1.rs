//! `KubeProxyConfiguration`, version `kubeproxy.config.k8s.io/v1alpha1`: the shape of the file.
//!
//! The fields are in the order of their names, as kube-proxy and kubeadm write them. What each does, and what
//! its zero means, is in its row of [`OPTIONS`](super::options::OPTIONS).

use serde::{Deserialize, Deserializer, Serialize};

use super::values::{FeatureGates, FlushFrequency, GoDuration, ListenAddress, Quantity, TcpTimeout};

/// Defines objects of the file. A field that is absent or null has its type's zero value; it is an `Option`
/// where a zero in the file has a meaning of its own.
macro_rules! objects {
    ($(
        $(#[$object:meta])*
        $visibility:vis struct $name:ident { $($(#[$attribute:meta])* $field:ident: $type:ty,)* }
    )*) => {$(
        $(#[$object])*
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        $visibility struct $name {
            $(
                #[serde(deserialize_with = "or_zero")]
                $(#[$attribute])*
                pub(super) $field: $type,
            )*
        }
    )*};
}

fn or_zero<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(deserializer: D) -> Result<T, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

objects! {
    /// The configuration of kube-proxy: what its file contains, or would contain instead of the flags.
    ///
    /// It serialises to the file's own form. As part of the [`Settings`](super::Settings) every default is
    /// filled in.
    pub struct KubeProxyConfiguration {
        api_version: ApiVersion,
        bind_address: String,
        bind_address_hard_fail: bool,
        client_connection: ClientConnection,
        #[serde(rename = "clusterCIDR")]
        cluster_cidr: String,
        config_sync_period: GoDuration,
        conntrack: Conntrack,
        detect_local: DetectLocal,
        detect_local_mode: String,
        enable_profiling: bool,
        feature_gates: FeatureGates,
        healthz_bind_address: ListenAddress,
        hostname_override: String,
        iptables: Iptables,
        ipvs: Ipvs,
        kind: Kind,
        logging: Logging,
        metrics_bind_address: ListenAddress,
        mode: String,
        nftables: Nftables,
        node_port_addresses: Vec<String>,
        oom_score_adj: Option<i32>,
        port_range: String,
        show_hidden_metrics_for_version: String,
        windows_run_as_service: bool,
        winkernel: Winkernel,
    }

    /// How the API server is reached.
    pub(super) struct ClientConnection {
        accept_content_types: String,
        burst: i32,
        content_type: String,
        kubeconfig: String,
        qps: f32,
    }

    /// Parameters of connection tracking. A zero leaves the kernel's value.
    pub(super) struct Conntrack {
        max_per_core: Option<i32>,
        min: Option<i32>,
        tcp_be_liberal: bool,
        tcp_close_wait_timeout: Option<GoDuration>,
        tcp_established_timeout: Option<GoDuration>,
        udp_stream_timeout: GoDuration,
        udp_timeout: GoDuration,
    }

    /// What `detectLocalMode` needs besides.
    pub(super) struct DetectLocal {
        bridge_interface: String,
        interface_name_prefix: String,
    }

    /// The iptables mode's part, of which IPVS mode reads what masquerades.
    pub(super) struct Iptables {
        localhost_node_ports: Option<bool>,
        masquerade_all: bool,
        masquerade_bit: Option<i32>,
        min_sync_period: GoDuration,
        sync_period: GoDuration,
    }

    /// The IPVS mode's part. A timeout of zero leaves the kernel's value.
    pub(super) struct Ipvs {
        #[serde(rename = "excludeCIDRs")]
        exclude_cidrs: Vec<String>,
        min_sync_period: GoDuration,
        scheduler: String,
        #[serde(rename = "strictARP")]
        strict_arp: bool,
        sync_period: GoDuration,
        tcp_fin_timeout: GoDuration,
        tcp_timeout: TcpTimeout,
        udp_timeout: GoDuration,
    }

    /// What is logged, and how.
    pub(super) struct Logging {
        flush_frequency: FlushFrequency,
        format: String,
        options: LogOptions,
        verbosity: u32,
        vmodule: Vec<VModule>,
    }

    /// Options of both log formats.
    pub(super) struct LogOptions {
        json: OutputRouting,
        text: OutputRouting,
    }

    /// Where a log format is written.
    pub(super) struct OutputRouting {
        info_buffer_size: Quantity,
        split_stream: bool,
    }

    /// A log verbosity for some source files of kube-proxy.
    pub(super) struct VModule {
        file_pattern: String,
        verbosity: u32,
    }

    /// The nftables mode's part.
    pub(super) struct Nftables {
        masquerade_all: bool,
        masquerade_bit: Option<i32>,
        min_sync_period: GoDuration,
        sync_period: GoDuration,
    }

    /// The part of the kernelspace mode of Windows.
    pub(super) struct Winkernel {
        #[serde(rename = "enableDSR")]
        enable_dsr: bool,
        forward_health_check_vip: bool,
        network_name: String,
        root_hns_endpoint_name: String,
        source_vip: String,
    }
}

impl KubeProxyConfiguration {
    /// `bindAddress`: this node's own address, or all of a family.
    pub fn bind_address(&self) -> &str {
        &self.bind_address
    }

    /// The feature gates that were given, and whether they are on.
    pub fn feature_gates(&self) -> impl Iterator<Item = (&str, bool)> {
        self.feature_gates.given()
    }
}

impl VModule {
    /// A list as the flag `--vmodule` has it: `PATTERN=N,...`.
    pub(super) fn list(text: &str) -> Result<Vec<Self>, String> {
        let module = |text: &str| {
            let (pattern, verbosity) = text.split_once('=')?;
            Some(Self { file_pattern: pattern.to_owned(), verbosity: verbosity.parse().ok()? })
        };
        let modules = text.split(',').filter(|module| !module.is_empty());
        modules
            .map(|text| module(text).ok_or_else(|| format!("invalid value {text:?}: expected PATTERN=N")))
            .collect()
    }
}

/// The only version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum ApiVersion {
    #[default]
    #[serde(rename = "kubeproxy.config.k8s.io/v1alpha1")]
    V1Alpha1,
}

/// The only kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Kind {
    #[default]
    KubeProxyConfiguration,
}
