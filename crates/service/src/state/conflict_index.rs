//! Which Services have lost addresses and ports to others, in short: two of them can want the same ten
//! thousand.

use std::collections::BTreeMap;

use ipvs::ServiceAddress;

use super::{Claims, Computed};
use crate::input::ObjectName;

/// The addresses and ports that a Service wants and others have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConflictLoss<'a> {
    /// The first of them, sorted, with those who have them; at most [`ConflictLoss::MAX_NAMED`].
    pub named: Vec<(ServiceAddress, &'a ObjectName)>,
    /// How many more there are.
    pub more: usize,
}

impl ConflictLoss<'_> {
    /// How many are named.
    pub const MAX_NAMED: usize = 5;
}

/// The Services that have lost any. Who has an address is not kept here: it can change where nothing else
/// does.
#[derive(Debug, Default)]
pub(crate) struct ConflictIndex(BTreeMap<ObjectName, LostAddresses>);

#[derive(Debug)]
struct LostAddresses {
    first: Box<[ServiceAddress]>,
    more: usize,
}

impl ConflictIndex {
    /// Looks at all that a Service wants now.
    pub(crate) fn update(&mut self, service: &ObjectName, computed: Option<&Computed>, claims: &Claims) {
        let addresses = computed.into_iter().flat_map(Computed::addresses);
        let mut lost = addresses.filter(|address| claims.holder(address) != Some(service));
        let first: Box<[_]> = lost.by_ref().take(ConflictLoss::MAX_NAMED).collect();
        if first.is_empty() {
            self.0.remove(service);
        } else {
            self.0.insert(service.clone(), LostAddresses { first, more: lost.count() });
        }
    }

    /// All of them, sorted by name, and what they have lost.
    pub(crate) fn all<'a>(
        &'a self,
        claims: &'a Claims,
    ) -> impl Iterator<Item = (&'a ObjectName, ConflictLoss<'a>)> {
        self.0.iter().map(|(service, losses)| {
            let holders = losses.first.iter().filter_map(|address| Some((*address, claims.holder(address)?)));
            (service, ConflictLoss { named: holders.collect(), more: losses.more })
        })
    }
}
