//! Which virtual servers are listed, and the Services that own them.

use std::{
    collections::HashMap,
    fmt,
    net::{IpAddr, SocketAddr},
    str::FromStr,
};

use ipvs::{ServiceAddress, VirtualServerId};
use reconciler::VirtualServerOwner;
use service::ObjectName;

use super::super::{
    question::Daemon,
    subject::{Namespace, ServiceName},
};
use crate::serve::control::{AskError, Control as _};

/// A choice of virtual servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cli) enum Filter {
    /// The virtual servers of the Services of a namespace.
    Namespace(String),
    /// The virtual servers of a Service.
    Service(ObjectName),
    /// The virtual servers at an address.
    Ip(IpAddr),
    /// The virtual servers at an address and port.
    Address(SocketAddr),
}

/// What of the table is listed.
#[derive(Clone, Copy, Debug)]
pub(in crate::cli) struct Part<'a> {
    /// The filter; everything without one.
    pub(super) filter: Option<&'a Filter>,
    /// The owners of virtual servers, if they are known.
    pub(super) owners: Option<&'a Owners>,
}

impl<'a> Part<'a> {
    /// The whole table, without names.
    pub(in crate::cli) const ALL: Self = Self { filter: None, owners: None };

    /// The Service that owns a virtual server, if it is known.
    pub(super) fn owner(self, virtual_server: VirtualServerId) -> Option<&'a ObjectName> {
        self.owners?.owner(virtual_server)
    }

    /// Whether a virtual server is listed.
    pub(super) fn has(self, virtual_server: VirtualServerId) -> bool {
        self.filter.is_none_or(|filter| filter.selects(virtual_server, self.owner(virtual_server)))
    }
}

/// The text is not a filter.
#[derive(Debug, thiserror::Error)]
#[error(
    "expected NAMESPACE, NAMESPACE/NAME, or an address such as 10.96.0.10, 10.96.0.10:80 or [fd00::a]:80"
)]
pub(in crate::cli) struct InvalidFilter;

impl Filter {
    /// Whether a virtual server that this Service owns is chosen.
    fn selects(&self, virtual_server: VirtualServerId, owner: Option<&ObjectName>) -> bool {
        let address = match virtual_server {
            VirtualServerId::Address(address) => Some(SocketAddr::new(address.ip, address.port)),
            VirtualServerId::Mark { .. } => None,
        };
        match self {
            Self::Namespace(namespace) => owner.is_some_and(|owner| owner.namespace() == &**namespace),
            Self::Service(service) => owner == Some(service),
            Self::Ip(ip) => address.is_some_and(|address| address.ip() == *ip),
            Self::Address(wanted) => address == Some(*wanted),
        }
    }

    /// Whether the owners of virtual servers must be known.
    pub(super) fn is_by_name(&self) -> bool {
        matches!(self, Self::Namespace(_) | Self::Service(_))
    }
}

impl FromStr for Filter {
    type Err = InvalidFilter;

    fn from_str(text: &str) -> Result<Self, InvalidFilter> {
        if let Ok(address) = text.parse() {
            return Ok(Self::Address(address));
        }
        let ip = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
        if let Ok(ip) = ip.parse() {
            return Ok(Self::Ip(ip));
        }
        // Neither has a dot or a colon, and every address does.
        let is_name = |name: &str| {
            !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        };
        if let Ok(name @ ServiceName::OfKind(_)) = text.parse() {
            return name.in_namespace(&Namespace::default()).map(Self::Service).map_err(|_| InvalidFilter);
        }
        match text.split_once('/') {
            None if is_name(text) => Ok(Self::Namespace(text.to_owned())),
            Some((namespace, name)) if is_name(namespace) && is_name(name) => {
                Ok(Self::Service(ObjectName::new(namespace, name)))
            }
            _ => Err(InvalidFilter),
        }
    }
}

