//! Address families.

use std::{fmt, net::IpAddr};

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
