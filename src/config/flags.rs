//! The flags of the daemon: kube-proxy's, which set fields of the configuration, and a few of our own.

use std::{ffi::OsString, path::PathBuf, sync::LazyLock};

use clap::{
    Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches,
    builder::{PossibleValuesParser, StringValueParser, TypedValueParser},
    value_parser,
};
use ipvs::TunnelKind;
use netfilter::HostFirewall;
use service::{ByDistance, Ejection, ExternalForwarding, UntrackedServices};
use watcher::Foreign;

use super::{
    FeatureGates, GoDuration, KubeProxyConfiguration, ServiceMetrics, VipBinding,
    option::Opt,
    options::{HEALTHZ_PORT, METRICS_PORT, OPTIONS, VModule},
    values::{FlushFrequency, ListenAddress, Quantity, TcpTimeout, switch},
};
use crate::serve::control;

/// The flags of `kube-ipvs run`.
#[derive(Args, Clone, Debug)]
#[group(skip)]
pub struct Flags {
    /// KubeProxyConfiguration file; with it, only the flags marked * have an effect
    #[arg(long, value_name = "FILE")]
    pub config: Option<String>,

    #[command(flatten)]
    pub(super) of_file: FieldFlags,

    /// API server's URL or HOST:PORT, in place of the kubeconfig's *
    #[arg(long, value_name = "URL", default_value = "", hide_default_value = true)]
    pub(super) master: String,

    /// Series of traffic in /metrics: ten for each virtual server, and with endpoint six more for each real server *
    #[arg(long, value_name = "OF", default_value = "off")]
    pub(super) service_metrics: ServiceMetrics,

    /// How VIPs are made local: as addresses of kube-ipvs0, or by routes *
    #[arg(long, value_name = "HOW", default_value = "address")]
    pub(super) vip_binding: VipBinding,

    /// How traffic to load-balancer addresses and external IPs reaches endpoints: masqueraded; as the Service's
    /// annotation kube-ipvs.io/forwarding-method says; or through tunnels between nodes, which keep the client's
    /// address, unless the annotation says masq *
    #[arg(long, value_name = "METHOD", default_value = "masq", value_parser = choice(&[
        ("masq", ExternalForwarding::Masquerade),
        ("by-annotation", ExternalForwarding::ByAnnotation),
        ("tunnel", ExternalForwarding::Tunnel),
    ]))]
    pub(super) external_forwarding_method: ExternalForwarding,

    /// Encapsulation of packets in tunnels: IP in IP, or generic UDP encapsulation (port 6080) for networks
    /// that pass only TCP and UDP *
    #[arg(long, value_name = "KIND", default_value = "ipip",
          value_parser = choice(&[("ipip", TunnelKind::Ipip), ("gue", TunnelKind::Gue)]))]
    pub(super) tunnel: TunnelKind,

    /// Address ranges in which external IPs are served, whatever owns them; by default all are served except
    /// those of nodes, the API server, gateways, pods and other namespaces *
    #[arg(long, value_name = "CIDRS", value_delimiter = ',')]
    pub(super) external_ip_policy: Vec<String>,

    /// Time after which a draining TCP real server is removed even if it has connections; 0s: never *
    #[arg(long, value_name = "DURATION", default_value = "0s", allow_hyphen_values = true)]
    pub(super) drain_timeout: GoDuration,

    /// Failing endpoints that get no new connections while others of their Service answer: silent,
    /// refusing or silent,refusing. With off they are reported only. A Service's annotation
    /// kube-ipvs.io/eject overrides it *
    #[arg(long, value_name = "FAILING", default_value = "off")]
    pub(super) eject: Ejection,

    /// Factors of the weights of endpoints on this node, in its zone, and elsewhere, such as
    /// node=100,zone=10,other=1. A Service's annotation kube-ipvs.io/weights-by-distance overrides it *
    #[arg(long, value_name = "FACTORS", default_value = "off")]
    pub(super) weights_by_distance: ByDistance,

    /// Services whose connections from pods conntrack does not track: none; the cluster's DNS; those whose annotation
    /// kube-ipvs.io/conntrack is off; or both, separated by a comma *
    #[arg(long, value_name = "SERVICES", default_value = "none")]
    pub(super) untracked_services: UntrackedServices,

    /// What is accepted where the host's own firewall drops: what kube-proxy accepts; nothing, with a warning;
    /// or all Service traffic *
    #[arg(long, value_name = "HOW", default_value = "as-kube-proxy", value_parser = choice(&[
        ("as-kube-proxy", HostFirewall::AsKubeProxy),
        ("warn", HostFirewall::Warn),
        ("accept", HostFirewall::Accept),
    ]))]
    pub(super) host_firewall: HostFirewall,

    /// Delete virtual servers that belong to no Service, as kube-proxy does, or keep them *
    #[arg(long, value_name = "HOW", default_value = "delete",
          value_parser = choice(&[("delete", Foreign::Delete), ("keep", Foreign::Keep)]))]
    pub(super) foreign_virtual_servers: Foreign,

    /// Directory of files from which Services, EndpointSlices and Nodes are read, in place of an API server *
    #[arg(long, value_name = "DIR", conflicts_with_all = ["kubeconfig", "master"])]
    pub(super) manifests: Option<PathBuf>,

    /// Control socket of the daemon, for `kube-ipvs status` and the other commands *
    #[arg(long, value_name = "PATH", default_value = control::SOCKET, hide = true)]
    pub control_socket: PathBuf,

    /// Set the kernel parameters that need full privileges, and exit; after that the daemon needs
    /// CAP_NET_ADMIN alone *
    #[arg(long, value_name = "BOOL", value_parser = switch, num_args = 0..=1, require_equals = true,
          action = ArgAction::Set, default_value = "false", default_missing_value = "true", hide_default_value = true)]
    pub init_only: bool,

    /// File to which the resulting configuration is written; then the program exits *
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true)]
    pub write_config_to: String,

    /// Remove what proxies have left on this node, and exit *
    #[arg(long, hide = true, value_parser = switch, num_args = 0..=1, require_equals = true,
          action = ArgAction::Set, default_value = "false", default_missing_value = "true")]
    pub cleanup: bool,

    /// Port for --healthz-bind-address if it has none; 0: health is not served. Deprecated
    #[arg(long, hide = true, allow_negative_numbers = true)]
    healthz_port: Option<u16>,

    /// Port for --metrics-bind-address if it has none; 0: metrics are not served. Deprecated
    #[arg(long, hide = true, allow_negative_numbers = true)]
    metrics_port: Option<u16>,

    /// Ignored: these ids are not used
    #[arg(long, hide = true)]
    boot_id_file: Option<String>,

    /// Ignored: these ids are not used
    #[arg(long, hide = true)]
    machine_id_file: Option<String>,
}

