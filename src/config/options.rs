//! The options that kube-proxy has too: one row for each field of the configuration file.
//!
//! The flag, the default, what is ignored, the file that `--write-config-to` writes and the table of fields
//! in docs/flags.md come from these rows. The flags that only kube-ipvs has are in [`Flags`](super::Flags).

use std::{fmt, net::IpAddr};

use clap::{Arg, ArgMatches, parser::ValueSource};
use serde_json::Value as Json;

use super::{
    GoDuration, KubeProxyConfiguration, Problem, checks,
    flags::Value,
    values::{FlushFrequency, ListenAddress},
};

/// An option: a field of the configuration file, and mostly a flag.
pub(super) struct Opt {
    /// The field's path in the file.
    pub(super) field: &'static str,
    /// The flag that sets the field.
    pub(super) flag: Option<Flag>,
    /// Why the option has no effect, if that is so. A drop-in replacement accepts the present command line
    /// and file.
    pub(super) ignored: Option<&'static str>,
    /// Its value in the configuration.
    pub(super) place: &'static dyn Place,
}

/// The flag of an option.
pub(super) struct Flag {
    /// Its name without hyphens.
    pub(super) name: &'static str,
    /// Whether it overrides the file. Otherwise it has no effect beside one.
    pub(super) overrides_file: bool,
    value_name: &'static str,
    /// The text for `--help`, which omits flags without one.
    help: &'static str,
    adjust: fn(Arg) -> Arg,
}

impl Opt {
    const fn new<T: Value>(field: &'static str, place: &'static At<T>) -> Self {
        Self { field, flag: None, ignored: None, place }
    }

    const fn flag(mut self, name: &'static str, value_name: &'static str, help: &'static str) -> Self {
        self.flag = Some(Flag { name, value_name, help, overrides_file: false, adjust: |arg| arg });
        self
    }

    const fn hidden_flag(self, name: &'static str) -> Self {
        self.flag(name, "VALUE", "")
    }

    const fn overrides_file(mut self) -> Self {
        if let Some(flag) = &mut self.flag {
            flag.overrides_file = true;
        }
        self
    }

    const fn adjusted(mut self, adjust: fn(Arg) -> Arg) -> Self {
        if let Some(flag) = &mut self.flag {
            flag.adjust = adjust;
        }
        self
    }

    const fn ignored(mut self, why: &'static str) -> Self {
        self.ignored = Some(why);
        self
    }
}

/// Where an option's value is in the configuration.
struct At<T> {
    get: fn(&KubeProxyConfiguration) -> &T,
    get_mut: fn(&mut KubeProxyConfiguration) -> &mut T,
    /// What an unset value means.
    default: fn() -> T,
    /// Refuses what kube-proxy refuses too. The values that have an effect are checked where they become
    /// [`Settings`](super::Settings).
    check: fn(&T) -> Result<(), Problem>,
}

/// `at!(PATH = DEFAULT; CHECK)`: without a default an unset value means its type's zero.
macro_rules! at {
    ($($field:ident).+) => { at!($($field).+, Default::default, |_| Ok(())) };
    ($($field:ident).+; $check:expr) => { at!($($field).+, Default::default, $check) };
    ($($field:ident).+ = $default:expr) => { at!($($field).+, || $default, |_| Ok(())) };
    ($($field:ident).+ = $default:expr; $check:expr) => { at!($($field).+, || $default, $check) };
    ($($field:ident).+, $default:expr, $check:expr) => {
        &At { get: |all| &all.$($field).+, get_mut: |all| &mut all.$($field).+, default: $default, check: $check }
    };
}

const BURST: &str = "there are three watches and a few Events";
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
            "Time after which everything is compared with the kernel and repaired again"),
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
            "Address of /healthz, /livez and /readyz; an empty flag: not served"),
    Opt::new("metricsBindAddress", at!(metrics_bind_address))
        .flag("metrics-bind-address", "IP:PORT", "Address of /metrics; an empty flag: not served"),
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
    ).hidden_flag("config-sync-period").ignored("there is no cache that could be wrong"),
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
        .hidden_flag("vmodule").overrides_file().ignored("the source files differ"),
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

/// What can be done with the value of any option.
pub(super) trait Place: Sync {
    /// Whether the two configurations have different values.
    fn differs(&self, one: &KubeProxyConfiguration, other: &KubeProxyConfiguration) -> bool;
    /// Copies the value.
    fn copy(&self, from: &KubeProxyConfiguration, to: &mut KubeProxyConfiguration);
    /// Gives an unset value its default.
    fn fill(&self, configuration: &mut KubeProxyConfiguration);
    /// Refuses a value that kube-proxy refuses too.
    fn check(&self, configuration: &KubeProxyConfiguration) -> Result<(), Problem>;
    /// Defines which values the flag takes.
    fn define(&self, flag: Arg) -> Arg;
    /// Takes the value from the flag. Returns whether it has one.
    fn take(&self, matches: &ArgMatches, flag: &str, to: &mut KubeProxyConfiguration) -> bool;
}

