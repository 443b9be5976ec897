//! In which portions, and in which order, a sync compares keys and carries out what differs: so that no
//! Service waits long for the many operations of another.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    net::IpAddr,
};

use ipvs::ServiceAddress;
use netfilter::Element;
use rustc_hash::{FxHashMap, FxHashSet};
use service::{AddressKind, Dirty, Key, ObjectName, State};
use watcher::{Observed, RealServerChanges, VirtualServerImage, real_server_changes};

/// How many operations a portion has at most, unless a single virtual server has more: 20 to 40 ms of work on
/// a kernel without anything in its way. On a slower one a portion has fewer
/// ([`Pace::portion`](super::pace::Pace::portion)).
pub(crate) const PORTION: usize = 2_000;

/// How many operations an allowed source range counts for. In the kernel's set of ranges each insertion and
/// removal costs as much as there are ranges (net/netfilter/nft_set_pipapo.c).
const COST_OF_SOURCE_RANGE: usize = 8;

/// Up to this cost a Service that has only removals is done in its turn. More removals slow down later
/// additions, so they come last.
const FEW: usize = 100;

/// How many syncs may put off the rules of a new table before they come ahead of groups larger than a portion.
/// The number is high because at a start they should come last.
const MOST_TURNS_OF_RULES: u32 = 64;

/// Keys that belong together: they are carried out in the order of one plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Group {
    /// Keys that belong to no address, and on which others rest.
    Foundation,
    /// A VIP with all its virtual servers: it is bound after the last of them, and unbound before the first
    /// goes.
    Vip(IpAddr),
    /// A virtual server at an address that is not bound: a NodePort.
    VirtualServer(ServiceAddress),
    /// The rules that take over the traffic of other programs.
    Rules,
    /// The other keys that belong to no address: no Service needs them any more.
    Obsolete,
}

/// Keys whose plan is carried out as a whole, unless it takes too long.
#[derive(Clone, Debug, Default)]
pub(crate) struct Portion {
    pub(super) keys: Vec<Key>,
    /// How many operations its keys have together, about.
    cost: usize,
    /// The groups whose keys are in it.
    pub(crate) groups: Vec<Group>,
}

/// The keys of a group, all together.
#[derive(Debug)]
struct Part<'a> {
    group: Group,
    /// The position at which it was found.
    number: usize,
    key_count: usize,
    cost: Cost,
    /// The Service of its first virtual server; `None` if it was deleted.
    service: Option<&'a ObjectName>,
    /// The kind of the address in this Service.
    address_kind: Option<AddressKind>,
}

/// What keys cost.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    /// How many operations they have, about.
    operations: usize,
    /// Whether they add or change something, and do not only remove.
    brings: bool,
}

/// For how many syncs each group has been put off.
#[derive(Debug, Default)]
pub(crate) struct Waiting(FxHashMap<Group, u32>);

impl Waiting {
    /// Records which groups a sync has carried out, if in part, and which it has put off.
    pub(crate) fn update(&mut self, put_off: &[Group], carried_out: &[Group]) {
        let before = mem::take(&mut self.0);
        let begun: FxHashSet<_> = carried_out.iter().collect();
        // A group that was divided is named once for each portion.
        for group in put_off.iter().filter(|group| !begun.contains(group)) {
            self.0.insert(*group, before.get(group).copied().unwrap_or_default().saturating_add(1));
        }
    }

    /// For how many syncs a group has been put off.
    fn turns(&self, group: &Group) -> u32 {
        self.0.get(group).copied().unwrap_or_default()
    }

    /// The cost of a group that counts in its turn: half as much with each sync that it has waited, so that
    /// every one comes first in the end.
    fn counted_cost(&self, group: &Group, cost: usize) -> usize {
        cost.checked_shr(self.turns(group)).unwrap_or_default()
    }
}

/// Divides keys into portions, in the order in which they are carried out: what all others rest on; urgent
/// Services; the others, those with few operations first, each with its ClusterIP first; those of which much
/// only goes; and last the rules that take over the traffic of other programs, and what no Service needs any
/// more.
///
/// A portion has `most` operations, or those of one virtual server. Only few are not divided at all.
pub(super) fn portions(
    dirty: Dirty,
    state: &State,
    observed: &Observed,
    waiting: &Waiting,
    most: usize,
) -> Vec<Portion> {
    let (part_of, mut parts) = grouped(&dirty, state, observed);
    let of_addresses = parts.iter().filter(|part| part.group.ip().is_some());
    let cost = of_addresses.map(|part| part.cost.operations).sum();
    if cost <= most {
        let groups = parts.into_iter().map(|part| part.group).collect();
        return vec![Portion { keys: dirty.keys().collect(), cost, groups }];
    }
    put_in_order(&mut parts, state, waiting, most);
    let (mut portions, mut key_counts, mut portion_of) = (Vec::new(), Vec::new(), vec![0; parts.len()]);
    for Part { group, number, key_count, cost, .. } in parts {
        pack(&mut portions, Portion { keys: Vec::new(), cost: cost.operations, groups: vec![group] }, most);
        key_counts.resize(portions.len(), 0);
        if let Some((count, portion)) = key_counts.last_mut().zip(portion_of.get_mut(number)) {
            *count += key_count;
            *portion = portions.len() - 1;
        }
    }
    // At a start there are hundreds of thousands of keys: lists that grow would take twice their memory.
    for (portion, count) in portions.iter_mut().zip(key_counts) {
        portion.keys.reserve_exact(count);
    }
    for (key, part) in dirty.keys().zip(part_of) {
        if let Some(portion) = portion_of.get(part as usize).and_then(|at| portions.get_mut(*at)) {
            portion.keys.push(key);
        }
    }
    drop(dirty);
    portions.into_iter().flat_map(|portion| portion.split(state, observed, most)).collect()
}

