//! What ends the daemon: a signal, another configuration, other credentials.

pub(super) mod config_file;
pub(super) mod credentials;
pub(super) mod signals;
pub(super) mod watched_file;
