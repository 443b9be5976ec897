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
const MOST_TURNS_OF_OTHERS: u32 = 64;

/// Keys that belong together: they are carried out in the order of one plan.
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
    /// How many operations its keys have together, about.
    cost: usize,
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
    dirty: Dirty,
    state: &State,
    observed: &Observed,
    waiting: &Waiting,
    most: usize,
) -> Vec<Portion> {
    let (mut first, mut last) = (Portion::default(), Portion::for_group(Group::Others));
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
            Some(group) => groups.entry(group).or_insert_with(|| Portion::for_group(group)),
            None if is_for_others(&key, state) => &mut first,
            None => &mut last,
        };
        portion.push(Item::new(key, state, observed));
    }
    // At a start there are hundreds of thousands.
    drop(dirty);
    if groups.values().map(|portion| portion.cost).sum::<usize>() <= most {
        let others = [first, Portion { groups: Vec::new(), ..last }];
        return vec![others.into_iter().chain(groups.into_values()).fold(Portion::default(), Portion::with)];
    }
    let mut costs: FxHashMap<&ObjectName, usize> = FxHashMap::default();
    let mut order = Vec::with_capacity(groups.len());
    for (group, portion) in groups {
        let service = portion.service(state);
        if let Some(service) = service {
            *costs.entry(service).or_default() += portion.cost;
        }
        order.push((group, service, portion));
    }
    order.sort_by_cached_key(|(group, service, portion)| {
        let of_service = service.and_then(|service| costs.get(service)).copied();
        let cost = waiting.counted_cost(group, of_service.unwrap_or(portion.cost));
        let urgency = group.ip().map(|ip| state.urgency(&ip));
        (urgency, !portion.brings() && cost > FEW, cost, portion.address_kind(state), *group)
    });
    let mut portions: Vec<Portion> = Vec::new();
    let mut has_waited = waiting.turns(&Group::Others) >= MOST_TURNS_OF_OTHERS;
    for (group, _, portion) in order {
        if has_waited && portion.cost > most {
            // What no Service needs any more stays: a part that is left may still need it.
            let rules = last.items.extract_if(.., |item| item.is_rules()).collect();
            portions.push(Portion { items: rules, cost: 0, groups: last.groups.clone() });
            has_waited = false;
        }
        match portions.pop_if(|before| before.cost + portion.cost <= most) {
            Some(before) => portions.push(before.with(portion)),
            None => portions.extend(portion.split(group, state, most)),
        }
    }
    let all = [first].into_iter().chain(portions).chain([last]);
    all.filter(|portion| !portion.is_empty()).collect()
}

/// Divides virtual servers that are compared once more into portions of about so many real servers.
pub(super) fn rechecks(
    virtual_servers: BTreeSet<ServiceAddress>,
    observed: &Observed,
    most: usize,
) -> Vec<Portion> {
    let portion = |at: ServiceAddress| {
        let cost = observed.virtual_servers.get(&at).map_or(0, VirtualServerImage::real_server_count);
        Portion::from_iter([Item { key: Key::VirtualServer(at), cost, brings: false }])
    };
    packed(virtual_servers.into_iter().map(portion), most)
}

/// Puts neighbouring portions together, up to so many operations.
fn packed(parts: impl IntoIterator<Item = Portion>, most: usize) -> Vec<Portion> {
    let mut all: Vec<Portion> = Vec::new();
    for part in parts.into_iter().filter(|part| !part.is_empty()) {
        match all.pop_if(|last| last.cost + part.cost <= most) {
            Some(last) => all.push(last.with(part)),
            None => all.push(part),
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
                let RealServerChanges { coming, going } = real_server_changes(state, observed, at);
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
    fn for_group(group: Group) -> Self {
        Self { groups: vec![group], ..Self::default() }
    }

    fn push(&mut self, item: Item) {
        self.cost += item.cost;
        self.items.push(item);
    }

    /// Both together.
    fn with(mut self, other: Self) -> Self {
        self.cost += other.cost;
        self.items.extend(other.items);
        self.groups.extend(other.groups);
        self
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

    fn brings(&self) -> bool {
        self.items.iter().any(|item| item.brings)
    }

    /// The Service of its first virtual server, while it belongs to one group; `None` if it was deleted.
    fn service<'a>(&self, state: &'a State) -> Option<&'a ObjectName> {
        self.virtual_servers().find_map(|at| state.owner(&at))
    }

    /// The kind of the address in this Service.
    fn address_kind(&self, state: &State) -> Option<AddressKind> {
        self.virtual_servers().find_map(|at| state.virtual_server(&at)).map(|server| server.kind)
    }

    /// Divides what belongs to one group, and is too much, by virtual servers. Each has its elements with it,
    /// and those come last from which something only goes. The address is bound after all, and unbound
    /// before.
    fn split(self, group: Group, state: &State, most: usize) -> Vec<Self> {
        if self.cost <= most {
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
            part.push(item);
        }
        let (bring, go): (Vec<_>, Vec<_>) = by_server.into_values().partition(Self::brings);
        let parts = packed([before].into_iter().chain(bring).chain(go).chain([after]), most);
        parts.into_iter().map(|part| Self { groups: vec![group], ..part }).collect()
    }
}

/// Keys of no group.
impl FromIterator<Item> for Portion {
    fn from_iter<I: IntoIterator<Item = Item>>(items: I) -> Self {
        let mut portion = Self::default();
        items.into_iter().for_each(|item| portion.push(item));
        portion
    }
}

impl From<&Dirty> for Portion {
    fn from(dirty: &Dirty) -> Self {
        dirty.keys().map(|key| Item { key, cost: 1, brings: true }).collect()
    }
}

#[cfg(test)]
mod tests;
