//! The options that kube-proxy has too: `KubeProxyConfiguration`, version `kubeproxy.config.k8s.io/v1alpha1`, which is the
//! shape of the file, and a row for each of its fields.
//!
//! The fields are in the order of their names, as kube-proxy and kubeadm write them; the rows in that of `--help`.
//! The flag, the default, what is ignored, the file that `--write-config-to` writes and the table of fields
//! in docs/flags.md come from these rows. The flags that only kube-ipvs has are in [`Flags`](super::Flags).

use serde::{Deserialize, Deserializer, Serialize};

use super::{
    checks,
    file::{ApiVersion, Kind},
    option::{At, Opt, at},
    values::{FeatureGates, FlushFrequency, GoDuration, ListenAddress, Quantity, TcpTimeout},
};

const BURST: &str = "few requests are sent, so no limit is needed";
const ENCODING: &str = "the API server answers in protobuf, or else in JSON";
const LOG: &str = "the log is written to standard error at once";
const OTHER_MODE: &str = "it is for another mode";
const WINDOWS: &str = "it is for Windows";

/// Every field of the file. `--help` has the flags in this order, and warnings too.
#[rustfmt::skip]
pub(super) static OPTIONS: &[Opt] = &[
    // Where things are.
    Opt::new("clientConnection.kubeconfig", at!(client_connection.kubeconfig))
        .flag("kubeconfig", "FILE",
            "Kubeconfig of the API server; without it and --master, the pod's service account is used"),
    Opt::new("hostnameOverride", at!(hostname_override))
        .flag("hostname-override", "NAME", "Name of this node, if not the host name").overrides_file(),

    // How Services are served.
    Opt::new("mode", at!(mode = "ipvs".to_owned(); |mode| checks::mode(mode)))
        .flag("proxy-mode", "MODE", "Proxy mode; must be ipvs"),
    Opt::new("ipvs.scheduler", at!(ipvs.scheduler = "rr".to_owned()))
        .flag("ipvs-scheduler", "NAME", "Scheduler of every virtual server"),
    Opt::new("ipvs.syncPeriod", at!(ipvs.sync_period = seconds(30)))
        .flag("ipvs-sync-period", "DURATION",
            "Interval at which everything is compared with the kernel and repaired"),
    Opt::new("ipvs.minSyncPeriod", at!(ipvs.min_sync_period))
        .flag("ipvs-min-sync-period", "DURATION",
            "Minimum time from the end of one sync to the next; repairs do not wait, and periodic syncs that write nothing do not count"),
    Opt::new("ipvs.excludeCIDRs", at!(ipvs.exclude_cidrs))
        .flag("ipvs-exclude-cidrs", "CIDRS", "Address ranges in which virtual servers are never removed"),
    Opt::new("ipvs.strictARP", at!(ipvs.strict_arp))
        .flag("ipvs-strict-arp", "BOOL", "Answer ARP for an address only on the interface that has it"),
    Opt::new("nodePortAddresses", at!(node_port_addresses))
        .flag("nodeport-addresses", "CIDRS",
            "Address ranges at which NodePorts are served; primary stands for the node IPs"),
    Opt::new("bindAddress", at!(bind_address = "0.0.0.0".to_owned()))
        .flag("bind-address", "IP",
            "Address that --nodeport-addresses=primary stands for in this address's IP family, in place of the \
             Node's IP; with 0.0.0.0 or :: the Node's IP is used"),
    Opt::new("featureGates", at!(feature_gates))
        .flag("feature-gates", "NAME=BOOL,...",
            "Feature gates of Kubernetes; AllowServiceExternalIPs=false disables external IPs"),

    // Whose source address is replaced.
    Opt::new("clusterCIDR", at!(cluster_cidr))
        .flag("cluster-cidr", "CIDRS", "Address ranges of the pods, at most one per family"),
    Opt::new("detectLocalMode", at!(detect_local_mode = "ClusterCIDR".to_owned()))
        .flag("detect-local-mode", "MODE",
            "How pods of this node are recognised: ClusterCIDR, NodeCIDR, BridgeInterface or \
             InterfaceNamePrefix"),
    Opt::new("detectLocal.bridgeInterface", at!(detect_local.bridge_interface))
        .flag("pod-bridge-interface", "NAME", "Bridge of the pods, for BridgeInterface"),
    Opt::new("detectLocal.interfaceNamePrefix", at!(detect_local.interface_name_prefix))
        .flag("pod-interface-name-prefix", "PREFIX",
            "Prefix of the pods' interface names, for InterfaceNamePrefix"),
    Opt::new("iptables.masqueradeBit", at!(iptables.masquerade_bit = Some(MASQUERADE_BIT)))
        .flag("iptables-masquerade-bit", "BIT", "Bit of the packet mark that requests masquerading"),
    Opt::new("iptables.masqueradeAll", at!(iptables.masquerade_all))
        .flag("masquerade-all", "BOOL", "Masquerade all traffic to ClusterIPs"),

    // Kernel parameters.
    Opt::new("conntrack.maxPerCore", at!(conntrack.max_per_core = Some(32 * 1_024)))
        .flag("conntrack-max-per-core", "COUNT",
            "Minimum number of connections per CPU for which conntrack has room, up to 1048576 in total; 0 keeps the \
             kernel's limit"),
    Opt::new("conntrack.min", at!(conntrack.min = Some(128 * 1_024)))
        .flag("conntrack-min", "COUNT",
            "Minimum number of connections for which conntrack has room; ignored if --conntrack-max-per-core is 0 or \
             exceeds 1048576 in total"),
    Opt::new(
        "conntrack.tcpEstablishedTimeout",
        at!(conntrack.tcp_established_timeout = Some(seconds(24 * 3_600))),
    ).flag("conntrack-tcp-timeout-established", "DURATION",
            "Time after which conntrack forgets an idle established TCP connection; 0s keeps the kernel's"),
    Opt::new("conntrack.tcpCloseWaitTimeout", at!(conntrack.tcp_close_wait_timeout = Some(seconds(3_600))))
        .flag("conntrack-tcp-timeout-close-wait", "DURATION",
            "Time after which conntrack forgets a TCP connection that one side has closed; 0s keeps the \
             kernel's"),
    Opt::new("conntrack.tcpBeLiberal", at!(conntrack.tcp_be_liberal))
        .flag("conntrack-tcp-be-liberal", "BOOL", "Let conntrack accept TCP packets outside the window"),
    Opt::new("conntrack.udpTimeout", at!(conntrack.udp_timeout))
        .flag("conntrack-udp-timeout", "DURATION",
            "Time after which conntrack forgets a UDP flow without an answer; 0s keeps the kernel's"),
    Opt::new("conntrack.udpStreamTimeout", at!(conntrack.udp_stream_timeout))
        .flag("conntrack-udp-timeout-stream", "DURATION",
            "Time after which conntrack forgets a UDP flow with answers; 0s keeps the kernel's"),
    Opt::new("ipvs.tcpTimeout", at!(ipvs.tcp_timeout))
        .flag("ipvs-tcp-timeout", "DURATION",
            "Time after which IPVS forgets an idle TCP connection; 0s keeps the kernel's, auto takes conntrack's"),
    Opt::new("ipvs.tcpFinTimeout", at!(ipvs.tcp_fin_timeout))
        .flag("ipvs-tcpfin-timeout", "DURATION",
            "Time after which IPVS forgets a closed TCP connection; 0s keeps the kernel's"),
    Opt::new("ipvs.udpTimeout", at!(ipvs.udp_timeout))
        .flag("ipvs-udp-timeout", "DURATION",
            "Time after which IPVS forgets a UDP flow; 0s keeps the kernel's"),
    Opt::new("oomScoreAdj", at!(oom_score_adj = Some(-999)))
        .flag("oom-score-adj", "SCORE",
            "OOM score adjustment of this process, from -1000 (never killed) to 1000 (killed first)"),

    // Health, metrics, log. The default addresses are those of `fill_listen_addresses`.
    Opt::new("healthzBindAddress", at!(healthz_bind_address))
        .flag("healthz-bind-address", "IP:PORT",
            "Address of /healthz, /livez and /readyz; not served if the flag is empty"),
    Opt::new("metricsBindAddress", at!(metrics_bind_address))
        .flag("metrics-bind-address", "IP:PORT", "Address of /metrics; not served if the flag is empty"),
    Opt::new("bindAddressHardFail", at!(bind_address_hard_fail))
        .flag("bind-address-hard-fail", "BOOL",
            "Exit if one of these addresses cannot be bound, instead of trying again"),
    Opt::new("logging.verbosity", at!(logging.verbosity))
        .flag("v", "LEVEL",
            "Log verbosity: 0 essential messages, 2 normal, 3 each sync, 4 its plan, 5 its steps, 6 what \
             libraries log")
        .overrides_file()
        .adjusted(|v| v.short('v')),
    Opt::new("logging.format", at!(logging.format = "text".to_owned()))
        .flag("logging-format", "FORMAT", "Log format")
        .overrides_file()
        .adjusted(|format| format.visible_alias("log-format").value_parser(["text", "json"])),

    // Ignored.
    Opt::new(
        "clientConnection.acceptContentTypes",
        at!(client_connection.accept_content_types),
    ).ignored(ENCODING),
    Opt::new(
        "clientConnection.burst",
        at!(client_connection.burst = 10; |burst| checks::at_least_zero(*burst).map(drop)),
    ).hidden_flag("kube-api-burst").ignored(BURST),
    Opt::new(
        "clientConnection.contentType",
        at!(client_connection.content_type = "application/vnd.kubernetes.protobuf".to_owned()),
    ).hidden_flag("kube-api-content-type").ignored(ENCODING),
    Opt::new("clientConnection.qps", at!(client_connection.qps = 5.0; |rate| checks::rate(*rate)))
        .hidden_flag("kube-api-qps").ignored(BURST),
    Opt::new(
        "configSyncPeriod",
        at!(config_sync_period = seconds(15 * 60); |period| checks::period(*period).map(drop)),
    ).hidden_flag("config-sync-period").ignored("there is no cache to resynchronise"),
    Opt::new("enableProfiling", at!(enable_profiling))
        .hidden_flag("profiling").ignored("profiling concerns Go's runtime"),
    Opt::new("iptables.localhostNodePorts", at!(iptables.localhost_node_ports = Some(true)))
        .hidden_flag("iptables-localhost-nodeports").ignored(OTHER_MODE),
    Opt::new("iptables.minSyncPeriod", at!(iptables.min_sync_period = seconds(1)))
        .hidden_flag("iptables-min-sync-period").ignored(OTHER_MODE),
    Opt::new("iptables.syncPeriod", at!(iptables.sync_period = seconds(30)))
        .hidden_flag("iptables-sync-period").ignored(OTHER_MODE),
    Opt::new(
        "logging.flushFrequency",
        at!(logging.flush_frequency = FlushFrequency(seconds(5)); |every| checks::period(every.0).map(drop)),
    ).hidden_flag("log-flush-frequency").overrides_file().ignored(LOG),
    Opt::new("logging.options.json.infoBufferSize", at!(logging.options.json.info_buffer_size))
        .hidden_flag("log-json-info-buffer-size").overrides_file().ignored(LOG),
    Opt::new("logging.options.json.splitStream", at!(logging.options.json.split_stream))
        .hidden_flag("log-json-split-stream").overrides_file().ignored(LOG),
    Opt::new("logging.options.text.infoBufferSize", at!(logging.options.text.info_buffer_size))
        .hidden_flag("log-text-info-buffer-size").overrides_file().ignored(LOG),
    Opt::new("logging.options.text.splitStream", at!(logging.options.text.split_stream))
        .hidden_flag("log-text-split-stream").overrides_file().ignored(LOG),
    Opt::new("logging.vmodule", at!(logging.vmodule; |modules| checks::vmodule(modules)))
        .hidden_flag("vmodule").overrides_file().ignored("kube-proxy's source file names do not apply"),
    Opt::new("nftables.masqueradeAll", at!(nftables.masquerade_all)).ignored(OTHER_MODE),
    Opt::new(
        "nftables.masqueradeBit",
        at!(nftables.masquerade_bit = Some(MASQUERADE_BIT)),
    ).ignored(OTHER_MODE),
    Opt::new("nftables.minSyncPeriod", at!(nftables.min_sync_period = seconds(1))).ignored(OTHER_MODE),
    Opt::new("nftables.syncPeriod", at!(nftables.sync_period = seconds(30))).ignored(OTHER_MODE),
    Opt::new("portRange", at!(port_range)).ignored("no proxy uses it any more"),
    Opt::new(
        "showHiddenMetricsForVersion",
        at!(show_hidden_metrics_for_version; |version| checks::version(version)),
    ).hidden_flag("show-hidden-metrics-for-version").ignored("no metric is hidden"),
    Opt::new("windowsRunAsService", at!(windows_run_as_service)).ignored(WINDOWS),
    Opt::new("winkernel.enableDSR", at!(winkernel.enable_dsr)).ignored(WINDOWS),
    Opt::new("winkernel.forwardHealthCheckVip", at!(winkernel.forward_health_check_vip)).ignored(WINDOWS),
    Opt::new("winkernel.networkName", at!(winkernel.network_name)).ignored(WINDOWS),
    Opt::new("winkernel.rootHnsEndpointName", at!(winkernel.root_hns_endpoint_name)).ignored(WINDOWS),
    Opt::new("winkernel.sourceVip", at!(winkernel.source_vip)).ignored(WINDOWS),
];

/// The bit of the packet mark that requests masquerading, by default.
pub(super) const MASQUERADE_BIT: i32 = 14;
/// The port at which health is served, by default.
pub(super) const HEALTHZ_PORT: u16 = 10_256;
/// The port at which metrics are served, by default.
pub(super) const METRICS_PORT: u16 = 10_249;

const fn seconds(seconds: u32) -> GoDuration {
    GoDuration::from_seconds(seconds)
}

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
