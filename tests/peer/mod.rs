//! kube-ipvs beside the real kube-proxy: the scripts, what they are played on, and the comparison.
//! README.md beside this file says how a script is written.
#![allow(
    dead_code,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "each of the two test targets uses a part of this; a test that cannot go on must stop"
)]

use std::time::Duration;

pub(crate) mod manifest;
pub(crate) mod marker;
pub(crate) mod nodes;
pub(crate) mod play;
pub(crate) mod script;
pub(crate) mod tables;

/// How long the nodes may take to be as expected. Software emulation is slow.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
