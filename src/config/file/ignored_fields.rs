//! Fields that are understood and have no effect here.
//!
//! A drop-in replacement must accept the existing command line and ConfigMap. A value other than the default is
//! reported once as having no effect.

use serde_json::Value;

use super::v1alpha1::{ClientConnection, Iptables, Logging};
use crate::config::KubeProxyConfiguration;

/// The paths of the fields that have another value than usual and do nothing here.
pub(in crate::config) fn among(
    configuration: &KubeProxyConfiguration,
    usual: &KubeProxyConfiguration,
) -> Vec<String> {
    let mut found = Vec::new();
    collect("", &configuration.tree(), &heeded(configuration, usual).tree(), &mut found);
    found
}

/// Fields and parts without effect here, and why.
const REASONS: [(&str, &str); 14] = [
    ("clientConnection.acceptContentTypes", "the API server answers in protobuf, or else in JSON"),
    ("clientConnection.burst", "there are three watches and a few Events"),
    ("clientConnection.contentType", "the API server answers in protobuf, or else in JSON"),
    ("clientConnection.qps", "there are three watches and a few Events"),
    ("configSyncPeriod", "there is no cache that others could have spoilt"),
    ("enableProfiling", "profiles are of Go's runtime"),
    ("iptables", "it is for another mode"),
    ("logging.vmodule", "the source files are others"),
    ("logging", "the log goes to standard error, and at once"),
    ("nftables", "it is for another mode"),
    ("portRange", "no proxy uses it any more"),
    ("showHiddenMetricsForVersion", "no metric is hidden"),
    ("windowsRunAsService", "it is for Windows"),
    ("winkernel", "it is for Windows"),
];

/// Why a field of [`among`] has no effect.
pub(in crate::config) fn why(field: &str) -> Option<&'static str> {
    let is_in =
        |part: &str| field.strip_prefix(part).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    REASONS.iter().find(|(part, _)| is_in(part)).map(|(_, why)| *why)
}

/// The configuration with its usual value for what means something to another proxy mode, to another system or to a
/// client that is not used here.
pub(in crate::config) fn heeded(
    configuration: &KubeProxyConfiguration,
    usual: &KubeProxyConfiguration,
) -> KubeProxyConfiguration {
    let (given, usual) = (configuration.clone(), usual.clone());
    KubeProxyConfiguration {
        client_connection: ClientConnection {
            kubeconfig: given.client_connection.kubeconfig,
            ..usual.client_connection
        },
        config_sync_period: usual.config_sync_period,
        enable_profiling: usual.enable_profiling,
        iptables: Iptables {
            masquerade_all: given.iptables.masquerade_all,
            masquerade_bit: given.iptables.masquerade_bit,
            ..usual.iptables
        },
        logging: Logging {
            format: given.logging.format,
            verbosity: given.logging.verbosity,
            ..usual.logging
        },
        nftables: usual.nftables,
        port_range: usual.port_range,
        show_hidden_metrics_for_version: usual.show_hidden_metrics_for_version,
        windows_run_as_service: usual.windows_run_as_service,
        winkernel: usual.winkernel,
        ..given
    }
}

/// Collects the paths of the values that are not the same.
fn collect(path: &str, given: &Value, heeded: &Value, found: &mut Vec<String>) {
    match (given, heeded) {
        (Value::Object(fields), Value::Object(heeded)) => {
            for (name, value) in fields {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                collect(&path, value, heeded.get(name).unwrap_or(&Value::Null), found);
            }
        }
        _ if given != heeded => found.push(path.to_owned()),
        _ => {}
    }
}
