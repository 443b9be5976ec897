//! kube-ipvs beside the real kube-proxy: the scripts, what they are played on, and the comparison.
//! README.md beside this file says how a script is written.

use std::time::Duration;

pub(crate) mod manifest;
pub(crate) mod marker;
pub(crate) mod nodes;
pub(crate) mod play;
pub(crate) mod script;
pub(crate) mod tables;

/// How long a proxy may take for what was asked of it. kube-proxy starts some hundred programs for its first sync, and in
/// software emulation needs half a minute to start.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// How long the tables may then take to be as declared: the marker knows nothing of the Node object.
pub(crate) const SETTLED_WITHIN: Duration = Duration::from_secs(30);
