//! What is understood and does nothing here.
//!
//! A drop-in must take the command line and the ConfigMap that are there. Whoever set one of these to something
//! else than its default is told once that it changes nothing.

use serde_json::Value;

/// Fields, and with them all that is in them, that mean something to another proxy mode, to another system or to a
/// client that is not used here.
const FIELDS: [&str; 17] = [
    "clientConnection.acceptContentTypes",
    "clientConnection.burst",
    "clientConnection.contentType",
    "clientConnection.qps",
    // A watch is never read anew as a whole without need: there is no cache that others could have spoilt.
    "configSyncPeriod",
    // Profiles are of Go's runtime.
    "enableProfiling",
    "iptables.localhostNodePorts",
    "iptables.minSyncPeriod",
    "iptables.syncPeriod",
    "logging.flushFrequency",
    "logging.options",
    "logging.vmodule",
    "nftables",
    "portRange",
    "showHiddenMetricsForVersion",
    "windowsRunAsService",
    "winkernel",
];

/// Those of the fields that have another value than usual.
pub(super) fn among(configuration: &Value, usual: &Value) -> Vec<String> {
    let mut found = Vec::new();
    collect("", configuration, usual, &mut found);
    found
}

fn collect(path: &str, value: &Value, usual: &Value, found: &mut Vec<String>) {
    match (value, usual) {
        (Value::Object(fields), Value::Object(usual)) => {
            for (name, value) in fields {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                collect(&path, value, usual.get(name).unwrap_or(&Value::Null), found);
            }
        }
        _ if value != usual && is_without_effect(path) => found.push(path.to_owned()),
        _ => {}
    }
}

fn is_without_effect(path: &str) -> bool {
    FIELDS
        .iter()
        .any(|field| path.strip_prefix(field).is_some_and(|rest| rest.is_empty() || rest.starts_with('.')))
}
