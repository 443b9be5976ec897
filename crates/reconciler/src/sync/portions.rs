//! In which portions, and in which order, a sync compares keys and carries out what differs: so that no
//! Service waits long for the many operations of another.

use std::{collections::BTreeSet, mem, net::IpAddr, sync::Arc};

use ipvs::ServiceAddress;
use netfilter::Element;
use rustc_hash::{FxHashMap, FxHashSet};
use service::{AddressKind, DesiredVirtualServer, Dirty, Key, ObjectName, State};
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
    /// The keys of no address on which others rest.
    Foundation,
    /// A VIP with all its virtual servers: it is bound after the last of them, and unbound before the first
    /// goes.
    Vip(IpAddr),
    /// A virtual server at an address that is not bound: a NodePort.
    VirtualServer(ServiceAddress),
    /// The rules that take over the traffic of other programs.
    Rules,
    /// The other keys of no address: no Service needs them any more.
    Obsolete,
}

/// Keys whose plan is carried out as a whole, unless it takes too long.
#[derive(Clone, Debug, Default)]
pub(crate) struct Portion {
    keys: Vec<Key>,
    /// The groups whose keys are in it.
    pub(crate) groups: Vec<Group>,
}

/// A key, and the number of its part; once the parts are in order, their position.
#[derive(Clone, Copy, Debug)]
struct Item {
    key: Key,
    part: u32,
}

/// The keys of a group.
#[derive(Debug)]
struct Part<'a> {
    group: Group,
    number: u32,
    /// How many keys it has.
    size: usize,
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
///
/// At a start there are hundreds of thousands of keys, so each is kept once: in one list, from which the portions are
/// taken.
pub(super) fn portions(
    dirty: Dirty,
    state: &State,
    observed: &Observed,
    waiting: &Waiting,
    most: usize,
) -> impl Iterator<Item = Portion> + use<> {
    let (mut items, mut parts) = grouped(dirty, state, observed);
    let sizes = if parts.iter().map(|part| part.cost.operations).sum::<usize>() <= most {
        vec![(items.len(), parts.into_iter().map(|part| part.group).collect())]
    } else {
        put_in_order(&mut items, &mut parts, state, waiting, most);
        divided(&mut items, &parts, state, observed, most)
    };
    let mut keys = items.into_iter().map(|item| item.key);
    sizes.into_iter().map(move |(size, groups)| Portion { keys: keys.by_ref().take(size).collect(), groups })
}

/// The keys with their groups.
fn grouped<'a>(dirty: Dirty, state: &'a State, observed: &Observed) -> (Vec<Item>, Vec<Part<'a>>) {
    let mut items = Vec::with_capacity(dirty.len());
    let mut parts: Vec<Part<'a>> = Vec::new();
    let mut numbers: FxHashMap<Group, u32> = FxHashMap::default();
    for key in dirty.into_keys() {
        let next = u32::try_from(parts.len()).unwrap_or(u32::MAX);
        // Mostly the address is known: its element comes first.
        let known = key.belongs_to().and_then(|at| numbers.get(&Group::Vip(at.ip)).copied());
        let number = known.unwrap_or_else(|| {
            *numbers.entry(Group::of_key(&key, state, observed)).or_insert_with_key(|group| {
                parts.push(Part::new(*group, next));
                next
            })
        });
        if let Some(part) = parts.get_mut(number as usize) {
            part.add(&key, state, observed);
        }
        items.push(Item { key, part: number });
    }
    (items, parts)
}

/// Puts the parts, and the keys with them, into the order in which they are carried out.
fn put_in_order(items: &mut [Item], parts: &mut [Part<'_>], state: &State, waiting: &Waiting, most: usize) {
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
        let large = parts.iter().position(|part| part.is_divided(most));
        if let Some(waited) = large.zip(rules).and_then(|(large, rules)| parts.get_mut(large..=rules)) {
            waited.rotate_right(1);
        }
    }
    let mut ranks = vec![0_u32; parts.len()];
    for (rank, part) in (0..).zip(&*parts) {
        if let Some(of_part) = ranks.get_mut(part.number as usize) {
            *of_part = rank;
        }
    }
    for item in &mut *items {
        item.part = ranks.get(item.part as usize).copied().unwrap_or_default();
    }
    // Of each kind of key, those of most Services are in order already.
    items.sort_by_key(|item| item.part);
}

