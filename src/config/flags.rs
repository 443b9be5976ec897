//! The daemon's flags: kube-proxy's, and a few of our own.

mod ignored;
mod kernel;
mod listen;

use std::path::PathBuf;

use clap::{
    ArgAction, Args, ValueEnum,
    builder::{PossibleValuesParser, TypedValueParser},
    value_parser,
};
use ipvs::TunnelKind;
use netfilter::HostFirewall;
use service::ExternalForwarding;
use watcher::Foreign;

use crate::{
    config::{FeatureGates, GoDuration, VipBinding, file::defaults, switch},
    logging::Format,
    serve::control,
};
pub use ignored::IgnoredFlags;
pub use kernel::KernelFlags;
pub use listen::ListenFlags;

/// The flags of `kube-ipvs run`.
#[derive(Args, Clone, Debug)]
#[group(skip)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub struct Flags {
    /// A KubeProxyConfiguration file; with it, only the flags marked * have an effect
    #[arg(long, value_name = "FILE")]
    pub config: Option<String>,

    /// How to reach the API server; without it and --master, the pod's service account is used
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true)]
    pub kubeconfig: String,

    /// The API server's URL or HOST:PORT, before that of the kubeconfig *
    #[arg(long, value_name = "URL", default_value = "", hide_default_value = true)]
    pub master: String,

    /// This node's name, if not the host name *
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    pub hostname_override: String,

    /// Only ipvs, which is what no mode means here
    #[arg(long, value_name = "MODE", default_value = "", hide_default_value = true)]
    pub proxy_mode: String,

    /// How every virtual server picks its real servers
    #[arg(long, value_name = "NAME", default_value_t = defaults::SCHEDULER.to_owned())]
    pub ipvs_scheduler: String,

    /// At the latest after this time everything is compared and repaired
    #[arg(long, value_name = "DURATION", default_value_t = defaults::SYNC_PERIOD, allow_hyphen_values = true)]
    pub ipvs_sync_period: GoDuration,

    /// The least time from the end of one sync to the next
    #[arg(long, value_name = "DURATION", default_value_t = defaults::MIN_SYNC_PERIOD, allow_hyphen_values = true)]
    pub ipvs_min_sync_period: GoDuration,

    /// Virtual servers in these ranges are somebody else's
    #[arg(long, value_name = "CIDRS", value_delimiter = ',')]
    pub ipvs_exclude_cidrs: Vec<String>,

    /// Answer ARP for an address only on the interface that has it
    #[arg(long, value_name = "BOOL", value_parser = switch, num_args = 0..=1, require_equals = true,
          action = ArgAction::Set, default_value = "false", default_missing_value = "true", hide_default_value = true)]
    pub ipvs_strict_arp: bool,

    /// The pods' address ranges, at most one per family
    #[arg(long, value_name = "CIDRS", default_value = "", hide_default_value = true)]
    pub cluster_cidr: String,

    /// How pods of this node are recognised: ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix
    #[arg(long, value_name = "MODE", default_value = "", hide_default_value = true)]
    pub detect_local_mode: String,

    /// The pods' bridge, for BridgeInterface
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    pub pod_bridge_interface: String,

    /// The beginning of the pods' interface names, for InterfaceNamePrefix
    #[arg(long, value_name = "PREFIX", default_value = "", hide_default_value = true)]
    pub pod_interface_name_prefix: String,

    /// The bit of the packet mark that asks for masquerading
    #[arg(long, value_name = "BIT", default_value_t = defaults::MASQUERADE_BIT, allow_negative_numbers = true)]
    pub iptables_masquerade_bit: i32,

    /// Masquerade every flow to a ClusterIP
    #[arg(long, value_name = "BOOL", value_parser = switch, num_args = 0..=1, require_equals = true,
          action = ArgAction::Set, default_value = "false", default_missing_value = "true", hide_default_value = true)]
    pub masquerade_all: bool,

    /// Serve NodePorts at addresses in these ranges only; primary among them: at the node IPs
    #[arg(long, value_name = "CIDRS", value_delimiter = ',')]
    pub nodeport_addresses: Vec<String>,

    /// Counts before the Node's IP of its family for --nodeport-addresses=primary; 0.0.0.0 and :: do not
    #[arg(long, value_name = "IP", default_value = "", hide_default_value = true)]
    pub bind_address: String,

    /// Kubernetes' feature gates; AllowServiceExternalIPs=false switches external IPs off
    #[arg(long, value_name = "NAME=BOOL,...")]
    pub feature_gates: Vec<FeatureGates>,

    /// Parameters of the kernel.
    #[command(flatten)]
    pub kernel: KernelFlags,

    /// What is served by HTTP.
    #[command(flatten)]
    pub listen: ListenFlags,

    /// How much is logged: 0 what nobody should miss, 2 as usual, 3 each sync, 4 its plan, 5 its steps, 6 what libraries
    /// say *
    #[arg(short, long, value_name = "LEVEL", value_parser = value_parser!(u32).range(..=0x7fff_ffff))]
    pub v: Option<u32>,

    /// The form of the log *
    #[arg(long, visible_alias = "log-format", value_name = "FORMAT")]
    pub logging_format: Option<Format>,

    /// Make VIPs local by an address on kube-ipvs0 or by a route *
    #[arg(long, value_name = "HOW", default_value = "address")]
    pub vip_binding: VipBinding,

    /// Forward what comes in at load balancers' addresses and external IPs by masquerading, or through tunnels between
    /// nodes, which keep the client's address, or as a Service's annotation kube-ipvs.io/forwarding-method asks; with
    /// `tunnel` the annotation may ask for masquerading *
    #[arg(long, value_name = "METHOD", default_value = "masq", value_parser = external_forwarding())]
    pub external_forwarding_method: ExternalForwarding,

    /// How packets for other nodes are put into others where that is done: IP in IP, or generic UDP encapsulation
    /// (port 6080) where a network lets only TCP and UDP pass *
    #[arg(long, value_name = "KIND", default_value = "ipip", value_parser = tunnel())]
    pub tunnel: TunnelKind,

    /// Serve external IPs in these ranges and no others, whatever they belong to; without, all but those of nodes, the
    /// API server, gateways, pods and other namespaces *
    #[arg(long, value_name = "CIDRS", value_delimiter = ',')]
    pub external_ip_policy: Vec<String>,

    /// Remove TCP real servers that still drain after this time, with their connections; 0s: never *
    #[arg(long, value_name = "DURATION", default_value = "0s", allow_hyphen_values = true)]
    pub drain_timeout: GoDuration,

    /// Where the host's own firewall drops what it does not know: accept what kube-proxy does, tell, or accept all *
    #[arg(long, value_name = "HOW", default_value = "as-kube-proxy", value_parser = host_firewall())]
    pub host_firewall: HostFirewall,

    /// Remove virtual servers that no Service made, as kube-proxy does, or leave them alone *
    #[arg(long, value_name = "HOW", default_value = "delete", value_parser = foreign())]
    pub foreign_virtual_servers: Foreign,

    /// Read Services, EndpointSlices and Nodes from the files in this directory, not from an API server *
    #[arg(long, value_name = "DIR", conflicts_with_all = ["kubeconfig", "master"])]
    pub manifests: Option<PathBuf>,

    /// Where `kube-ipvs resync` and `status` find the daemon *
    #[arg(long, value_name = "PATH", default_value = control::SOCKET, hide = true)]
    pub control_socket: PathBuf,

    /// Set the kernel parameters that take full rights, and end; after that the daemon needs CAP_NET_ADMIN alone *
    #[arg(long, value_name = "BOOL", value_parser = switch, num_args = 0..=1, require_equals = true,
          action = ArgAction::Set, default_value = "false", default_missing_value = "true", hide_default_value = true)]
    pub init_only: bool,

    /// Write the configuration that flags or file lead to into this file, and end *
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true)]
    pub write_config_to: String,

    /// Remove what proxies have left on this node, and end.
    #[arg(long, hide = true, value_parser = switch, num_args = 0..=1, require_equals = true,
          action = ArgAction::Set, default_value = "false", default_missing_value = "true")]
    pub cleanup: bool,

    /// Flags of kube-proxy that do nothing here.
    #[command(flatten)]
    pub idle: IgnoredFlags,
}

