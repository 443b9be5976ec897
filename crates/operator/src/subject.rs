//! What commands are asked about: a Service, named as for kubectl, or an address.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    str::FromStr,
};

use ipvs::Protocol;
use service::{AddressQuery, ObjectName};

/// The kinds before a name, as kubectl takes them.
const KINDS: [&str; 3] = ["svc", "service", "services"];

/// The namespace of a Service that is named `svc/NAME`, as for kubectl.
const DEFAULT_NAMESPACE: &str = "default";

/// The flag for the namespace.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Namespace {
    /// The Service's namespace, if it is named NAME or svc/NAME; default for svc/NAME
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
}

/// A Service by the name that was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServiceName {
    /// `NAMESPACE/NAME`.
    Full(ObjectName),
    /// `svc/NAME`.
    OfKind(String),
    /// `NAME`.
    Bare(String),
}

/// What is asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A Service.
    Service(ServiceName),
    /// An address, one with a port, or a NodePort.
    Address(AddressQuery),
}

/// Why a text names nothing to ask about.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSubject {
    /// It is not a name.
    #[error("invalid name {0:?}: expected NAMESPACE/NAME, svc/NAME, or NAME with -n NAMESPACE")]
    Name(String),
    /// Name and flag disagree.
    #[error("{name} is not in the namespace {namespace}")]
    OtherNamespace {
        /// The full name.
        name: ObjectName,
        /// The namespace of the flag.
        namespace: String,
    },
    /// The flag says of which namespace, and the Service is not named.
    #[error("-n {0} needs the name of a Service")]
    NameMissing(String),
    /// It is not a port.
    #[error("invalid port {0:?}: expected a number from 1 to 65535")]
    Port(String),
    /// It is not a protocol.
    #[error("invalid protocol {0:?}: expected tcp, udp or sctp")]
    Protocol(String),
    /// It is not an address.
    #[error("invalid address {0:?}: expected IP, IP:PORT, IP:PORT/PROTOCOL or [IPv6]:PORT")]
    Address(String),
    /// The command needs a port.
    #[error("the address has no port: expected IP:PORT, IP:PORT/PROTOCOL or [IPv6]:PORT")]
    PortMissing,
}

impl ServiceName {
    /// The namespace and name.
    pub fn in_namespace(&self, Namespace { namespace }: &Namespace) -> Result<ObjectName, InvalidSubject> {
        match (self, namespace) {
            (Self::Full(name), None) => Ok(name.clone()),
            (Self::Full(name), Some(namespace)) if name.namespace() == namespace => Ok(name.clone()),
            (Self::Full(name), Some(namespace)) => {
                Err(InvalidSubject::OtherNamespace { name: name.clone(), namespace: namespace.clone() })
            }
            (Self::OfKind(name), None) => Ok(ObjectName::new(DEFAULT_NAMESPACE, name)),
            (Self::Bare(name), None) => Err(InvalidSubject::Name(name.clone())),
            (Self::OfKind(name) | Self::Bare(name), Some(namespace)) => {
                let text = format!("{namespace}/{name}");
                text.parse().map_err(|_| InvalidSubject::Name(text))
            }
        }
    }
}

impl Namespace {
    /// The namespace and name of a Service that need not be named: without a name and this flag, none.
    pub fn name_of(&self, service: Option<&ServiceName>) -> Result<Option<ObjectName>, InvalidSubject> {
        match (service, &self.namespace) {
            (Some(service), _) => service.in_namespace(self).map(Some),
            (None, Some(namespace)) => Err(InvalidSubject::NameMissing(namespace.clone())),
            (None, None) => Ok(None),
        }
    }
}

impl Subject {
    /// The subject as a command takes it without the flag for the namespace.
    pub fn to_argument(&self, namespace: &Namespace) -> Result<String, InvalidSubject> {
        match self {
            Self::Service(name) => name.in_namespace(namespace).map(|name| name.to_string()),
            Self::Address(query) => Ok(Address(query).to_string()),
        }
    }
}

