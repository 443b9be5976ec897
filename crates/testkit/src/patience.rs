//! How patient tests are.

use std::time::Duration;

/// Whether this runs in software emulation, where each program start takes a tenth of a second: `cargo xtask`
/// says so in the environment of what it starts in such a guest.
pub fn is_emulated() -> bool {
    std::env::var_os("KUBE_IPVS_EMULATED").is_some()
}

/// How long to wait for what may take this long on a real machine: four times as long in software emulation.
pub fn patience(limit: Duration) -> Duration {
    if is_emulated() { limit.saturating_mul(4) } else { limit }
}
