//! `KubeProxyConfiguration`, version `kubeproxy.config.k8s.io/v1alpha1`, field by field.
//!
//! The fields stand in the order of their names, as kube-proxy and kubeadm write them. A field may be absent or
//! null; both are the zero value, or `None` where a zero means something of its own. What the zeros stand for is
//! in [`super::defaults`], what a value may be in [`super::checks`].

use serde::{Deserialize, Deserializer, Serialize};

use crate::config::{FeatureGates, GoDuration};

/// The configuration of kube-proxy: what its file says, or would say if it said what the flags say.
///
/// It serialises to the file's own form. As part of the [`Settings`](super::Settings) every default is filled in.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct KubeProxyConfiguration {
    pub(in crate::config) api_version: ApiVersion,
    #[serde(deserialize_with = "or_zero")]
    pub(in crate::config) bind_address: String,
    #[serde(deserialize_with = "or_zero")]
    pub(in crate::config) bind_address_hard_fail: bool,
    #[serde(deserialize_with = "or_zero")]
    pub(in crate::config) client_connection: ClientConnection,
    #[serde(deserialize_with = "or_zero", rename = "clusterCIDR")]
    pub(in crate::config) cluster_cidr: String,
    #[serde(deserialize_with = "or_zero")]
    pub(in crate::config) config_sync_period: GoDuration,
    #[serde(deserialize_with = "or_zero")]
    pub(in crate::config) conntrack: Conntrack,
    #[serde(deserialize_with = "or_zero")]
    pub(in crate::config) detect_local: DetectLocal,
    #[serde(deserialize_with = "or_zero")]
    pub(in crate::config) detect_local_mode: String,
    #[serde(deserialize_with = "or_zero")]
    pub(in crate::config) enable_profiling: bool,
    #[serde(deserialize_with = "or_zero")]
    pub(in crate::config) feature_gates: FeatureGates,
    #[serde(deserialize_with = "or_zero")]
    pub(in crate::config) healthz_bind_address: String,
    #[serde(deserialize_with = "or_zero")]
    pub(in crate::config) hostname_override: String,
    #[serde(deserialize_with = "or_zero")]
    pub(in crate::config) iptables: Iptables,
    #[serde(deserialize_with = "or_zero")]
    pub(in crate::config) ipvs: Ipvs,
    pub(in crate::config) kind: Kind,
    #[serde(deserialize_with = "or_zero")]
    pub(in crate::config) logging: Logging,
    #[serde(deserialize_with = "or_zero")]
    pub(in crate::config) metrics_bind_address: String,
    #[serde(deserialize_with = "or_zero")]
    pub(in crate::config) mode: String,
    #[serde(deserialize_with = "or_zero")]
    pub(in crate::config) nftables: Nftables,
    #[serde(deserialize_with = "or_zero")]
    pub(in crate::config) node_port_addresses: Vec<String>,
    pub(in crate::config) oom_score_adj: Option<i32>,
    #[serde(deserialize_with = "or_zero")]
    pub(in crate::config) port_range: String,
    #[serde(deserialize_with = "or_zero")]
    pub(in crate::config) show_hidden_metrics_for_version: String,
    #[serde(deserialize_with = "or_zero")]
    pub(in crate::config) windows_run_as_service: bool,
    #[serde(deserialize_with = "or_zero")]
    pub(in crate::config) winkernel: Winkernel,
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

/// The one version there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::config) enum ApiVersion {
    #[default]
    #[serde(rename = "kubeproxy.config.k8s.io/v1alpha1")]
    V1Alpha1,
}

/// The one kind there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::config) enum Kind {
    #[default]
    KubeProxyConfiguration,
}

/// How the API server is reached.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(in crate::config) struct ClientConnection {
    #[serde(deserialize_with = "or_zero")]
    pub(in crate::config) accept_content_types: String,
    #[serde(deserialize_with = "or_zero")]
    pub(in crate::config) burst: i32,
    #[serde(deserialize_with = "or_zero")]
    pub(in crate::config) content_type: String,
    #[serde(deserialize_with = "or_zero")]
    pub(in crate::config) kubeconfig: String,
    #[serde(deserialize_with = "or_zero")]
    pub(in crate::config) qps: f32,
}

/// Parameters of connection tracking. A zero leaves the kernel's value, where none is given the default counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(in crate::config) struct Conntrack {
    pub(in crate::config) max_per_core: Option<i32>,
    pub(in crate::config) min: Option<i32>,
    #[serde(deserialize_with = "or_zero")]
    pub(in crate::config) tcp_be_liberal: bool,
    pub(in crate::config) tcp_close_wait_timeout: Option<GoDuration>,
    pub(in crate::config) tcp_established_timeout: Option<GoDuration>,
    #[serde(deserialize_with = "or_zero")]
    pub(in crate::config) udp_stream_timeout: GoDuration,
    #[serde(deserialize_with = "or_zero")]
    pub(in crate::config) udp_timeout: GoDuration,
}

/// What `detectLocalMode` looks at.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(in crate::config) struct DetectLocal {
    #[serde(deserialize_with = "or_zero")]
    pub(in crate::config) bridge_interface: String,
    #[serde(deserialize_with = "or_zero")]
    pub(in crate::config) interface_name_prefix: String,
}

