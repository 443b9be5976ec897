//! What ends the daemon beside a signal: another configuration, other credentials.

pub(super) mod config_file;
pub(super) mod credentials;
pub(super) mod watched_file;
