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

/// The configuration with its usual value for what means something to another proxy mode, to another system or to a
/// client that is not used here.
fn heeded(configuration: &KubeProxyConfiguration, usual: &KubeProxyConfiguration) -> KubeProxyConfiguration {
    let (given, usual) = (configuration.clone(), usual.clone());
    KubeProxyConfiguration {
        client_connection: ClientConnection {
            kubeconfig: given.client_connection.kubeconfig,
            ..usual.client_connection
        },
        // A watch is never read anew as a whole without need: there is no cache that others could have spoilt.
        config_sync_period: usual.config_sync_period,
        // Profiles are of Go's runtime.
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
