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
use watcher::{Observed, PendingChanges, pending_changes};

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
const MOST_TURNS_OF_OTHERS: u32 = 64;

/// What belongs together: it is carried out in the order of one plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Group {
    /// A VIP with all its virtual servers: it is bound after the last of them, and unbound before the first
    /// goes.
    Vip(IpAddr),
    /// A virtual server at an address that is not bound: a NodePort.
    VirtualServer(ServiceAddress),
    /// The keys of no address on which nothing else rests.
    Others,
}

/// Keys whose plan is carried out as a whole, unless it takes too long.
#[derive(Clone, Debug, Default)]
pub(crate) struct Portion {
    items: Vec<Item>,
    /// The groups whose keys are in it.
    pub(crate) groups: Vec<Group>,
}

/// A key of a portion.
#[derive(Clone, Copy, Debug)]
struct Item {
    key: Key,
    /// How many operations it has, about.
    cost: usize,
    /// Whether it adds or changes something, and does not only remove.
    brings: bool,
}

/// For how many syncs each group has been put off.
#[derive(Debug, Default)]
pub(crate) struct Waiting(FxHashMap<Group, u32>);

impl Waiting {
    /// Records which groups a sync has carried out, if in part, and which it has put off.
    pub(crate) fn update(&mut self, put_off: &[Group], carried_out: &[Group]) {
        let mut before = mem::take(&mut self.0);
        let begun: FxHashSet<_> = carried_out.iter().collect();
        for group in put_off.iter().filter(|group| !begun.contains(group)) {
            self.0.insert(*group, before.remove(group).unwrap_or_default().saturating_add(1));
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
    dirty: &Dirty,
    state: &State,
    observed: &Observed,
    waiting: &Waiting,
    most: usize,
) -> Vec<Portion> {
    let (mut first, mut last) = (Portion::default(), Portion::of(Group::Others));
    let mut groups: BTreeMap<Group, Portion> = BTreeMap::new();
    let group_of = |at: &ServiceAddress| {
        if is_vip(&at.ip, state, observed) { Group::Vip(at.ip) } else { Group::VirtualServer(*at) }
    };
    for key in dirty.keys() {
        let group = match &key {
            Key::VirtualServer(at) => Some(group_of(at)),
            Key::Vip(vip) | Key::Element(Element::Vip(vip)) => Some(Group::Vip(*vip)),
            Key::Element(element) => element.virtual_server().map(group_of),
            Key::Device | Key::Table(_) | Key::Rules(_) | Key::Tunnel(_) => None,
        };
        let portion = match group {
            Some(group) => groups.entry(group).or_insert_with(|| Portion::of(group)),
            None if is_for_others(&key, state) => &mut first,
            None => &mut last,
        };
        portion.items.push(Item::new(key, state, observed));
    }
    if groups.values().map(Portion::cost).sum::<usize>() <= most {
        let mut whole = Portion::from(dirty.clone());
        whole.groups = groups.into_keys().collect();
        return vec![whole];
    }
    let mut of_services: FxHashMap<&ObjectName, usize> = FxHashMap::default();
    for portion in groups.values() {
        if let Some(service) = portion.service(state) {
            *of_services.entry(service).or_default() += portion.cost();
        }
    }
    let mut order: Vec<_> = groups
        .into_iter()
        .map(|(group, portion)| {
            let of_service = portion.service(state).and_then(|service| of_services.get(service));
            let cost = waiting.counted_cost(&group, of_service.copied().unwrap_or(portion.cost()));
            let urgency = group.ip().map(|ip| state.urgency(&ip));
            let goes_last = !portion.brings() && cost > FEW;
            ((urgency, goes_last, cost, portion.address_kind(state), group), portion)
        })
        .collect();
    order.sort_unstable_by_key(|(turn, _)| *turn);
    let mut portions = vec![first];
    // The operations of the last portion. Nothing is added to those of no address.
    let mut filled = most;
    let mut has_waited = waiting.turns(&Group::Others) >= MOST_TURNS_OF_OTHERS;
    for ((.., group), portion) in order {
        let cost = portion.cost();
        if has_waited && cost > most {
            // What no Service needs any more stays: a part that is left may still need it.
            let (rules, removals) = last.items.into_iter().partition(Item::is_rules);
            portions.push(Portion { items: rules, groups: last.groups.clone() });
            last.items = removals;
            (filled, has_waited) = (most, false);
        }
        match portions.last_mut() {
            Some(before) if filled + cost <= most => {
                filled += cost;
                before.append(portion);
            }
            _ => {
                portions.extend(portion.split(group, state, most));
                filled = portions.last().map_or(most, Portion::cost);
            }
        }
    }
    portions.push(last);
    portions.retain(|portion| !portion.is_empty());
    portions
}

/// Divides virtual servers that are compared once more into portions of about so many real servers.
pub(super) fn rechecks(
    virtual_servers: BTreeSet<ServiceAddress>,
    observed: &Observed,
    most: usize,
) -> Vec<Portion> {
    let item = |at: ServiceAddress| {
        let cost = observed.virtual_servers.get(&at).map_or(0, |image| image.real_servers().len());
        Item { key: Key::VirtualServer(at), cost, brings: false }
    };
    packed(virtual_servers.into_iter().map(|at| Portion { items: vec![item(at)], groups: Vec::new() }), most)
}

/// Puts neighbouring portions together, up to so many operations.
fn packed(parts: impl IntoIterator<Item = Portion>, most: usize) -> Vec<Portion> {
    let mut all: Vec<Portion> = Vec::new();
    let mut cost = 0;
    for part in parts.into_iter().filter(|part| !part.is_empty()) {
        cost += part.cost();
        match all.last_mut() {
            Some(last) if cost <= most => last.items.extend(part.items),
            _ => {
                cost = part.cost();
                all.push(part);
            }
        }
    }
    all
}

/// Whether an address is bound, or shall be.
fn is_vip(ip: &IpAddr, state: &State, observed: &Observed) -> bool {
    let links = &observed.dummy_interface;
    state.wants_vip(ip) || links.bound.contains(ip) || links.stale_bindings.contains(ip)
}

/// Whether others rest on a key of no group. The rest must stay until nothing needs it.
fn is_for_others(key: &Key, state: &State) -> bool {
    match key {
        Key::Device | Key::Table(_) => true,
        Key::Tunnel(family) => state.unpacks(*family),
        Key::Element(element) => state.wants_element(element),
        Key::Rules(_) | Key::Vip(_) | Key::VirtualServer(_) => false,
    }
}

impl Group {
    /// The address of its virtual servers.
    pub(crate) fn ip(&self) -> Option<IpAddr> {
        match self {
            Self::Vip(ip) => Some(*ip),
            Self::VirtualServer(at) => Some(at.ip),
            Self::Others => None,
        }
    }
}

impl Item {
    fn new(key: Key, state: &State, observed: &Observed) -> Self {
        let (cost, brings) = match &key {
            Key::VirtualServer(at) => {
                let PendingChanges { coming, going } = pending_changes(state, observed, at);
                (1 + coming + going, coming > 0 || going == 0 && state.virtual_server(at).is_some())
            }
            Key::Element(element @ Element::AllowedSource(_)) => {
                (COST_OF_SOURCE_RANGE, state.wants_element(element))
            }
            Key::Element(element) => (1, state.wants_element(element)),
            Key::Vip(vip) => (1, state.wants_vip(vip)),
            Key::Device | Key::Table(_) | Key::Rules(_) | Key::Tunnel(_) => (1, true),
        };
        Self { key, cost, brings }
    }

    fn is_rules(&self) -> bool {
        matches!(self.key, Key::Rules(_))
    }
}

impl Portion {
    fn of(group: Group) -> Self {
        Self { items: Vec::new(), groups: vec![group] }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = Key> {
        self.items.iter().map(|item| item.key)
    }

    pub(super) fn virtual_servers(&self) -> impl Iterator<Item = ServiceAddress> {
        self.keys().filter_map(|key| key.virtual_server())
    }

    fn cost(&self) -> usize {
        self.items.iter().map(|item| item.cost).sum()
    }

    fn brings(&self) -> bool {
        self.items.iter().any(|item| item.brings)
    }

    /// The Service of its first virtual server, while it belongs to one group; `None` if it was deleted.
    fn service<'a>(&self, state: &'a State) -> Option<&'a ObjectName> {
        self.virtual_servers().find_map(|at| state.owner(&at))
    }

    /// What the address is to this Service.
    fn address_kind(&self, state: &State) -> Option<AddressKind> {
        self.virtual_servers().find_map(|at| state.virtual_server(&at)).map(|server| server.kind)
    }

    /// Adds what belongs to other groups.
    fn append(&mut self, other: Self) {
        self.items.extend(other.items);
        self.groups.extend(other.groups);
    }

    /// Divides what belongs to one group, and is too much, by virtual servers. Each has its elements with it,
    /// and those come last from which something only goes. The address is bound after all, and unbound
    /// before.
    fn split(self, group: Group, state: &State, most: usize) -> Vec<Self> {
        if self.cost() <= most {
            return vec![self];
        }
        let is_wanted = group.ip().is_some_and(|ip| state.wants_vip(&ip));
        let (mut before, mut after) = (Self::default(), Self::default());
        let mut by_server: BTreeMap<ServiceAddress, Self> = BTreeMap::new();
        for item in self.items {
            let part = match &item.key {
                Key::VirtualServer(at) => by_server.entry(*at).or_default(),
                // Its element is added before it is bound, and deleted after it is unbound.
                Key::Vip(_) if is_wanted => &mut after,
                Key::Element(Element::Vip(_)) if !is_wanted => &mut after,
                Key::Element(element) => match element.virtual_server() {
                    Some(at) => by_server.entry(*at).or_default(),
                    None => &mut before,
                },
                _ => &mut before,
            };
            part.items.push(item);
        }
        let (bring, go): (Vec<_>, Vec<_>) = by_server.into_values().partition(Self::brings);
        let parts = packed([before].into_iter().chain(bring).chain(go).chain([after]), most);
        parts.into_iter().map(|part| Self { groups: vec![group], ..part }).collect()
    }
}

impl From<Dirty> for Portion {
    fn from(dirty: Dirty) -> Self {
        let item = |key| Item { key, cost: 1, brings: true };
        Self { items: dirty.keys().map(item).collect(), groups: Vec::new() }
    }
}

#[cfg(test)]
mod tests;