/// An address as a command takes it.
struct Address<'a>(&'a AddressQuery);

impl fmt::Display for Address<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AddressQuery { ip, port, protocol } = *self.0;
        match (ip, port) {
            (Some(ip), Some(port)) => write!(f, "{}", SocketAddr::new(ip, port))?,
            (Some(ip), None) => write!(f, "{ip}")?,
            (None, Some(port)) => write!(f, "{port}")?,
            (None, None) => {}
        }
        protocol.map_or(Ok(()), |protocol| write!(f, "/{}", protocol.to_string().to_lowercase()))
    }
}

impl FromStr for ServiceName {
    type Err = InvalidSubject;

    fn from_str(text: &str) -> Result<Self, InvalidSubject> {
        let invalid = || InvalidSubject::Name(text.to_owned());
        match text.split_once('/') {
            None if text.is_empty() => Err(invalid()),
            None => Ok(Self::Bare(text.to_owned())),
            Some((kind, name)) if KINDS.contains(&kind) && !name.is_empty() && !name.contains('/') => {
                Ok(Self::OfKind(name.to_owned()))
            }
            Some(_) => text.parse().map(Self::Full).map_err(|_| invalid()),
        }
    }
}

impl FromStr for Subject {
    type Err = InvalidSubject;

    fn from_str(text: &str) -> Result<Self, InvalidSubject> {
        let (at, protocol) = match text.split_once('/') {
            Some((at, protocol)) => (at, Some(protocol)),
            None => (text, None),
        };
        let protocol = protocol.map(|text| {
            let known = text.to_uppercase().parse::<Protocol>();
            known.map_err(|_| InvalidSubject::Protocol(text.to_owned()))
        });
        let is_number = !at.is_empty() && at.bytes().all(|byte| byte.is_ascii_digit());
        // A namespace can be a number, but has no colon.
        let is_address = at.contains(':') || at.parse::<IpAddr>().is_ok();
        let is_port = is_number && !matches!(protocol, Some(Err(_)));
        if !(is_address || is_port) {
            return text.parse().map(Self::Service);
        }
        let protocol = protocol.transpose()?;
        let (ip, port) = split(at)?;
        if protocol.is_some() && port.is_none() {
            return Err(InvalidSubject::Address(text.to_owned()));
        }
        Ok(Self::Address(AddressQuery { ip, port, protocol }))
    }
}

