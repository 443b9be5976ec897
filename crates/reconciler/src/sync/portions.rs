//! In which portions, and in which order, a sync carries out what it must look at: so that no Service waits long for
//! the many operations of another.

use std::{collections::BTreeMap, mem, net::IpAddr};

use ipvs::ServiceAddress;
use netfilter::Element;
use rustc_hash::{FxHashMap, FxHashSet};
use service::{AddressKind, Dirty, Key, ObjectName, State};
use watcher::{Observed, PendingChanges, pending_changes};

/// How many operations a portion has at most, unless a single virtual server has more: 20 to 40 ms of work on a kernel
/// without anything in its way. On a slower one a portion has fewer ([`Pace::portion`](super::pace::Pace::portion)).
pub(crate) const PORTION: usize = 2_000;

/// How many operations an allowed source range counts for. In the kernel's set of ranges each insertion and removal costs
/// as much as there are ranges (net/netfilter/nft_set_pipapo.c).
const COST_OF_SOURCE_RANGE: usize = 8;

/// So many operations of a Service of which something only goes are done in their turn. More make what is added afterwards
/// slow, and come last.
const FEW: usize = 100;

/// What belongs together: it is carried out in the order of one plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Group {
    /// A VIP with all its virtual servers: it is bound after the last of them, and unbound before the first goes.
    Vip(IpAddr),
    /// A virtual server at an address that is not bound: a NodePort.
    VirtualServer(ServiceAddress),
}

/// Keys whose plan is carried out as a whole, unless it takes too long.
#[derive(Debug, Default)]
pub(crate) struct Portion {
    pub(crate) keys: Vec<Key>,
    /// How many operations it has, about.
    cost: usize,
    /// Whether something comes that was not there, or changes.
    brings: bool,
    /// The groups whose keys are in it.
    pub(crate) groups: Vec<Group>,
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

    /// The cost of a group that counts in its turn: half as much with each sync that it has waited, so that every one comes
    /// first in the end.
    fn counted_cost(&self, group: &Group, cost: usize) -> usize {
        let waited = self.0.get(group).copied().unwrap_or_default();
        cost.checked_shr(waited).unwrap_or_default()
    }
}

/// Divides keys into portions, in the order in which they are carried out: what all others rest on; urgent Services; the
/// others, those with few operations first, each with its ClusterIP first; those of which much only goes; and last the
/// rules that take over the traffic of other programs, and what no Service needs any more.
///
/// A portion has `most` operations, or those of one virtual server. Only few are not divided at all.
pub(super) fn portions(
    dirty: &Dirty,
    state: &State,
    observed: &Observed,
    waiting: &Waiting,
    most: usize,
) -> Vec<Portion> {
    let (mut first, mut last) = (Vec::new(), Vec::new());
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
        match group {
            Some(group) => groups.entry(group).or_default().add(key, state, observed),
            None if is_for_others(&key, state) => first.push(key),
            None => last.push(key),
        }
    }
    if groups.values().map(|group| group.cost).sum::<usize>() <= most {
        let keys = dirty.keys().collect();
        return vec![Portion { groups: groups.into_keys().collect(), keys, ..Portion::default() }];
    }
    let mut of_services: FxHashMap<&ObjectName, usize> = FxHashMap::default();
    for portion in groups.values() {
        if let Some(service) = portion.service(state) {
            *of_services.entry(service).or_default() += portion.cost;
        }
    }
    let mut order: Vec<_> = groups
        .into_iter()
        .map(|(group, portion)| {
            let of_service = portion.service(state).and_then(|service| of_services.get(service));
            let cost = waiting.counted_cost(&group, of_service.copied().unwrap_or(portion.cost));
            let (urgency, kind) = (state.urgency(&group.ip()), portion.address_kind(state));
            let goes_last = !portion.brings && cost > FEW;
            ((urgency, goes_last, cost, kind, group), portion)
        })
        .collect();
    order.sort_unstable_by_key(|(turn, _)| *turn);
    let mut portions = vec![Portion { keys: first, ..Portion::default() }];
    for ((.., group), portion) in order {
        match portions.last_mut() {
            Some(before) if !before.groups.is_empty() && before.cost + portion.cost <= most => {
                before.append(portion, group);
            }
            _ => {
                let parts = portion.split(group, state, observed, most).into_iter();
                portions.extend(parts.map(|part| Portion { groups: vec![group], ..part }));
            }
        }
    }
    portions.push(Portion { keys: last, ..Portion::default() });
    portions.retain(|portion| !portion.keys.is_empty());
    portions
}

