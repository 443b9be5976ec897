//! Why something of kube-proxy's stays.

use std::borrow::Cow;

use netlink::OperationError;

use crate::{LegacyError, host_firewall};

/// Why something stayed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The exchange with the kernel failed.
    #[error(transparent)]
    Operation(#[from] OperationError),
    /// Somebody else's rules need it.
    #[error("{0} leads there")]
    Needed(Box<str>),
    /// The host forwards nothing else.
    #[error(
        "without it the host's chain FORWARD drops what pods answer; with our rules there (--host-firewall), or your \
         own (docs/node.md has them), it goes at the next start"
    )]
    Forwards,
    /// Some rule still uses the set.
    #[error("it is in use")]
    InUse,
    /// The old iptables has tables, and no program here can read them.
    #[error(
        "its programs are not here to read its tables; if kube-proxy's rules are in them, this removes them on the \
         host: {by_hand}"
    )]
    NoPrograms {
        /// The command.
        by_hand: String,
    },
    /// The tables of the old iptables could not be read or changed.
    #[error(transparent)]
    Legacy(#[from] LegacyError),
    /// Whether the host forwards what pods answer is not known.
    #[error("whether KUBE-FORWARD is needed cannot be told")]
    HostFirewall(#[source] host_firewall::Error),
}

impl Error {
    pub(super) fn new(operation: impl Into<Cow<'static, str>>, source: netlink::Error) -> Self {
        OperationError::new("the kernel", operation, source).into()
    }
}
