//! `KubeProxyConfiguration`, version `kubeproxy.config.k8s.io/v1alpha1`, field by field.
//!
//! The fields stand in the order of their names, as kube-proxy and kubeadm write them. A field may be absent or
//! null; both are the zero value, or `None` where a zero means something of its own. What the zeros stand for is
//! in [`super::defaults`], what a value may be in [`super::validate`].

use serde::{Deserialize, Deserializer, Serialize};

use super::{FeatureGates, GoDuration};

/// The configuration of kube-proxy: what its file says, or would say if it said what the flags say.
///
/// It serialises to the file's own form. As part of the [`Settings`](super::Settings) every default is filled in.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct KubeProxyConfiguration {
    pub(super) api_version: ApiVersion,
    #[serde(deserialize_with = "or_zero")]
    pub(super) bind_address: String,
    #[serde(deserialize_with = "or_zero")]
    pub(super) bind_address_hard_fail: bool,
    #[serde(deserialize_with = "or_zero")]
    pub(super) client_connection: ClientConnection,
    #[serde(deserialize_with = "or_zero", rename = "clusterCIDR")]
    pub(super) cluster_cidr: String,
    #[serde(deserialize_with = "or_zero")]
    pub(super) config_sync_period: GoDuration,
    #[serde(deserialize_with = "or_zero")]
    pub(super) conntrack: Conntrack,
    #[serde(deserialize_with = "or_zero")]
    pub(super) detect_local: DetectLocal,
    #[serde(deserialize_with = "or_zero")]
    pub(super) detect_local_mode: String,
    #[serde(deserialize_with = "or_zero")]
    pub(super) enable_profiling: bool,
    #[serde(deserialize_with = "or_zero")]
    pub(super) feature_gates: FeatureGates,
    #[serde(deserialize_with = "or_zero")]
    pub(super) healthz_bind_address: String,
    #[serde(deserialize_with = "or_zero")]
    pub(super) hostname_override: String,
    #[serde(deserialize_with = "or_zero")]
    pub(super) iptables: Iptables,
    #[serde(deserialize_with = "or_zero")]
    pub(super) ipvs: Ipvs,
    pub(super) kind: Kind,
    #[serde(deserialize_with = "or_zero")]
    pub(super) logging: Logging,
    #[serde(deserialize_with = "or_zero")]
    pub(super) metrics_bind_address: String,
    #[serde(deserialize_with = "or_zero")]
    pub(super) mode: String,
    #[serde(deserialize_with = "or_zero")]
    pub(super) nftables: Nftables,
    #[serde(deserialize_with = "or_zero")]
    pub(super) node_port_addresses: Vec<String>,
    pub(super) oom_score_adj: Option<i32>,
    #[serde(deserialize_with = "or_zero")]
    pub(super) port_range: String,
    #[serde(deserialize_with = "or_zero")]
    pub(super) show_hidden_metrics_for_version: String,
    #[serde(deserialize_with = "or_zero")]
    pub(super) windows_run_as_service: bool,
    #[serde(deserialize_with = "or_zero")]
    pub(super) winkernel: Winkernel,
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
pub(super) enum ApiVersion {
    #[default]
    #[serde(rename = "kubeproxy.config.k8s.io/v1alpha1")]
    V1Alpha1,
}

/// The one kind there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Kind {
    #[default]
    KubeProxyConfiguration,
}

/// How the API server is reached.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ClientConnection {
    #[serde(deserialize_with = "or_zero")]
    pub(super) accept_content_types: String,
    #[serde(deserialize_with = "or_zero")]
    pub(super) burst: i32,
    #[serde(deserialize_with = "or_zero")]
    pub(super) content_type: String,
    #[serde(deserialize_with = "or_zero")]
    pub(super) kubeconfig: String,
    #[serde(deserialize_with = "or_zero")]
    pub(super) qps: f32,
}

/// Parameters of connection tracking. A zero leaves the kernel's value, where none is given the default counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Conntrack {
    pub(super) max_per_core: Option<i32>,
    pub(super) min: Option<i32>,
    #[serde(deserialize_with = "or_zero")]
    pub(super) tcp_be_liberal: bool,
    pub(super) tcp_close_wait_timeout: Option<GoDuration>,
    pub(super) tcp_established_timeout: Option<GoDuration>,
    #[serde(deserialize_with = "or_zero")]
    pub(super) udp_stream_timeout: GoDuration,
    #[serde(deserialize_with = "or_zero")]
    pub(super) udp_timeout: GoDuration,
}