impl<T: Value> Place for At<T> {
    fn differs(&self, one: &KubeProxyConfiguration, other: &KubeProxyConfiguration) -> bool {
        (self.get)(one) != (self.get)(other)
    }

    fn copy(&self, from: &KubeProxyConfiguration, to: &mut KubeProxyConfiguration) {
        (self.get_mut)(to).clone_from((self.get)(from));
    }

    fn fill(&self, configuration: &mut KubeProxyConfiguration) {
        let value = (self.get_mut)(configuration);
        if value.is_unset() {
            *value = (self.default)();
        }
    }

    fn check(&self, configuration: &KubeProxyConfiguration) -> Result<(), Problem> {
        (self.check)((self.get)(configuration))
    }

    fn define(&self, flag: Arg) -> Arg {
        T::define(flag)
    }

    fn take(&self, matches: &ArgMatches, flag: &str, to: &mut KubeProxyConfiguration) -> bool {
        let Some(value) = T::given(matches, flag) else { return false };
        *(self.get_mut)(to) = value;
        true
    }
}

impl Opt {
    /// The definition of the flag, if there is one, with its default as the help shows it.
    pub(super) fn argument(&self, default: &'static str) -> Option<Arg> {
        let Flag { name, overrides_file, value_name, help, adjust } = self.flag.as_ref()?;
        let arg = self.place.define(Arg::new(*name).long(*name).value_name(*value_name));
        let mark = if *overrides_file { " *" } else { "" };
        let arg = arg.help(format!("{help}{mark}")).hide(help.is_empty());
        // A flag that overrides the file is not set by default.
        let default = (!default.is_empty() && !overrides_file).then_some(default);
        let arg = arg.hide_default_value(default == Some("false"));
        Some(adjust(match default {
            Some(default) => arg.default_value(default),
            None => arg,
        }))
    }

    /// The value in the tree of a configuration, as help and documents show it; empty for none.
    pub(super) fn text(&self, tree: &Json) -> String {
        match self.field.split('.').try_fold(tree, |tree, name| tree.get(name)) {
            Some(Json::String(text)) => text.clone(),
            Some(Json::Number(number)) => number.as_f64().unwrap_or_default().to_string(),
            Some(Json::Bool(on)) => on.to_string(),
            _ => String::new(),
        }
    }

    /// Takes the value of the flag. Returns whether it was given.
    pub(super) fn take(&self, matches: &ArgMatches, to: &mut KubeProxyConfiguration) -> bool {
        let Some(Flag { name, .. }) = self.flag else { return false };
        matches.value_source(name) == Some(ValueSource::CommandLine) && self.place.take(matches, name, to)
    }
}

impl fmt::Debug for Opt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.field)
    }
}

impl KubeProxyConfiguration {
    /// What a file without any field means.
    pub(super) fn of_empty_file() -> Self {
        let mut configuration = Self::default();
        configuration.fill();
        configuration
    }

    /// The meaning of no flags. kube-proxy has taken the iptables mode's least time between two syncs by
    /// the time it reads the mode.
    pub(super) fn of_no_flags() -> Self {
        let mut configuration = Self::of_empty_file();
        configuration.ipvs.min_sync_period = configuration.iptables.min_sync_period;
        configuration
    }

    /// Fills in what a file leaves to the program.
    pub(super) fn fill(&mut self) {
        self.fill_zeros();
        self.fill_listen_addresses();
    }

    /// Fills in all but the addresses of health and metrics, which a flag can leave empty.
    pub(super) fn fill_zeros(&mut self) {
        for option in OPTIONS {
            option.place.fill(self);
        }
    }

    /// Fills in the addresses of health and metrics, with their ports.
    pub(super) fn fill_listen_addresses(&mut self) {
        // As the bind address is of one family, so are these.
        let (any, loopback) = match self.bind_address.parse() {
            Ok(IpAddr::V6(_)) => ("::", "::1"),
            _ => ("0.0.0.0", "127.0.0.1"),
        };
        for (address, usual, port) in [
            (&mut self.healthz_bind_address, any, HEALTHZ_PORT),
            (&mut self.metrics_bind_address, loopback, METRICS_PORT),
        ] {
            if address.is_empty() {
                *address = ListenAddress(usual.to_owned());
            }
            *address = address.with_port(port);
        }
    }

    /// The options without effect whose value is not the usual one.
    pub(super) fn ignored<'a>(&'a self, usual: &'a Self) -> impl Iterator<Item = &'static Opt> + 'a {
        OPTIONS.iter().filter(|option| option.ignored.is_some() && option.place.differs(self, usual))
    }
}
