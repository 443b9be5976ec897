//! Address families and transport protocols.

use std::{fmt, net::IpAddr, str::FromStr};

use serde::{Deserialize, Serialize};

/// IPv4 or IPv6.
///
/// ```
/// use ipvs::Family;
///
/// assert_eq!(Family::from(std::net::IpAddr::from([10, 96, 0, 1])), Family::V4);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Family {
    /// `AF_INET`.
    #[serde(rename = "IPv4")]
    V4,
    /// `AF_INET6`.
    #[serde(rename = "IPv6")]
    V6,
}

impl Family {
    /// Both, IPv4 first.
    pub const BOTH: [Self; 2] = [Self::V4, Self::V6];

    /// How many bits an address has: 32 or 128.
    pub const fn address_bits(self) -> u8 {
        match self {
            Self::V4 => 32,
            Self::V6 => 128,
        }
    }
}

impl From<IpAddr> for Family {
    fn from(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

/// A transport protocol that IPVS balances. The kernel knows AH and ESP too, which this crate leaves out.
///
/// ```
/// use ipvs::Protocol;
///
/// assert_eq!("SCTP".parse(), Ok(Protocol::Sctp));
/// assert_eq!(Protocol::from_number(17), Some(Protocol::Udp));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
#[non_exhaustive]
pub enum Protocol {
    /// Transmission Control Protocol.
    Tcp,
    /// User Datagram Protocol.
    Udp,
    /// Stream Control Transmission Protocol.
    Sctp,
}

impl Protocol {
    /// The IP protocol number: `IPPROTO_*` in include/uapi/linux/in.h.
    pub const fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
        }
    }

    /// The protocol with this IP protocol number, if IPVS balances it.
    pub const fn from_number(number: u16) -> Option<Self> {
        match number {
            6 => Some(Self::Tcp),
            17 => Some(Self::Udp),
            132 => Some(Self::Sctp),
            _ => None,
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        })
    }
}

/// A name other than TCP, UDP and SCTP.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown protocol {0:?}: expected TCP, UDP or SCTP")]
#[non_exhaustive]
pub struct UnknownProtocol(pub String);

impl FromStr for Protocol {
    type Err = UnknownProtocol;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        match name {
            "TCP" => Ok(Self::Tcp),
            "UDP" => Ok(Self::Udp),
            "SCTP" => Ok(Self::Sctp),
            _ => Err(UnknownProtocol(name.to_owned())),
        }
    }
}
