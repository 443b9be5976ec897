//! A change of one Service in the kernel, and its words.

use std::{borrow::Cow, fmt, net::IpAddr};

use ipvs::{RealServerAddress, ServiceAddress};
use serde::{Deserialize, Serialize};

/// A change of one Service in the kernel, and its cause. `Display` is the line without the Service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceChange {
    /// What was done.
    pub kind: ChangeKind,
    /// The endpoint, if it is about one.
    pub endpoint: Option<RealServerAddress>,
    /// The virtual server; the first one, if the same was done at several.
    pub virtual_server: Option<ServiceAddress>,
    /// At how many more virtual servers the same was done.
    pub more_virtual_servers: usize,
    /// How many endpoints a new virtual server has.
    pub endpoints: Option<usize>,
    /// The VIP, if it is about one.
    pub vip: Option<IpAddr>,
    /// The operation that failed, as text.
    pub operation: Option<Box<str>>,
    /// How many more operations of the Service failed.
    pub more_operations: usize,
    /// Why, in a few words.
    pub cause: Option<Cow<'static, str>>,
    /// Whether it repaired what another program had changed.
    pub repair: bool,
}

/// What was done. `Display` is its name in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChangeKind {
    /// A virtual server was added.
    VirtualServerAdded,
    /// The scheduler, the flags or the timeout of a virtual server were changed.
    VirtualServerChanged,
    /// A virtual server was removed with its real servers.
    VirtualServerRemoved,
    /// An endpoint became a real server.
    EndpointAdded,
    /// An endpoint gets no new connections, and keeps those that it has.
    EndpointDraining,
    /// An endpoint gets no new connections because clients fail there, or by annotation.
    EndpointOut,
    /// An endpoint that was draining or out gets new connections again.
    EndpointRestored,
    /// The weight, the limits or the tunnel of an endpoint were changed.
    EndpointChanged,
    /// An endpoint is no longer a real server.
    EndpointRemoved,
    /// A VIP was bound to the node.
    VipBound,
    /// A VIP was removed from the node.
    VipUnbound,
    /// An operation failed. It is retried, and recorded again only after another outcome.
    Failed,
}

impl ServiceChange {
    /// A change of this kind without any details.
    pub fn new(kind: ChangeKind) -> Self {
        Self {
            kind,
            endpoint: None,
            virtual_server: None,
            more_virtual_servers: 0,
            endpoints: None,
            vip: None,
            operation: None,
            more_operations: 0,
            cause: None,
            repair: false,
        }
    }

    /// The bytes that it takes besides its own size.
    pub(super) fn heap_bytes(&self) -> usize {
        let cause =
            self.cause.as_ref().map_or(0, |cause| if let Cow::Owned(it) = cause { it.len() } else { 0 });
        cause + self.operation.as_ref().map_or(0, |operation| operation.len())
    }

    fn at(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(first) = &self.virtual_server {
            write!(f, " {first}")?;
        }
        match self.more_virtual_servers {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }

    fn endpoint(&self, f: &mut fmt::Formatter<'_>, words: &str) -> fmt::Result {
        if let Some(endpoint) = &self.endpoint {
            write!(f, "endpoint {endpoint} {words}")?;
        }
        self.at(f)
    }

    fn virtual_server(&self, f: &mut fmt::Formatter<'_>, done: &str) -> fmt::Result {
        f.write_str(if self.more_virtual_servers == 0 { "virtual server" } else { "virtual servers" })?;
        self.at(f)?;
        write!(f, " {done}")
    }

    fn vip(&self, f: &mut fmt::Formatter<'_>, done: &str) -> fmt::Result {
        self.vip.iter().try_for_each(|vip| write!(f, "VIP {vip} {done}"))
    }

    fn failed(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {}", self.operation.as_deref().unwrap_or_default())?;
        match self.more_operations {
            0 => Ok(()),
            1 => f.write_str(" (and 1 more operation)"),
            more => write!(f, " (and {more} more operations)"),
        }
    }
}

impl fmt::Display for ServiceChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            ChangeKind::VirtualServerAdded => {
                self.virtual_server(f, "added")?;
                match self.endpoints {
                    None => Ok(()),
                    Some(0) => f.write_str(" without an endpoint"),
                    Some(1) => f.write_str(" with 1 endpoint"),
                    Some(number) => write!(f, " with {number} endpoints"),
                }
            }
            ChangeKind::VirtualServerChanged => self.virtual_server(f, "changed"),
            ChangeKind::VirtualServerRemoved => self.virtual_server(f, "removed"),
            ChangeKind::EndpointAdded => self.endpoint(f, "added to"),
            ChangeKind::EndpointDraining => self.endpoint(f, "draining at"),
            ChangeKind::EndpointOut => self.endpoint(f, "gets no new connections at"),
            ChangeKind::EndpointRestored => self.endpoint(f, "restored at"),
            ChangeKind::EndpointChanged => self.endpoint(f, "changed at"),
            ChangeKind::EndpointRemoved => self.endpoint(f, "removed from"),
            ChangeKind::VipBound => self.vip(f, "bound"),
            ChangeKind::VipUnbound => self.vip(f, "removed from this node"),
            ChangeKind::Failed => self.failed(f),
        }?;
        match (&self.cause, self.repair) {
            (Some(cause), false) => write!(f, ": {cause}"),
            (Some(cause), true) => write!(f, ": {cause}; repaired: another program had changed it"),
            (None, true) => f.write_str(": repaired: another program had changed it"),
            (None, false) => Ok(()),
        }
    }
}

impl fmt::Display for ChangeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}