/// The flag's words.
fn foreign() -> impl TypedValueParser<Value = Foreign> {
    PossibleValuesParser::new(["delete", "keep"]).map(|word| match word.as_str() {
        "keep" => Foreign::Keep,
        _ => Foreign::Delete,
    })
}

/// The flag's words.
fn external_forwarding() -> impl TypedValueParser<Value = ExternalForwarding> {
    PossibleValuesParser::new(["masq", "by-annotation", "tunnel"]).map(|value| match value.as_str() {
        "by-annotation" => ExternalForwarding::ByAnnotation,
        "tunnel" => ExternalForwarding::Tunnel,
        _ => ExternalForwarding::Masquerade,
    })
}

/// The flag's words.
fn tunnel() -> impl TypedValueParser<Value = TunnelKind> {
    PossibleValuesParser::new(["ipip", "gue"]).map(|value| match value.as_str() {
        "gue" => TunnelKind::Gue,
        _ => TunnelKind::Ipip,
    })
}

/// The flag's words.
fn host_firewall() -> impl TypedValueParser<Value = HostFirewall> {
    PossibleValuesParser::new(["as-kube-proxy", "warn", "accept"]).map(|word| match word.as_str() {
        "accept" => HostFirewall::Accept,
        "warn" => HostFirewall::Warn,
        _ => HostFirewall::AsKubeProxy,
    })
}

impl ValueEnum for Format {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self::Text, Self::Json]
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        Some(self.name().into())
    }
}
