//! The daemon's flags: kube-proxy's, and a few of our own.

use std::{path::PathBuf, time::Duration};

use clap::{
    ArgAction, Args, ValueEnum,
    builder::{PossibleValuesParser, TypedValueParser},
};
use netfilter::HostFirewall;

use crate::{
    config::{FeatureGates, GoDuration, VipBinding, WithoutEffect, switch},
    control,
    logging::Format,
};

/// The flags of `kube-ipvs run`.
#[derive(Args, Clone, Debug)]
#[group(skip)]
pub struct Flags {
    /// A KubeProxyConfiguration file; with it, only the flags marked * have an effect
    #[arg(long, value_name = "FILE")]
    pub config: Option<String>,

    /// How to reach the API server; without it and --master, the pod's service account is used
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true)]
    pub kubeconfig: String,

    /// The API server's URL, before that of the kubeconfig *
    #[arg(long, value_name = "URL", default_value = "", hide_default_value = true)]
    pub master: String,

    /// This node's name, if not the host name *
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    pub hostname_override: String,

    /// Only ipvs, which is what no mode means here
    #[arg(long, value_name = "MODE", default_value = "", hide_default_value = true)]
    pub proxy_mode: String,

    /// How every virtual server picks its real servers
    #[arg(long, value_name = "NAME", default_value = "rr")]
    pub ipvs_scheduler: String,

    /// At the latest after this time everything is compared and repaired
    #[arg(long, value_name = "DURATION", default_value = "30s")]
    pub ipvs_sync_period: GoDuration,

    /// The least time from the end of one sync to the next
    #[arg(long, value_name = "DURATION", default_value = "1s")]
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
    #[arg(long, value_name = "BIT", default_value = "14", allow_negative_numbers = true)]
    pub iptables_masquerade_bit: i32,

    /// Masquerade every flow to a ClusterIP
    #[arg(long, value_name = "BOOL", value_parser = switch, num_args = 0..=1, require_equals = true,
          action = ArgAction::Set, default_value = "false", default_missing_value = "true", hide_default_value = true)]
    pub masquerade_all: bool,

    /// Serve NodePorts at addresses in these ranges only; primary: at the node IPs only
    #[arg(long, value_name = "CIDRS", value_delimiter = ',')]
    pub nodeport_addresses: Vec<String>,

    /// Counts before the Node's IP of its family for --nodeport-addresses=primary; 0.0.0.0 and :: do not
    #[arg(long, value_name = "IP", default_value = "", hide_default_value = true)]
    pub bind_address: String,

    /// Kubernetes' feature gates; AllowServiceExternalIPs=false switches external IPs off
    #[arg(long, value_name = "NAME=BOOL,...")]
    pub feature_gates: Vec<FeatureGates>,

    /// How much is logged: 2 as usual, 4 for debugging, 5 for every step *
    #[arg(short, long, value_name = "LEVEL")]
    pub v: Option<i32>,

    /// The form of the log *
    #[arg(long, visible_alias = "log-format", value_name = "FORMAT")]
    pub logging_format: Option<Format>,

    /// Make VIPs local by an address on kube-ipvs0 or by a route *
    #[arg(long, value_name = "HOW", default_value = "address")]
    pub vip_binding: VipBinding,

    /// Remove TCP real servers that still drain after this time, with their connections; 0s: never *
    #[arg(long, value_name = "DURATION", default_value = "0s")]
    pub drain_timeout: GoDuration,

    /// Where the host's own firewall drops what it does not know: tell, or insert a rule that accepts *
    #[arg(long, value_name = "HOW", default_value = "warn", value_parser = host_firewall())]
    pub host_firewall: HostFirewall,

    /// Read Services, EndpointSlices and Nodes from the files in this directory, not from an API server *
    #[arg(long, value_name = "DIR", conflicts_with_all = ["kubeconfig", "master"])]
    pub manifests: Option<PathBuf>,

    /// Where `kube-ipvs resync` and `status` find the daemon *
    #[arg(long, value_name = "PATH", default_value = control::SOCKET, hide = true)]
    pub control_socket: PathBuf,

    /// Actions of kube-proxy that are refused by name.
    #[command(flatten)]
    pub unsupported: Unsupported,

    /// Flags of kube-proxy that do nothing here.
    #[command(flatten)]
    pub without_effect: WithoutEffect,
}

/// The flag's words.
fn host_firewall() -> impl TypedValueParser<Value = HostFirewall> {
    PossibleValuesParser::new(["warn", "accept"]).map(|word| match word.as_str() {
        "accept" => HostFirewall::Accept,
        _ => HostFirewall::Warn,
    })
}

impl Flags {
    /// The flags that were given although the configuration file decides.
    pub fn overruled(&self) -> Vec<&'static str> {
        let given = [
            ("--kubeconfig", !self.kubeconfig.is_empty()),
            ("--proxy-mode", !matches!(self.proxy_mode.as_str(), "" | "ipvs")),
            ("--ipvs-scheduler", self.ipvs_scheduler != "rr"),
            ("--ipvs-sync-period", self.ipvs_sync_period.0 != Duration::from_secs(30)),
            ("--ipvs-min-sync-period", self.ipvs_min_sync_period.0 != Duration::from_secs(1)),
            ("--ipvs-exclude-cidrs", !self.ipvs_exclude_cidrs.is_empty()),
            ("--ipvs-strict-arp", self.ipvs_strict_arp),
            ("--cluster-cidr", !self.cluster_cidr.is_empty()),
            ("--detect-local-mode", !self.detect_local_mode.is_empty()),
            ("--pod-bridge-interface", !self.pod_bridge_interface.is_empty()),
            ("--pod-interface-name-prefix", !self.pod_interface_name_prefix.is_empty()),
            ("--iptables-masquerade-bit", self.iptables_masquerade_bit != 14),
            ("--masquerade-all", self.masquerade_all),
            ("--nodeport-addresses", !self.nodeport_addresses.is_empty()),
            ("--bind-address", !matches!(self.bind_address.as_str(), "" | "0.0.0.0" | "::")),
            ("--feature-gates", !self.feature_gates.is_empty()),
        ];
        given.into_iter().filter_map(|(flag, given)| given.then_some(flag)).collect()
    }
}

/// Flags that ask for an action which does not exist yet. Ignoring them would be worse than refusing.
#[derive(Args, Clone, Debug)]
#[group(skip)]
pub struct Unsupported {
    #[arg(long, hide = true, value_parser = switch, num_args = 0..=1, require_equals = true,
          action = ArgAction::Set, default_value = "false", default_missing_value = "true")]
    cleanup: bool,
    #[arg(long, hide = true, value_parser = switch, num_args = 0..=1, require_equals = true,
          action = ArgAction::Set, default_value = "false", default_missing_value = "true")]
    init_only: bool,
    #[arg(long, hide = true, default_value = "")]
    write_config_to: String,
}

impl Unsupported {
    /// The first of them that was given.
    pub fn first(&self) -> Option<&'static str> {
        let given = [
            ("--cleanup", self.cleanup),
            ("--init-only", self.init_only),
            ("--write-config-to", !self.write_config_to.is_empty()),
        ];
        given.into_iter().find_map(|(flag, given)| given.then_some(flag))
    }
}

impl ValueEnum for Format {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self::Text, Self::Json]
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        Some(self.name().into())
    }
}