impl Flags {
    /// Parses flags, without the program's name before them.
    pub(super) fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        let words = [OsString::from("kube-ipvs")].into_iter().chain(words);
        Self::from_arg_matches(&Self::command().try_get_matches_from(words)?)
    }

    /// The definition of the flags alone.
    pub(super) fn command() -> Command {
        Self::augment_args(Command::new("kube-ipvs").args_override_self(true))
    }

    /// The configuration without a file. A zero means zero, since every flag has its default already.
    pub(super) fn configuration(&self) -> KubeProxyConfiguration {
        let mut configuration = self.of_file.configuration.clone();
        // As with kube-proxy, a port of its own counts only for an address without one, which the defaults
        // are not.
        for (address, port, usual) in [
            (&mut configuration.healthz_bind_address, self.healthz_port, HEALTHZ_PORT),
            (&mut configuration.metrics_bind_address, self.metrics_port, METRICS_PORT),
        ] {
            *address = match port {
                Some(0) => ListenAddress::default(),
                port => address.with_port(port.unwrap_or(usual)),
            };
        }
        configuration
    }

    /// The flags that would set something else than the default if there were no file.
    pub(super) fn overruled_by_file(&self) -> Vec<String> {
        let (configuration, usual) = (self.configuration(), KubeProxyConfiguration::of_no_flags());
        let differing = OPTIONS.iter().filter(|option| option.place.differs(&configuration, &usual));
        let flags = differing.filter_map(|option| option.flag.as_ref()).filter(|flag| !flag.overrides_file);
        flags.map(|flag| format!("--{}", flag.name)).collect()
    }

    /// Puts the flags that override the file into the configuration read from it.
    pub(super) fn override_file(&self, configuration: &mut KubeProxyConfiguration) {
        let FieldFlags { configuration: from, given } = &self.of_file;
        let overrides = |option: &&&Opt| option.flag.as_ref().is_some_and(|flag| flag.overrides_file);
        for option in given.iter().filter(overrides) {
            option.place.copy(from, configuration);
        }
    }

    /// `--proxy-mode`, if it was given.
    pub(super) fn mode(&self) -> Option<&str> {
        let FieldFlags { configuration, given } = &self.of_file;
        given.iter().any(|option| option.field == "mode").then_some(&configuration.mode)
    }

    /// Whether `--hostname-override` gives the node its name.
    pub(super) fn overrides_node_name(&self) -> bool {
        !self.of_file.configuration.hostname_override.is_empty()
    }

    /// A warning for each deprecated flag that was given.
    pub(super) fn deprecated(&self) -> impl Iterator<Item = String> {
        let given = [
            ("--healthz-port", self.healthz_port, "--healthz-bind-address"),
            ("--metrics-port", self.metrics_port, "--metrics-bind-address"),
        ];
        let given = given.into_iter().filter(|(_, port, _)| port.is_some());
        given.map(|(flag, _, instead)| {
            format!("{flag} is deprecated, and ignored unless {instead} has no port")
        })
    }
}

