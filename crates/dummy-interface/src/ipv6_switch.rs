//! IPv6 as a setting of each interface: a new one has that of `net.ipv6.conf.default.disable_ipv6`, whatever the node's
//! other interfaces have. Ours are for the Services of both families, so ours have what `all` says.

use std::fs;

/// Whether an interface of ours has no IPv6 although the node has. Reads the calling thread's network namespace.
pub(crate) fn is_off(interface: &str) -> bool {
    is_disabled(interface) && !is_disabled("all")
}

/// Switches it on if it is off. In a container `/proc/sys` may be read-only: then the kernel refuses IPv6 addresses there.
pub(crate) fn ensure_on(interface: &str) {
    if !is_off(interface) {
        return;
    }
    match fs::write(parameter(interface), "0") {
        Ok(()) => tracing::info!(device = interface, "has IPv6 now, as the node has"),
        Err(error) => tracing::debug!(device = interface, "has no IPv6: {error}"),
    }
}

/// What does not exist, as in a kernel without IPv6, is not disabled.
fn is_disabled(interface: &str) -> bool {
    fs::read_to_string(parameter(interface)).is_ok_and(|value| value.trim() == "1")
}

fn parameter(interface: &str) -> String {
    format!("/proc/sys/net/ipv6/conf/{interface}/disable_ipv6")
}
