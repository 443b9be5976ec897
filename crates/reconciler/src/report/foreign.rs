//! Virtual servers of others: how many there are, and which.

use std::{collections::BTreeSet, fmt};

use ipvs::ServiceAddress;
use serde::{Deserialize, Serialize};

/// Virtual servers that no Service made. `Display` names the first of them, and counts the rest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForeignVirtualServers {
    /// How many.
    pub count: usize,
    /// The first of them; at most [`ForeignVirtualServers::MOST_NAMED`].
    pub first: Vec<ServiceAddress>,
}

impl ForeignVirtualServers {
    /// How many are named.
    pub const MOST_NAMED: usize = 5;

    /// Adds more of them.
    pub(crate) fn extend(&mut self, more: &Self) {
        self.count += more.count;
        let room = Self::MOST_NAMED.saturating_sub(self.first.len());
        self.first.extend(more.first.iter().take(room));
    }
}

/// Names the first in the order of their addresses.
impl<'a> FromIterator<&'a ServiceAddress> for ForeignVirtualServers {
    fn from_iter<I: IntoIterator<Item = &'a ServiceAddress>>(addresses: I) -> Self {
        let addresses: BTreeSet<_> = addresses.into_iter().collect();
        Self {
            count: addresses.len(),
            first: addresses.into_iter().take(Self::MOST_NAMED).copied().collect(),
        }
    }
}

impl fmt::Display for ForeignVirtualServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named: Vec<_> = self.first.iter().map(ToString::to_string).collect();
        f.write_str(&named.join(", "))?;
        match self.count.saturating_sub(named.len()) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use ipvs::Protocol;

    use super::*;

    fn at(port: u16) -> ServiceAddress {
        ServiceAddress { protocol: Protocol::Tcp, ip: [192, 0, 2, 7].into(), port }
    }

    #[test]
    fn the_first_are_named_and_the_rest_is_counted() {
        let mut found: ForeignVirtualServers = [at(2), at(1)].iter().collect();
        assert_eq!(found.to_string(), "TCP 192.0.2.7:1, TCP 192.0.2.7:2");
        found.extend(&(3..10).map(at).collect::<Vec<_>>().iter().collect());
        assert_eq!((found.count, found.first.len()), (9, 5));
        assert!(found.to_string().ends_with("TCP 192.0.2.7:5 and 4 more"), "{found}");
    }
}
