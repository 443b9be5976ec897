//! Changes to kube-ipvs0, as values.

use std::{fmt, net::IpAddr};

use ipvs::Family;
use serde::{Deserialize, Serialize};

/// One change. Its `Display` is one line, for logs and golden tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// Create kube-ipvs0, or make it a dummy device that is NOARP; VIPs on it stay.
    EnsureDevice,
    /// Make a VIP a local address of this node, in the configured way; if it is, nothing. If it was seen
    /// bound another way, that is undone afterwards, so that the VIP is bound all the time. An address that must be added
    /// again has a route of ours meanwhile.
    Bind(IpAddr),
    /// Undo that, in whichever way it was seen bound; if it is not bound, nothing.
    Unbind(IpAddr),
    /// Create the tunnel device of a family, or make it as it should be.
    EnsureTunnel(Family),
    /// Remove it; if there is none, nothing.
    RemoveTunnel(Family),
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EnsureDevice => f.write_str("ensure device kube-ipvs0"),
            Self::Bind(vip) => write!(f, "bind {vip}"),
            Self::Unbind(vip) => write!(f, "unbind {vip}"),
            Self::EnsureTunnel(family) => write!(f, "ensure tunnel {family}"),
            Self::RemoveTunnel(family) => write!(f, "remove tunnel {family}"),
        }
    }
}