/// Divides virtual servers that are compared once more into portions of about so many real servers.
pub(super) fn rechecks(
    virtual_servers: BTreeSet<ServiceAddress>,
    observed: &Observed,
    most: usize,
) -> Vec<Portion> {
    let mut portions = Vec::new();
    for at in virtual_servers {
        let cost = observed.virtual_servers.get(&at).map_or(0, VirtualServerImage::real_server_count);
        pack(&mut portions, Portion { keys: vec![Key::VirtualServer(at)], cost, groups: Vec::new() }, most);
    }
    portions
}

/// Adds keys that belong together to the last portion if both together have at most so many operations. Those of no
/// address share no portion with others.
fn pack(portions: &mut Vec<Portion>, part: Portion, most: usize) {
    let is_shared = |portion: &Portion| portion.groups.last().is_none_or(|group| group.ip().is_some());
    let has_room = |last: &mut Portion| last.cost + part.cost <= most && is_shared(last) && is_shared(&part);
    match portions.pop_if(has_room) {
        Some(before) => portions.push(before.with(part)),
        None => portions.push(part),
    }
}

/// The parts, and for each key, in the order of [`Dirty::keys`], the position of its part.
fn grouped<'a>(dirty: &Dirty, state: &'a State, observed: &Observed) -> (Vec<u32>, Vec<Part<'a>>) {
    let mut part_of = Vec::with_capacity(dirty.len());
    let mut parts: Vec<Part<'a>> = Vec::new();
    let mut numbers: FxHashMap<Group, usize> = FxHashMap::default();
    for key in dirty.keys() {
        let group = Group::from_key(&key, state, observed);
        let number = *numbers.entry(group).or_insert_with(|| {
            parts.push(Part::new(group, parts.len()));
            parts.len() - 1
        });
        if let Some(part) = parts.get_mut(number) {
            part.add(&key, state, observed);
        }
        part_of.push(u32::try_from(number).unwrap_or(u32::MAX));
    }
    (part_of, parts)
}