/// What `detectLocalMode` looks at.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct DetectLocal {
    #[serde(deserialize_with = "or_zero")]
    pub(super) bridge_interface: String,
    #[serde(deserialize_with = "or_zero")]
    pub(super) interface_name_prefix: String,
}

/// The iptables mode's part, of which IPVS mode reads what masquerades.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Iptables {
    pub(super) localhost_node_ports: Option<bool>,
    #[serde(deserialize_with = "or_zero")]
    pub(super) masquerade_all: bool,
    pub(super) masquerade_bit: Option<i32>,
    #[serde(deserialize_with = "or_zero")]
    pub(super) min_sync_period: GoDuration,
    #[serde(deserialize_with = "or_zero")]
    pub(super) sync_period: GoDuration,
}

/// The IPVS mode's part. A timeout of zero leaves the kernel's value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Ipvs {
    #[serde(deserialize_with = "or_zero", rename = "excludeCIDRs")]
    pub(super) exclude_cidrs: Vec<String>,
    #[serde(deserialize_with = "or_zero")]
    pub(super) min_sync_period: GoDuration,
    #[serde(deserialize_with = "or_zero")]
    pub(super) scheduler: String,
    #[serde(deserialize_with = "or_zero", rename = "strictARP")]
    pub(super) strict_arp: bool,
    #[serde(deserialize_with = "or_zero")]
    pub(super) sync_period: GoDuration,
    #[serde(deserialize_with = "or_zero")]
    pub(super) tcp_fin_timeout: GoDuration,
    #[serde(deserialize_with = "or_zero")]
    pub(super) tcp_timeout: GoDuration,
    #[serde(deserialize_with = "or_zero")]
    pub(super) udp_timeout: GoDuration,
}

/// What is logged, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Logging {
    #[serde(deserialize_with = "or_zero")]
    pub(super) flush_frequency: FlushFrequency,
    #[serde(deserialize_with = "or_zero")]
    pub(super) format: String,
    #[serde(deserialize_with = "or_zero")]
    pub(super) options: LogOptions,
    #[serde(deserialize_with = "or_zero")]
    pub(super) verbosity: u32,
    #[serde(deserialize_with = "or_zero")]
    pub(super) vmodule: Vec<VModule>,
}

/// Options of both forms of log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct LogOptions {
    #[serde(deserialize_with = "or_zero")]
    pub(super) json: OutputRouting,
    #[serde(deserialize_with = "or_zero")]
    pub(super) text: OutputRouting,
}

/// Where a form of log writes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct OutputRouting {
    #[serde(deserialize_with = "or_zero")]
    pub(super) info_buffer_size: Quantity,
    #[serde(deserialize_with = "or_zero")]
    pub(super) split_stream: bool,
}

/// A verbosity of its own for some source files of kube-proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct VModule {
    #[serde(deserialize_with = "or_zero")]
    pub(super) file_pattern: String,
    #[serde(deserialize_with = "or_zero")]
    pub(super) verbosity: u32,
}

/// The nftables mode's part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Nftables {
    #[serde(deserialize_with = "or_zero")]
    pub(super) masquerade_all: bool,
    pub(super) masquerade_bit: Option<i32>,
    #[serde(deserialize_with = "or_zero")]
    pub(super) min_sync_period: GoDuration,
    #[serde(deserialize_with = "or_zero")]
    pub(super) sync_period: GoDuration,
}

/// The part of the kernelspace mode of Windows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Winkernel {
    #[serde(deserialize_with = "or_zero", rename = "enableDSR")]
    pub(super) enable_dsr: bool,
    #[serde(deserialize_with = "or_zero")]
    pub(super) forward_health_check_vip: bool,
    #[serde(deserialize_with = "or_zero")]
    pub(super) network_name: String,
    #[serde(deserialize_with = "or_zero")]
    pub(super) root_hns_endpoint_name: String,
    #[serde(deserialize_with = "or_zero")]
    pub(super) source_vip: String,
}

fn or_zero<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(deserializer: D) -> Result<T, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// A duration that older files give as a number of nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub(super) struct FlushFrequency(pub(super) GoDuration);

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
pub(super) struct Quantity(pub(super) String);

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