/// The address and the port of `IP`, `IP:PORT`, `[IPv6]:PORT`, `:PORT` or `PORT`.
fn split(at: &str) -> Result<(Option<IpAddr>, Option<u16>), InvalidSubject> {
    if let Ok(ip) = at.parse::<IpAddr>() {
        return Ok((Some(ip.to_canonical()), None));
    }
    let (ip, port) = at.rsplit_once(':').unwrap_or(("", at));
    let number = match port.parse::<u16>() {
        Ok(number) if number > 0 => Some(number),
        _ if ip.starts_with('[') && at.ends_with(']') => None,
        _ => return Err(InvalidSubject::Port(port.to_owned())),
    };
    let ip = match number {
        Some(_) if ip.is_empty() => return Ok((None, number)),
        Some(_) => ip,
        None => at,
    };
    let is_v6 = ip.contains(':');
    let bare = ip.strip_prefix('[').and_then(|ip| ip.strip_suffix(']'));
    let parsed = if is_v6 { bare.and_then(|ip| ip.parse().ok()) } else { ip.parse::<IpAddr>().ok() };
    let ip = parsed.ok_or_else(|| InvalidSubject::Address(at.to_owned()))?;
    Ok((Some(ip.to_canonical()), number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(ip: Option<&str>, port: Option<u16>, protocol: Option<Protocol>) -> Subject {
        Subject::Address(AddressQuery { ip: ip.map(|ip| ip.parse().unwrap()), port, protocol })
    }

    #[test]
    fn an_address_a_port_and_a_name_are_distinguished() {
        let (tcp, udp) = (Some(Protocol::Tcp), Some(Protocol::Udp));
        for (text, expected) in [
            ("10.96.0.10", query(Some("10.96.0.10"), None, None)),
            ("10.96.0.10:80", query(Some("10.96.0.10"), Some(80), None)),
            ("10.96.0.10:53/udp", query(Some("10.96.0.10"), Some(53), udp)),
            ("fd00::a", query(Some("fd00::a"), None, None)),
            ("[fd00::a]", query(Some("fd00::a"), None, None)),
            ("[fd00::a]:80/TCP", query(Some("fd00::a"), Some(80), tcp)),
            ("::ffff:10.96.0.10", query(Some("10.96.0.10"), None, None)),
            ("30081", query(None, Some(30_081), None)),
            (":30081/tcp", query(None, Some(30_081), tcp)),
        ] {
            assert_eq!(text.parse(), Ok(expected.clone()), "{text}");
            let again = expected.to_argument(&Namespace::default()).unwrap();
            assert_eq!(again.parse(), Ok(expected), "{again}");
        }
        for text in ["default/web", "80/web", "svc/web", "web"] {
            assert!(matches!(text.parse(), Ok(Subject::Service(_))), "{text}");
        }
    }

    #[test]
    fn what_is_neither_is_refused_with_what_is_wrong() {
        for (text, complaint) in [
            ("99999", "invalid port \"99999\""),
            ("0", "invalid port \"0\""),
            ("10.96.0.10:http", "invalid port \"http\""),
            ("10.96.0.10:", "invalid port \"\""),
            ("10.96.0.10:80/icmp", "invalid protocol \"icmp\""),
            ("10.96.0.10/24", "invalid protocol \"24\""),
            ("10.96.0.10/tcp", "invalid address \"10.96.0.10/tcp\""),
            ("10.96.0:80", "invalid address \"10.96.0:80\""),
            ("[fd00::g]:80", "invalid address \"[fd00::g]:80\""),
            ("fd00::1:2:3:4:5:6:80000", "invalid port \"80000\""),
            ("a/b/c", "invalid name \"a/b/c\""),
            ("svc/", "invalid name \"svc/\""),
            ("", "invalid name \"\""),
        ] {
            let error = text.parse::<Subject>().unwrap_err().to_string();
            assert!(error.starts_with(complaint), "{text}: {error}");
        }
    }

    #[test]
    fn a_service_is_named_as_for_kubectl() {
        let named = |text: &str, namespace: Option<&str>| {
            let namespace = Namespace { namespace: namespace.map(str::to_owned) };
            text.parse::<ServiceName>()
                .and_then(|name| name.in_namespace(&namespace))
                .map(|name| name.to_string())
        };
        for (text, namespace, expected) in [
            ("shop/web", None, "shop/web"),
            ("shop/web", Some("shop"), "shop/web"),
            ("svc/web", None, "default/web"),
            ("service/web", Some("shop"), "shop/web"),
            ("services/web", Some("shop"), "shop/web"),
            ("web", Some("shop"), "shop/web"),
        ] {
            assert_eq!(named(text, namespace), Ok(expected.to_owned()));
        }
        assert_eq!(named("web", None), Err(InvalidSubject::Name("web".to_owned())));
        let other = named("shop/web", Some("default")).unwrap_err();
        assert_eq!(other.to_string(), "shop/web is not in the namespace default");
        let shop = Namespace { namespace: Some("shop".to_owned()) };
        assert_eq!(shop.name_of(None).unwrap_err().to_string(), "-n shop needs the name of a Service");
        assert_eq!(Namespace::default().name_of(None), Ok(None));
        assert_eq!(named("web", Some("")), Err(InvalidSubject::Name("/web".to_owned())));
    }
}
