//! `KubeProxyConfiguration`, as far as it means something here.

use std::{fs, path::Path};

use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_saphyr::options::DuplicateKeyPolicy;

use super::{Error, FeatureGates, GoDuration, without_effect};
use crate::yaml;

/// The configuration of kube-proxy, version `kubeproxy.config.k8s.io/v1alpha1`.
///
/// The flags fill in the same structure. Null, zero and absent all mean the default.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct KubeProxyConfiguration {
    #[serde(deserialize_with = "or_default")]
    pub(super) bind_address: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) client_connection: ClientConnection,
    #[serde(deserialize_with = "or_default", rename = "clusterCIDR")]
    pub(super) cluster_cidr: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) detect_local_mode: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) detect_local: DetectLocal,
    #[serde(deserialize_with = "or_default")]
    pub(super) feature_gates: FeatureGates,
    #[serde(deserialize_with = "or_default")]
    pub(super) hostname_override: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) iptables: Iptables,
    #[serde(deserialize_with = "or_default")]
    pub(super) ipvs: Ipvs,
    #[serde(deserialize_with = "or_default")]
    pub(super) logging: Logging,
    #[serde(deserialize_with = "or_default")]
    pub(super) mode: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) node_port_addresses: Vec<String>,
}

/// How the API server is reached.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct ClientConnection {
    #[serde(deserialize_with = "or_default")]
    pub(super) kubeconfig: String,
}

/// What `detectLocalMode` looks at.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct DetectLocal {
    #[serde(deserialize_with = "or_default")]
    pub(super) bridge_interface: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) interface_name_prefix: String,
}

/// Masquerading; IPVS mode reads it from here too.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Iptables {
    pub(super) masquerade_bit: Option<i32>,
    #[serde(deserialize_with = "or_default")]
    pub(super) masquerade_all: bool,
}

/// IPVS mode's own part.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Ipvs {
    #[serde(deserialize_with = "or_default")]
    pub(super) sync_period: GoDuration,
    #[serde(deserialize_with = "or_default")]
    pub(super) min_sync_period: GoDuration,
    #[serde(deserialize_with = "or_default")]
    pub(super) scheduler: String,
    #[serde(deserialize_with = "or_default", rename = "excludeCIDRs")]
    pub(super) exclude_cidrs: Vec<String>,
    #[serde(deserialize_with = "or_default", rename = "strictARP")]
    pub(super) strict_arp: bool,
}

/// What is logged, and how.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Logging {
    #[serde(deserialize_with = "or_default")]
    pub(super) format: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) verbosity: i32,
}

fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// The fields above, and those that say what the file is.
const USED: [&str; 21] = [
    "apiVersion",
    "kind",
    "bindAddress",
    "clientConnection.kubeconfig",
    "clusterCIDR",
    "detectLocal.bridgeInterface",
    "detectLocal.interfaceNamePrefix",
    "detectLocalMode",
    "featureGates",
    "hostnameOverride",
    "iptables.masqueradeAll",
    "iptables.masqueradeBit",
    "ipvs.excludeCIDRs",
    "ipvs.minSyncPeriod",
    "ipvs.scheduler",
    "ipvs.strictARP",
    "ipvs.syncPeriod",
    "logging.format",
    "logging.verbosity",
    "mode",
    "nodePortAddresses",
];

const API_VERSION: &str = "kubeproxy.config.k8s.io/v1alpha1";
const KIND: &str = "KubeProxyConfiguration";

/// A configuration file that could be read.
#[derive(Debug, Default)]
pub(super) struct File {
    pub(super) configuration: KubeProxyConfiguration,
    /// What is odd about it.
    pub(super) warnings: Vec<String>,
    /// Fields that are set and do nothing here.
    pub(super) without_effect: Vec<String>,
}