/// Puts the parts into the order in which they are carried out.
fn put_in_order(parts: &mut [Part<'_>], state: &State, waiting: &Waiting, most: usize) {
    let mut of_services: FxHashMap<&ObjectName, usize> = FxHashMap::default();
    for Part { service, cost, .. } in &*parts {
        if let Some(service) = service {
            *of_services.entry(service).or_default() += cost.operations;
        }
    }
    parts.sort_by_cached_key(|Part { group, cost, service, address_kind, .. }| {
        let of_service = service.and_then(|service| of_services.get(service)).copied();
        let counted = waiting.counted_cost(group, of_service.unwrap_or(cost.operations));
        let urgency = group.ip().map(|ip| state.urgency(&ip));
        (group.phase(), urgency, !cost.brings && counted > FEW, counted, *address_kind, *group)
    });
    if waiting.turns(&Group::Rules) >= MOST_TURNS_OF_RULES {
        // What no Service needs any more stays last: a part that is left may still need it.
        let rules = parts.iter().position(|part| part.group == Group::Rules);
        let large = parts.iter().position(|part| part.group.ip().is_some() && part.cost.operations > most);
        if let Some(waited) = large.zip(rules).and_then(|(large, rules)| parts.get_mut(large..=rules)) {
            waited.rotate_right(1);
        }
    }
}

/// Whether an address is bound, or shall be.
fn is_vip(ip: &IpAddr, state: &State, observed: &Observed) -> bool {
    let links = &observed.dummy_interface;
    state.wants_vip(ip) || links.bound.contains(ip) || links.stale_bindings.contains(ip)
}

impl Group {
    fn from_key(key: &Key, state: &State, observed: &Observed) -> Self {
        let at_address = |at: ServiceAddress| {
            if is_vip(&at.ip, state, observed) { Self::Vip(at.ip) } else { Self::VirtualServer(at) }
        };
        match key {
            Key::Vip(vip) | Key::Element(Element::Vip(vip)) => Self::Vip(*vip),
            Key::VirtualServer(at) => at_address(*at),
            Key::Element(element) => match element.virtual_server() {
                Some(at) => at_address(*at),
                None if state.wants_element(element) => Self::Foundation,
                None => Self::Obsolete,
            },
            Key::Device | Key::Table(_) => Self::Foundation,
            Key::Tunnel(family) if state.unpacks(*family) => Self::Foundation,
            Key::Tunnel(_) => Self::Obsolete,
            Key::Rules(_) => Self::Rules,
        }
    }

    /// The address of its virtual servers.
    pub(crate) fn ip(&self) -> Option<IpAddr> {
        match self {
            Self::Vip(ip) => Some(*ip),
            Self::VirtualServer(at) => Some(at.ip),
            Self::Foundation | Self::Rules | Self::Obsolete => None,
        }
    }

    /// When its turn is.
    fn phase(&self) -> u8 {
        match self {
            Self::Foundation => 0,
            Self::Vip(_) | Self::VirtualServer(_) => 1,
            Self::Rules => 2,
            Self::Obsolete => 3,
        }
    }
}

impl<'a> Part<'a> {
    fn new(group: Group, number: usize) -> Self {
        Self { group, number, key_count: 0, cost: Cost::default(), service: None, address_kind: None }
    }

    fn add(&mut self, key: &Key, state: &'a State, observed: &Observed) {
        self.key_count += 1;
        let Cost { operations, brings } = Cost::new(key, state, observed);
        self.cost.operations += operations;
        self.cost.brings |= brings;
        if let Key::VirtualServer(at) = key {
            self.service = self.service.or_else(|| state.owner(at));
            let wanted = state.virtual_server(at);
            self.address_kind = self.address_kind.or(wanted.map(|server| server.kind));
        }
    }
}

impl Cost {
    fn new(key: &Key, state: &State, observed: &Observed) -> Self {
        let (operations, brings) = match key {
            Key::VirtualServer(at) => {
                let wanted = state.virtual_server(at);
                let image = observed.virtual_servers.get(at);
                let RealServerChanges { coming, going } = real_server_changes(wanted, image);
                (1 + coming + going, coming > 0 || going == 0 && wanted.is_some())
            }
            Key::Element(element @ Element::AllowedSource(_)) => {
                (COST_OF_SOURCE_RANGE, state.wants_element(element))
            }
            Key::Element(element) => (1, state.wants_element(element)),
            Key::Vip(vip) => (1, state.wants_vip(vip)),
            Key::Device | Key::Table(_) | Key::Rules(_) | Key::Tunnel(_) => (1, true),
        };
        Self { operations, brings }
    }
}

impl Portion {
    /// Both together.
    fn with(mut self, other: Self) -> Self {
        self.cost += other.cost;
        self.keys.extend(other.keys);
        if self.groups != other.groups {
            self.groups.extend(other.groups);
        }
        self
    }

    /// Divides what belongs to one address, and is too much, by virtual servers. Each has its elements with it,
    /// and those come last from which something only goes. The address is bound after all, and unbound
    /// before.
    fn split(self, state: &State, observed: &Observed, most: usize) -> Vec<Self> {
        let Some((group, ip)) = self.groups.first().and_then(|group| Some((*group, group.ip()?))) else {
            return vec![self];
        };
        if self.cost <= most {
            return vec![self];
        }
        let is_wanted = state.wants_vip(&ip);
        let (mut before, mut after) = (Self::default(), Self::default());
        let mut by_server: BTreeMap<ServiceAddress, (Self, bool)> = BTreeMap::new();
        for key in self.keys {
            let Cost { operations, brings } = Cost::new(&key, state, observed);
            let part = match (&key, key.belongs_to()) {
                (_, Some(at)) => {
                    let (part, any_brings) = by_server.entry(at).or_default();
                    *any_brings |= brings;
                    part
                }
                // Its element is added before it is bound, and deleted after it is unbound.
                (Key::Vip(_), None) if is_wanted => &mut after,
                (Key::Element(Element::Vip(_)), None) if !is_wanted => &mut after,
                _ => &mut before,
            };
            part.cost += operations;
            part.keys.push(key);
        }
        let (bring, go): (Vec<_>, Vec<_>) = by_server.into_values().partition(|(_, brings)| *brings);
        let of_servers = bring.into_iter().chain(go).map(|(part, _)| part);
        let parts = [before].into_iter().chain(of_servers).chain([after]);
        let mut portions = Vec::new();
        for part in parts.filter(|part| !part.is_empty()) {
            pack(&mut portions, Self { groups: vec![group], ..part }, most);
        }
        portions
    }

    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = Key> {
        self.keys.iter().copied()
    }

    pub(super) fn virtual_servers(&self) -> impl Iterator<Item = ServiceAddress> {
        self.keys().filter_map(|key| key.virtual_server())
    }
}

/// Keys of no group.
impl From<&Dirty> for Portion {
    fn from(dirty: &Dirty) -> Self {
        Self { keys: dirty.keys().collect(), ..Self::default() }
    }
}

#[cfg(test)]
mod tests;