/// How many keys each portion has, and of which groups. The keys of a group that is more than a portion are put into
/// order.
fn divided(
    mut items: &mut [Item],
    parts: &[Part<'_>],
    state: &State,
    observed: &Observed,
    most: usize,
) -> Vec<(usize, Vec<Group>)> {
    let mut portions: Vec<(usize, Vec<Group>)> = Vec::new();
    // How many more operations the last portion takes.
    let mut room = 0;
    for part in parts {
        let (Part { group, size, .. }, operations) = (part, part.cost.operations);
        let Some((own, later)) = items.split_at_mut_checked(*size) else { break };
        items = later;
        match portions.last_mut() {
            _ if part.is_divided(most) => {
                let sizes = divide_group(own, *group, state, observed, most);
                portions.extend(sizes.into_iter().map(|size| (size, vec![*group])));
                room = 0;
            }
            Some((last, groups)) if group.ip().is_some() && operations <= room => {
                *last += size;
                groups.push(*group);
                room -= operations;
            }
            _ => {
                portions.push((*size, vec![*group]));
                room = if group.ip().is_some() { most.saturating_sub(operations) } else { 0 };
            }
        }
    }
    portions
}

/// Divides the keys of one group by virtual servers, and returns how many keys each portion has. Each virtual server
/// has its elements with it, and those come last from which something only goes. The address is bound after all, and
/// unbound before.
fn divide_group(
    items: &mut [Item],
    group: Group,
    state: &State,
    observed: &Observed,
    most: usize,
) -> Vec<usize> {
    #[derive(PartialEq, Eq, PartialOrd, Ord)]
    enum Phase {
        Before,
        Brings(ServiceAddress),
        Goes(ServiceAddress),
        After,
    }
    let is_wanted = group.ip().is_some_and(|ip| state.wants_vip(&ip));
    let bring = items.iter().filter(|item| Cost::new(&item.key, state, observed).brings);
    let bring: FxHashSet<ServiceAddress> = bring.filter_map(|item| item.key.belongs_to()).collect();
    let phase = |item: &Item| match (&item.key, item.key.belongs_to()) {
        (_, Some(at)) if bring.contains(&at) => Phase::Brings(at),
        (_, Some(at)) => Phase::Goes(at),
        // Its element is added before it is bound, and deleted after it is unbound.
        (Key::Vip(_), None) if is_wanted => Phase::After,
        (Key::Element(Element::Vip(_)), None) if !is_wanted => Phase::After,
        _ => Phase::Before,
    };
    items.sort_by_cached_key(phase);
    let parts = items.chunk_by(|one, next| phase(one) == phase(next)).map(|part| {
        let cost = part.iter().map(|item| Cost::new(&item.key, state, observed).operations).sum();
        (part.len(), cost)
    });
    packed(parts, most)
}

/// Puts neighbouring parts together, up to so many operations. A part is its number of keys, and its operations.
fn packed(parts: impl Iterator<Item = (usize, usize)>, most: usize) -> Vec<usize> {
    let (mut sizes, mut room): (Vec<usize>, usize) = (Vec::new(), 0);
    for (size, operations) in parts {
        match sizes.last_mut() {
            Some(last) if operations <= room => {
                *last += size;
                room -= operations;
            }
            _ => {
                sizes.push(size);
                room = most.saturating_sub(operations);
            }
        }
    }
    sizes
}

/// Divides virtual servers that are compared once more into portions of about so many real servers.
pub(super) fn rechecks(
    virtual_servers: BTreeSet<ServiceAddress>,
    observed: &Observed,
    most: usize,
) -> impl Iterator<Item = Portion> + use<> {
    let real_servers = |at| observed.virtual_servers.get(at).map_or(0, VirtualServerImage::real_server_count);
    let sizes = packed(virtual_servers.iter().map(|at| (1, real_servers(at))), most);
    let mut keys = virtual_servers.into_iter().map(Key::VirtualServer);
    sizes
        .into_iter()
        .map(move |size| Portion { keys: keys.by_ref().take(size).collect(), groups: Vec::new() })
}

/// Whether an address is bound, or shall be.
fn is_vip(ip: &IpAddr, state: &State, observed: &Observed) -> bool {
    let links = &observed.dummy_interface;
    state.wants_vip(ip) || links.bound.contains(ip) || links.stale_bindings.contains(ip)
}

impl Group {
    fn of_key(key: &Key, state: &State, observed: &Observed) -> Self {
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
    fn new(group: Group, number: u32) -> Self {
        Self { group, number, size: 0, cost: Cost::default(), service: None, address_kind: None }
    }

    fn add(&mut self, key: &Key, state: &'a State, observed: &Observed) {
        let Cost { operations, brings } = match key {
            Key::VirtualServer(at) => {
                let wanted = state.owned_virtual_server(at);
                self.service = self.service.or(wanted.map(|(owner, _)| owner));
                self.address_kind = self.address_kind.or(wanted.map(|(_, server)| server.kind));
                Cost::of_virtual_server(at, wanted.map(|(_, server)| server), observed)
            }
            _ => Cost::new(key, state, observed),
        };
        self.size += 1;
        self.cost.operations += operations;
        self.cost.brings |= brings;
    }

    /// Whether it is more than a portion, and can be divided.
    fn is_divided(&self, most: usize) -> bool {
        self.group.ip().is_some() && self.cost.operations > most
    }
}

impl Cost {
    fn new(key: &Key, state: &State, observed: &Observed) -> Self {
        let (operations, brings) = match key {
            Key::VirtualServer(at) => {
                return Self::of_virtual_server(at, state.virtual_server(at), observed);
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

    fn of_virtual_server(
        at: &ServiceAddress,
        wanted: Option<&Arc<DesiredVirtualServer>>,
        observed: &Observed,
    ) -> Self {
        let image = observed.virtual_servers.get(at);
        let RealServerChanges { coming, going } = real_server_changes(wanted, image);
        Self { operations: 1 + coming + going, brings: coming > 0 || going == 0 && wanted.is_some() }
    }
}

impl Portion {
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
impl From<Dirty> for Portion {
    fn from(dirty: Dirty) -> Self {
        Self { keys: dirty.into_keys().collect(), groups: Vec::new() }
    }
}

#[cfg(test)]
mod tests;