/// As the end of a sentence about virtual servers.
impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Namespace(namespace) => write!(f, "of a Service in the namespace {namespace}"),
            Self::Service(service) => write!(f, "of the Service {service}"),
            Self::Ip(ip) => write!(f, "at {ip}"),
            Self::Address(address) => write!(f, "at {address}"),
        }
    }
}

/// The Services by the addresses that they own.
#[derive(Debug, Default)]
pub(in crate::cli) struct Owners(HashMap<ServiceAddress, ObjectName>);

impl Owners {
    /// Asks the daemon, for no more than two seconds.
    pub(in crate::cli) fn ask(daemon: &Daemon) -> Result<Self, AskError> {
        Ok(daemon.silent_client().owners()?.into())
    }

    /// The Service that owns a virtual server; `None` if no known Service does.
    pub(in crate::cli) fn owner(&self, virtual_server: VirtualServerId) -> Option<&ObjectName> {
        match virtual_server {
            VirtualServerId::Address(address) => self.0.get(&address),
            VirtualServerId::Mark { .. } => None,
        }
    }

    /// The Service that owns the first address that a filter selects.
    pub(super) fn first_of(&self, filter: &Filter) -> Option<&ObjectName> {
        let selected = self.0.iter().filter(|(at, owner)| filter.selects((**at).into(), Some(owner)));
        selected.min().map(|(_, owner)| owner)
    }
}

impl From<Vec<VirtualServerOwner>> for Owners {
    fn from(owners: Vec<VirtualServerOwner>) -> Self {
        owners.into_iter().map(|owner| (owner.address, owner.service)).collect()
    }
}

impl FromIterator<(ServiceAddress, ObjectName)> for Owners {
    fn from_iter<T: IntoIterator<Item = (ServiceAddress, ObjectName)>>(owners: T) -> Self {
        Self(owners.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use ipvs::{Family, Protocol};

    use super::*;

    fn at(ip: &str, port: u16) -> VirtualServerId {
        ServiceAddress { protocol: Protocol::Tcp, ip: ip.parse().unwrap(), port }.into()
    }

    #[test]
    fn a_filter_is_a_name_or_an_address() {
        let selected = |filter: &str| {
            let filter: Filter = filter.parse().unwrap();
            let (web, dns) = ("default/web".parse().unwrap(), "kube-system/dns".parse().unwrap());
            let mark = VirtualServerId::Mark { family: Family::V4, mark: 7 };
            let all = [
                ("web", at("10.96.0.10", 80), Some(&web)),
                ("web-tls", at("10.96.0.10", 443), Some(&web)),
                ("web-v6", at("fd00::a", 80), Some(&web)),
                ("dns", at("10.96.0.53", 53), Some(&dns)),
                ("other", at("192.0.2.7", 80), None),
                ("mark", mark, None),
            ];
            let selected = all.into_iter().filter(|(_, id, owner)| filter.selects(*id, *owner));
            selected.map(|(name, ..)| name).collect::<Vec<_>>()
        };
        assert_eq!(selected("default"), ["web", "web-tls", "web-v6"]);
        assert_eq!(selected("kube-system/dns"), ["dns"]);
        assert_eq!(selected("default/dns"), [""; 0]);
        assert_eq!(selected("10.96.0.10"), ["web", "web-tls"]);
        assert_eq!(selected("10.96.0.10:443"), ["web-tls"]);
        assert_eq!(selected("192.0.2.7"), ["other"]);
        for address in ["fd00::a", "[fd00::a]", "[fd00::a]:80", "fd00:0:0::a"] {
            assert_eq!(selected(address), ["web-v6"], "{address}");
        }
    }

    #[test]
    fn what_is_neither_is_refused() {
        for text in
            ["", "/", "default/", "/web", "a/b/c", "10.96.0.0/16", "10.96.0", "10.96.0.10:http", "a b"]
        {
            assert!(text.parse::<Filter>().is_err(), "{text}");
        }
    }
}
