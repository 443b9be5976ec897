//! The process's limit of open files.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tracing::warn;

/// Raises the limit to its maximum: each health check port and each client takes a socket. Programs in Go, kube-proxy
/// among them, do so by themselves.
pub fn raise_open_files() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        warn!(%error, "the limit of open files stays as it is");
    }
}
