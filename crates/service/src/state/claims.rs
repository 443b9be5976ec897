//! The owner of an address and port that several Services want, and the Services that have lost any.

use std::collections::{BTreeMap, BTreeSet, hash_map::Entry};

use ipvs::{Family, ServiceAddress};
use rustc_hash::FxHashMap;

use super::Computed;
use crate::{collections::RefCounts, compute::AddressKind, input::ObjectName};

/// A Service's claim to an address and port. The least one wins: the first by the kind of the address
/// ([`AddressKind`]), then the oldest, then the first by name. No creation time counts as the oldest.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Claim {
    pub(crate) kind: AddressKind,
    pub(crate) created: Option<i64>,
    pub(crate) service: ObjectName,
}

/// An address and port that more than one Service wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict<'a> {
    /// The address and port.
    pub address: ServiceAddress,
    /// The Service that owns it.
    pub owner: &'a ObjectName,
    /// The Services that wait for it, in the order in which they would get it.
    pub waiting: Vec<&'a ObjectName>,
}

/// Every claim to every address and port. The owner depends on the claims alone, not on the order in which they
/// were made.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    /// The owners' names. Their claims are computed only for a conflict.
    owners: FxHashMap<ServiceAddress, ObjectName>,
    /// The number of addresses of each family.
    by_family: RefCounts<Family>,
    /// Conflicts are rare: an address has an entry here only while it has one.
    waiting: BTreeMap<ServiceAddress, BTreeSet<Claim>>,
    /// Changes whenever the conflicts do.
    pub(super) revision: u64,
}

impl Claims {
    /// The Service that owns an address and port.
    pub(crate) fn owner(&self, address: &ServiceAddress) -> Option<&ObjectName> {
        self.owners.get(address)
    }

    /// Every address with its owner, in no particular order.
    pub(crate) fn owners(&self) -> impl Iterator<Item = (&ServiceAddress, &ObjectName)> {
        self.owners.iter()
    }

    /// Adds a claim. `held_by` returns the claim of the present owner; an owner without one loses.
    pub(crate) fn claim(
        &mut self,
        address: ServiceAddress,
        claim: Claim,
        held_by: impl FnOnce(&ObjectName) -> Option<Claim>,
    ) {
        let loser = match self.owners.entry(address) {
            Entry::Vacant(vacant) => {
                vacant.insert(claim.service);
                self.by_family.add(address.ip.into());
                return;
            }
            Entry::Occupied(mut owner) => match held_by(owner.get()) {
                Some(held) if held < claim => claim,
                held => {
                    owner.insert(claim.service);
                    let Some(held) = held else { return };
                    held
                }
            },
        };
        self.waiting.entry(address).or_default().insert(loser);
        self.revision += 1;
    }

    /// Removes a claim; the next in line becomes the owner.
    pub(crate) fn withdraw(&mut self, address: &ServiceAddress, claim: &Claim) {
        let holds = self.owners.get(address) == Some(&claim.service);
        let next = self.waiting.get_mut(address).and_then(|waiting| {
            self.revision += 1;
            if holds {
                waiting.pop_first()
            } else {
                waiting.remove(claim);
                None
            }
        });
        if self.waiting.get(address).is_some_and(BTreeSet::is_empty) {
            self.waiting.remove(address);
        }
        match next {
            Some(next) => drop(self.owners.insert(*address, next.service)),
            None if holds => {
                self.owners.remove(address);
                self.by_family.remove(&address.ip.into());
            }
            None => {}
        }
    }

    /// The number of addresses of a family that have an owner.
    pub(crate) fn count(&self, family: Family) -> usize {
        self.by_family.count(&family)
    }

    /// The number of addresses that more than one Service wants.
    pub(crate) fn conflict_count(&self) -> usize {
        self.waiting.len()
    }

    /// Every address that more than one Service wants, sorted.
    pub(crate) fn conflicts(&self) -> impl Iterator<Item = Conflict<'_>> {
        self.waiting.iter().filter_map(|(address, waiting)| {
            Some(Conflict {
                address: *address,
                owner: self.owner(address)?,
                waiting: waiting.iter().map(|claim| &claim.service).collect(),
            })
        })
    }
}

/// The addresses and ports that a Service wants and others hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConflictLoss<'a> {
    /// The first of them, sorted, with their owners; at most [`ConflictLoss::MAX_NAMED`].
    pub named: Vec<(ServiceAddress, &'a ObjectName)>,
    /// The number of the others.
    pub more: usize,
}

impl ConflictLoss<'_> {
    /// The limit of named addresses.
    pub const MAX_NAMED: usize = 5;
}

/// The Services that have lost any. Two Services can want the same ten thousand addresses, so only the first losses of
/// each are kept. The owner of an address is not kept: it can change while the losses stay.
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
        let mut lost = addresses.filter(|address| claims.owner(address) != Some(service));
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
            let owners = losses.first.iter().filter_map(|address| Some((*address, claims.owner(address)?)));
            (service, ConflictLoss { named: owners.collect(), more: losses.more })
        })
    }
}