/// The values that a flag of our own takes.
fn choice<T: Copy + Send + Sync + 'static>(
    words: &'static [(&'static str, T)],
) -> impl TypedValueParser<Value = T> {
    let value = |given: String| words.iter().find(|(word, _)| *word == given).map(|(_, value)| *value);
    PossibleValuesParser::new(words.iter().map(|(word, _)| *word))
        .try_map(move |given| value(given).ok_or("unknown value"))
}

/// The flags that set fields of the file: those of [`OPTIONS`].
#[derive(Clone, Debug)]
pub(super) struct FieldFlags {
    /// The configuration of these flags.
    configuration: KubeProxyConfiguration,
    /// The options that were given.
    given: Vec<&'static Opt>,
}

impl FromArgMatches for FieldFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut configuration = KubeProxyConfiguration::of_no_flags();
        let given = OPTIONS.iter().filter(|option| option.take(matches, &mut configuration)).collect();
        Ok(Self { configuration, given })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for FieldFlags {
    fn augment_args(command: Command) -> Command {
        /// The default of each option as a flag; clap borrows them.
        static DEFAULTS: LazyLock<Vec<String>> = LazyLock::new(|| {
            let usual = KubeProxyConfiguration::of_no_flags().tree();
            OPTIONS.iter().map(|option| option.text(&usual)).collect()
        });

        command.args(OPTIONS.iter().zip(&*DEFAULTS).filter_map(|(option, default)| option.argument(default)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

/// A type of values that options have.
pub(super) trait Value: Clone + Default + PartialEq + Send + Sync + 'static {
    /// Defines which values a flag of this type takes.
    fn define(flag: Arg) -> Arg;

    /// The value of the flag.
    fn given(matches: &ArgMatches, flag: &str) -> Option<Self> {
        matches.get_one(flag).cloned()
    }

    /// Whether a file with this value leaves it to the default.
    fn is_unset(&self) -> bool {
        *self == Self::default()
    }
}

macro_rules! values {
    ($($type:ty: |$flag:ident| $define:expr;)*) => {$(
        impl Value for $type {
            fn define($flag: Arg) -> Arg {
                $define
            }
        }
    )*};
}

values! {
    bool: |flag| flag
        .value_parser(switch)
        .action(ArgAction::Set)
        .num_args(0..=1)
        .require_equals(true)
        .default_missing_value("true");
    i32: |flag| flag.value_parser(value_parser!(i32)).allow_negative_numbers(true);
    // In the file an `int32` that is not negative.
    u32: |flag| flag.value_parser(value_parser!(u32).range(..=0x7fff_ffff));
    f32: |flag| flag.value_parser(value_parser!(f32)).allow_negative_numbers(true);
    GoDuration: |flag| flag.value_parser(value_parser!(GoDuration)).allow_hyphen_values(true);
    TcpTimeout: |flag| flag.value_parser(value_parser!(TcpTimeout)).allow_hyphen_values(true);
    FlushFrequency: |flag| GoDuration::define(flag).value_parser(|text: &str| text.parse().map(FlushFrequency));
    Quantity: |flag| flag.value_parser(StringValueParser::new().map(Quantity));
    Vec<VModule>: |flag| flag.value_parser(VModule::list);
}

/// An option that a file can set to zero.
impl<T: Value> Value for Option<T> {
    fn define(flag: Arg) -> Arg {
        T::define(flag)
    }

    fn given(matches: &ArgMatches, flag: &str) -> Option<Self> {
        T::given(matches, flag).map(Some)
    }
}

/// An empty text is the default, by flag as well.
impl Value for String {
    fn define(flag: Arg) -> Arg {
        flag
    }

    fn given(matches: &ArgMatches, flag: &str) -> Option<Self> {
        matches.get_one(flag).filter(|text: &&Self| !text.is_empty()).cloned()
    }
}

/// An empty address is a value of its own: nothing is served.
impl Value for ListenAddress {
    fn define(flag: Arg) -> Arg {
        flag.value_parser(StringValueParser::new().map(Self))
    }

    fn is_unset(&self) -> bool {
        false
    }
}

/// A list with commas, or a flag for each element. A list that is given as empty has no element, and not an
/// empty one.
impl Value for Vec<String> {
    fn define(flag: Arg) -> Arg {
        flag.value_delimiter(',').action(ArgAction::Append)
    }

    fn given(matches: &ArgMatches, flag: &str) -> Option<Self> {
        let given = matches.get_many::<String>(flag)?;
        Some(given.filter(|element| !element.is_empty()).cloned().collect())
    }
}

impl Value for FeatureGates {
    fn define(flag: Arg) -> Arg {
        flag.value_parser(value_parser!(FeatureGates)).action(ArgAction::Append)
    }

    fn given(matches: &ArgMatches, flag: &str) -> Option<Self> {
        Some(Self::merged(matches.get_many(flag)?))
    }
}
