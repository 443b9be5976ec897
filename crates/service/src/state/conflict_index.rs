//! The Services that have lost addresses and ports to others. Two Services can want the same ten thousand, so only
//! the first losses of each are kept.

use std::collections::BTreeMap;

use ipvs::ServiceAddress;

use super::{Claims, Computed};
use crate::input::ObjectName;

/// The addresses and ports that a Service wants and others hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConflictLoss<'a> {
    /// The first of them, sorted, with their holders; at most [`ConflictLoss::MAX_NAMED`].
    pub named: Vec<(ServiceAddress, &'a ObjectName)>,
    /// How many more there are.
    pub more: usize,
}

impl ConflictLoss<'_> {
    /// How many are named.
    pub const MAX_NAMED: usize = 5;
}

/// The Services that have lost any. The holder of an address is not kept: it can change while the losses stay.
#[derive(Debug, Default)]
pub(crate) struct ConflictIndex(BTreeMap<ObjectName, LostAddresses>);

#[derive(Debug)]
struct LostAddresses {
    first: Box<[ServiceAddress]>,
    more: usize,
}

impl ConflictIndex {
    /// Replaces the losses of a Service.
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

    /// All of them, sorted by name, with their losses.
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