/// Whether an address is bound, or shall be.
fn is_vip(ip: &IpAddr, state: &State, observed: &Observed) -> bool {
    let links = &observed.dummy_interface;
    state.wants_vip(ip) || links.bound.contains(ip) || links.stale_bindings.contains(ip)
}

/// Whether a key of no group is something on which others rest. The rest must stay until nothing needs it.
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
    pub(crate) fn ip(&self) -> IpAddr {
        match self {
            Self::Vip(ip) => *ip,
            Self::VirtualServer(at) => at.ip,
        }
    }
}

impl Portion {
    /// The Service of its first virtual server, while it belongs to one group; `None` if it was deleted.
    fn service<'a>(&self, state: &'a State) -> Option<&'a ObjectName> {
        self.virtual_servers().find_map(|at| state.owner(at))
    }

    /// What the address is to this Service.
    fn address_kind(&self, state: &State) -> Option<AddressKind> {
        self.virtual_servers().find_map(|at| state.virtual_server(at)).map(|server| server.kind)
    }

    fn virtual_servers(&self) -> impl Iterator<Item = &ServiceAddress> {
        self.keys.iter().filter_map(|key| if let Key::VirtualServer(at) = key { Some(at) } else { None })
    }

    /// Adds a key.
    fn add(&mut self, key: Key, state: &State, observed: &Observed) {
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
        self.cost += cost;
        self.brings |= brings;
        self.keys.push(key);
    }

    /// Adds what belongs to another group.
    fn append(&mut self, other: Self, group: Group) {
        self.keys.extend(other.keys);
        self.cost += other.cost;
        self.groups.push(group);
    }

    /// Divides what belongs to one group, and is too much, by virtual servers. Each has its elements with it, and those come
    /// last from which something only goes. The address is bound after all, and unbound before.
    fn split(self, group: Group, state: &State, observed: &Observed, most: usize) -> Vec<Self> {
        if self.cost <= most {
            return vec![self];
        }
        let ip = group.ip();
        let mut by_server: BTreeMap<Option<ServiceAddress>, Self> = BTreeMap::new();
        let (mut before, mut after) = (Self::default(), Self::default());
        for key in self.keys {
            match &key {
                // Its element is added before it is bound, and deleted after it is unbound.
                Key::Vip(_) if state.wants_vip(&ip) => after.add(key, state, observed),
                Key::Element(Element::Vip(_)) if state.wants_vip(&ip) => before.add(key, state, observed),
                Key::Element(Element::Vip(_)) => after.add(key, state, observed),
                Key::VirtualServer(at) => by_server.entry(Some(*at)).or_default().add(key, state, observed),
                Key::Element(element) => {
                    let at = element.virtual_server().copied();
                    by_server.entry(at).or_default().add(key, state, observed);
                }
                _ => before.add(key, state, observed),
            }
        }
        let (bring, go): (Vec<_>, Vec<_>) = by_server.into_values().partition(|server| server.brings);
        let all = [before].into_iter().chain(bring).chain(go).chain([after]);
        let mut parts: Vec<Self> = Vec::new();
        for part in all.filter(|part| !part.keys.is_empty()) {
            match parts.last_mut() {
                Some(last) if last.cost + part.cost <= most => {
                    last.keys.extend(part.keys);
                    last.cost += part.cost;
                }
                _ => parts.push(part),
            }
        }
        parts
    }
}

#[cfg(test)]
mod tests;