/// Reads a configuration file.
pub(super) fn read(path: &Path) -> Result<File, Error> {
    let text = fs::read_to_string(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
    decode(path, &text)
}

fn decode(path: &Path, text: &str) -> Result<File, Error> {
    let mut warnings = Vec::new();
    let tree: Value = parse(text).or_else(|strict| {
        // A field given twice does not stop kube-proxy either: the last one counts.
        let tree = parse_leniently(text).map_err(|_| Error::Malformed(yaml::fault(path, &strict)))?;
        warnings.push(yaml::fault(path, &strict));
        Ok(tree)
    })?;
    check_kind(path, &tree)?;
    let configuration = parse_leniently(text).map_err(|error| Error::Malformed(yaml::fault(path, &error)))?;

    let mut unknown = Vec::new();
    collect_unknown(&tree, "", &mut unknown);
    warnings
        .extend(unknown.iter().map(|field| format!("{}: unknown field {field} is ignored", path.display())));
    Ok(File { configuration, warnings, without_effect: without_effect::in_file(&tree) })
}

fn parse(text: &str) -> Result<Value, serde_saphyr::Error> {
    serde_saphyr::from_str(text)
}

fn parse_leniently<T: for<'de> Deserialize<'de>>(text: &str) -> Result<T, serde_saphyr::Error> {
    let lenient = serde_saphyr::options! { duplicate_keys: DuplicateKeyPolicy::LastWins };
    serde_saphyr::from_str_with_options(text, lenient)
}

fn check_kind(path: &Path, tree: &Value) -> Result<(), Error> {
    let text = |key| tree.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    if api_version == API_VERSION && kind == KIND {
        return Ok(());
    }
    Err(Error::Kind { path: path.to_owned(), api_version, kind })
}

/// Collects the paths of fields that no version of kube-proxy knows.
fn collect_unknown(tree: &Value, parent: &str, unknown: &mut Vec<String>) {
    for (key, value) in tree.as_object().into_iter().flatten() {
        let path = if parent.is_empty() { key.clone() } else { format!("{parent}.{key}") };
        match role(&path) {
            Role::Field => {}
            Role::Parent => collect_unknown(value, &path, unknown),
            Role::Unknown => unknown.push(path),
        }
    }
}

enum Role {
    Field,
    Parent,
    Unknown,
}

fn role(path: &str) -> Role {
    let known = || USED.into_iter().chain(without_effect::all().map(|known| known.field));
    if known().any(|field| field == path) {
        Role::Field
    } else if known().any(|field| field.strip_prefix(path).is_some_and(|rest| rest.starts_with('.'))) {
        Role::Parent
    } else {
        Role::Unknown
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const HEAD: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";

    fn decoded(text: &str) -> File {
        decode(Path::new("config.conf"), &format!("{HEAD}{text}")).unwrap()
    }

    fn refusal(text: &str) -> String {
        decode(Path::new("config.conf"), text).unwrap_err().to_string()
    }

    #[test]
    fn null_and_absent_are_the_default() {
        let nulls = decoded(
            "clientConnection: null\nclusterCIDR: null\nmode: ~\nipvs: {syncPeriod: null, excludeCIDRs: null}\n\
             iptables: {masqueradeBit: null, masqueradeAll: null}\nlogging: {verbosity: null}\n\
             bindAddress: null\nfeatureGates: null\nnodePortAddresses: null\n",
        );
        assert_eq!(nulls.configuration, KubeProxyConfiguration::default());
        assert_eq!(decoded("").configuration, KubeProxyConfiguration::default());
    }

    #[test]
    fn every_field_that_is_used_is_read() {
        let File { configuration, warnings, without_effect } = decoded(
            "clientConnection: {kubeconfig: /k}\nclusterCIDR: 10.0.0.0/8\ndetectLocalMode: BridgeInterface\n\
             detectLocal: {bridgeInterface: cbr0, interfaceNamePrefix: veth}\nhostnameOverride: n\nmode: ipvs\n\
             iptables: {masqueradeBit: 0, masqueradeAll: true}\nlogging: {format: json, verbosity: 4}\n\
             ipvs: {syncPeriod: 1m, minSyncPeriod: 2s, scheduler: lc, excludeCIDRs: [10.1.0.0/16], strictARP: true}\n\
             bindAddress: 192.0.2.1\nfeatureGates: {A: false}\nnodePortAddresses: [primary]\n",
        );
        assert_eq!((warnings, without_effect), (vec![], vec![]));
        assert_eq!(
            configuration,
            KubeProxyConfiguration {
                bind_address: "192.0.2.1".into(),
                client_connection: ClientConnection { kubeconfig: "/k".into() },
                cluster_cidr: "10.0.0.0/8".into(),
                detect_local_mode: "BridgeInterface".into(),
                detect_local: DetectLocal {
                    bridge_interface: "cbr0".into(),
                    interface_name_prefix: "veth".into(),
                },
                feature_gates: "A=false".parse().unwrap(),
                hostname_override: "n".into(),
                iptables: Iptables { masquerade_bit: Some(0), masquerade_all: true },
                ipvs: Ipvs {
                    sync_period: GoDuration(Duration::from_mins(1)),
                    min_sync_period: GoDuration(Duration::from_secs(2)),
                    scheduler: "lc".into(),
                    exclude_cidrs: vec!["10.1.0.0/16".into()],
                    strict_arp: true,
                },
                logging: Logging { format: "json".into(), verbosity: 4 },
                mode: "ipvs".into(),
                node_port_addresses: vec!["primary".into()],
            }
        );
    }

    #[test]
    fn an_unknown_field_is_named_with_its_path_and_the_rest_is_read() {
        let file = decoded("ipvs:\n  schedular: lc\n  scheduler: sh\nmodus: ipvs\n");
        assert_eq!(
            file.warnings,
            [
                "config.conf: unknown field ipvs.schedular is ignored",
                "config.conf: unknown field modus is ignored"
            ]
        );
        assert_eq!(file.configuration.ipvs.scheduler, "sh");
    }

    #[test]
    fn of_a_field_given_twice_the_last_counts_and_a_warning_says_where() {
        let file = decoded("mode: iptables\nmode: ipvs\n");
        assert_eq!(file.configuration.mode, "ipvs");
        assert!(file.warnings[0].starts_with("config.conf:4:1: "), "{:?}", file.warnings);
    }

    #[test]
    fn only_what_would_have_changed_something_is_without_effect() {
        let file = decoded(
            "oomScoreAdj: -998\nconfigSyncPeriod: 900s\n\
             conntrack: {maxPerCore: 0, min: 5, tcpEstablishedTimeout: 0s}\nnftables: {masqueradeAll: true}\n",
        );
        assert_eq!(file.without_effect, ["conntrack.min", "oomScoreAdj"]);
        assert_eq!(file.warnings, [""; 0]);
    }

    #[test]
    fn a_fault_is_one_line_with_its_place() {
        let malformed = refusal(&format!("{HEAD}ipvs:\n  syncPeriod: [\n"));
        assert!(malformed.starts_with("config.conf:"), "{malformed}");
        assert_eq!(malformed.lines().count(), 1, "{malformed}");
        let wrong_type = refusal(&format!("{HEAD}ipvs:\n  syncPeriod: soon\n"));
        assert_eq!(
            wrong_type,
            "config.conf:4:15: \"soon\" is no duration: expected something like 30s, 1m30s or 500ms"
        );
        let no_switch = refusal(&format!("{HEAD}featureGates:\n  AllowServiceExternalIPs: maybe\n"));
        assert!(no_switch.starts_with("config.conf:4:28: "), "{no_switch}");
    }

    #[test]
    fn another_kind_or_version_of_file_is_refused_by_name() {
        assert_eq!(
            refusal("apiVersion: kubeproxy.config.k8s.io/v1alpha2\nkind: KubeProxyConfiguration\n"),
            "config.conf: apiVersion \"kubeproxy.config.k8s.io/v1alpha2\" with kind \"KubeProxyConfiguration\" is not \
             supported: expected kubeproxy.config.k8s.io/v1alpha1 with KubeProxyConfiguration"
        );
        assert!(refusal("hello").contains("apiVersion \"\""));
        assert!(refusal("").contains("apiVersion \"\""));
    }
}