/// The iptables mode's part, of which IPVS mode reads what masquerades.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(in crate::config) struct Iptables {
    pub(in crate::config) localhost_node_ports: Option<bool>,
    #[serde(deserialize_with = "or_zero")]
    pub(in crate::config) masquerade_all: bool,
    pub(in crate::config) masquerade_bit: Option<i32>,
    #[serde(deserialize_with = "or_zero")]
    pub(in crate::config) min_sync_period: GoDuration,
    #[serde(deserialize_with = "or_zero")]
    pub(in crate::config) sync_period: GoDuration,
}

/// The IPVS mode's part. A timeout of zero leaves the kernel's value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(in crate::config) struct Ipvs {
    #[serde(deserialize_with = "or_zero", rename = "excludeCIDRs")]
    pub(in crate::config) exclude_cidrs: Vec<String>,
    #[serde(deserialize_with = "or_zero")]
    pub(in crate::config) min_sync_period: GoDuration,
    #[serde(deserialize_with = "or_zero")]
    pub(in crate::config) scheduler: String,
    #[serde(deserialize_with = "or_zero", rename = "strictARP")]
    pub(in crate::config) strict_arp: bool,
    #[serde(deserialize_with = "or_zero")]
    pub(in crate::config) sync_period: GoDuration,
    #[serde(deserialize_with = "or_zero")]
    pub(in crate::config) tcp_fin_timeout: GoDuration,
    #[serde(deserialize_with = "or_zero")]
    pub(in crate::config) tcp_timeout: GoDuration,
    #[serde(deserialize_with = "or_zero")]
    pub(in crate::config) udp_timeout: GoDuration,
}

/// What is logged, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(in crate::config) struct Logging {
    #[serde(deserialize_with = "or_zero")]
    pub(in crate::config) flush_frequency: FlushFrequency,
    #[serde(deserialize_with = "or_zero")]
    pub(in crate::config) format: String,
    #[serde(deserialize_with = "or_zero")]
    pub(in crate::config) options: LogOptions,
    #[serde(deserialize_with = "or_zero")]
    pub(in crate::config) verbosity: u32,
    #[serde(deserialize_with = "or_zero")]
    pub(in crate::config) vmodule: Vec<VModule>,
}

/// Options of both forms of log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(in crate::config) struct LogOptions {
    #[serde(deserialize_with = "or_zero")]
    pub(in crate::config) json: OutputRouting,
    #[serde(deserialize_with = "or_zero")]
    pub(in crate::config) text: OutputRouting,
}

/// Where a form of log writes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(in crate::config) struct OutputRouting {
    #[serde(deserialize_with = "or_zero")]
    pub(in crate::config) info_buffer_size: Quantity,
    #[serde(deserialize_with = "or_zero")]
    pub(in crate::config) split_stream: bool,
}

/// A verbosity of its own for some source files of kube-proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(in crate::config) struct VModule {
    #[serde(deserialize_with = "or_zero")]
    pub(in crate::config) file_pattern: String,
    #[serde(deserialize_with = "or_zero")]
    pub(in crate::config) verbosity: u32,
}

/// The nftables mode's part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(in crate::config) struct Nftables {
    #[serde(deserialize_with = "or_zero")]
    pub(in crate::config) masquerade_all: bool,
    pub(in crate::config) masquerade_bit: Option<i32>,
    #[serde(deserialize_with = "or_zero")]
    pub(in crate::config) min_sync_period: GoDuration,
    #[serde(deserialize_with = "or_zero")]
    pub(in crate::config) sync_period: GoDuration,
}

/// The part of the kernelspace mode of Windows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(in crate::config) struct Winkernel {
    #[serde(deserialize_with = "or_zero", rename = "enableDSR")]
    pub(in crate::config) enable_dsr: bool,
    #[serde(deserialize_with = "or_zero")]
    pub(in crate::config) forward_health_check_vip: bool,
    #[serde(deserialize_with = "or_zero")]
    pub(in crate::config) network_name: String,
    #[serde(deserialize_with = "or_zero")]
    pub(in crate::config) root_hns_endpoint_name: String,
    #[serde(deserialize_with = "or_zero")]
    pub(in crate::config) source_vip: String,
}

fn or_zero<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(deserializer: D) -> Result<T, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// A duration that older files give as a number of nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub(in crate::config) struct FlushFrequency(pub(in crate::config) GoDuration);

impl<'de> Deserialize<'de> for FlushFrequency {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "expected a duration such as 5s, or a number of nanoseconds")]
        enum Given {
            Duration(GoDuration),
            Nanoseconds(i64),
        }

        Ok(Self(match Given::deserialize(deserializer)? {
            Given::Duration(duration) => duration,
            Given::Nanoseconds(number) => GoDuration::from_nanoseconds(number),
        }))
    }
}

/// A size such as `64Ki`, or a number. Nothing here has a buffer of that size, so it is kept as it is written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub(in crate::config) struct Quantity(pub(in crate::config) String);

impl Default for Quantity {
    fn default() -> Self {
        Self("0".to_owned())
    }
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "expected a size such as 64Ki")]
        enum Given {
            Text(String),
            Number(i64),
        }

        Ok(Self(match Given::deserialize(deserializer)? {
            Given::Text(text) => text,
            Given::Number(number) => number.to_string(),
        }))
    }
}
