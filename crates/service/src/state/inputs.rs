//! The latest inputs of all Services.

use std::{collections::BTreeSet, mem, net::SocketAddr, sync::Arc, time::Instant};

use rustc_hash::{FxHashMap, FxHashSet};

use super::{Computed, FormerAges, ServiceEntry};
use crate::{
    compute::{Decisions, NotServed},
    direct_return::Tunnels,
    input::{
        AddressBook, Change, CompactSlice, EndpointSlice, Event, Interners, Named, Node, ObjectName, Options,
        Peers, Problem, Service, ServiceInputs, ThisNode,
    },
};

/// The namespace and name of the Service by which pods reach the API server.
const API_SERVER: [&str; 2] = ["default", "kubernetes"];

/// The options, and the latest Services, slices and node.
#[derive(Debug)]
pub(crate) struct Inputs {
    /// The configuration that is the same for every Service.
    pub(crate) options: Options,
    /// Boxed, since a hash table keeps much of its room free.
    pub(super) services: FxHashMap<ObjectName, Box<ServiceEntry>>,
    /// The Services with endpoints whose weight changes with time.
    pub(super) unsettled: BTreeSet<ObjectName>,
    /// The latest time that is known. Nothing here reads a clock.
    pub(super) now: Option<Instant>,
    /// How many Services have failing endpoints ejected by their own annotations.
    pub(super) ejecting: usize,
    /// When so many endpoints were last silent that the fault is this node's.
    pub(super) fault: Option<Instant>,
    /// The Service that each slice belongs to; a deletion names the slice only.
    owners: FxHashMap<ObjectName, ObjectName>,
    former_ages: FormerAges,
    /// This node, as far as it is known.
    pub(crate) node: ThisNode,
    /// The addresses of Services and endpoints.
    pub(crate) addresses: AddressBook,
    services_listed: bool,
    slices_listed: bool,
    /// Whether both lists have arrived, and once also the other nodes, if an external address depends on them.
    pub(crate) complete: bool,
    interned: Interners,
}

impl Inputs {
    /// No Service, no slice, an unknown node.
    pub(crate) fn new(options: Options) -> Self {
        Self {
            options,
            services: FxHashMap::default(),
            unsettled: BTreeSet::new(),
            now: None,
            ejecting: 0,
            fault: None,
            owners: FxHashMap::default(),
            former_ages: FormerAges::default(),
            node: ThisNode::default(),
            addresses: AddressBook::default(),
            services_listed: false,
            slices_listed: false,
            complete: false,
            interned: Interners::default(),
        }
    }
}

/// Applying changes. Each method returns the Services whose inputs have changed.
impl Inputs {
    pub(crate) fn apply(&mut self, change: Change) -> BTreeSet<ObjectName> {
        let mut changed = match change {
            Change::Services(event) => {
                self.take(event, Self::put_services, Self::keep_services, Self::remove_service)
            }
            Change::Slices(event) => {
                self.take(event, Self::put_slices, Self::keep_slices, Self::remove_slice)
            }
            Change::Peers(event) => self.take(event, Self::put_peers, Self::keep_peers, Self::remove_peer),
            Change::Node(Some(node)) => self.change_node(|this| this.describe(node)),
            // Whose the virtual servers of answers are is known to the State alone.
            Change::Node(None) | Change::Answers(_) => BTreeSet::new(),
            Change::NodeAddresses { here, lost } => {
                self.change_node(|node| (node.addresses, node.lost) = (here, lost))
            }
            Change::ForgetPeers => self.change_node(|node| {
                node.peers = Arc::default();
                let tunnels = Arc::make_mut(&mut node.tunnels);
                tunnels.unpacking.clear();
                tunnels.before.clear();
            }),
            Change::PeersUnavailable => self.change_peers(|peers| peers.unavailable = true),
            Change::ApiServer(addresses) => self.change_node(|node| node.api_server = addresses),
            Change::Gateways(gateways) => self.change_node(|node| node.gateways = gateways),
            Change::UnpackingPeers(peers) => self.change_tunnels(|tunnels| tunnels.unpacking = peers),
            Change::TunnelledBefore(before) => self.change_tunnels(|tunnels| tunnels.before = before),
            Change::LinkMtu(mtu) => self.change_tunnels(|tunnels| tunnels.link_mtu = Some(mtu)),
            Change::MissingTunnels(missing) => self.change_tunnels(|tunnels| tunnels.missing = missing),
            Change::TunnelsInUse(in_use) => self.change_tunnels(|tunnels| tunnels.in_use = in_use),
            Change::Time(now) => self.advance(now),
            Change::MissingSchedulers(missing) => self.change_node(|node| node.missing_schedulers = missing),
        };
        let uncounted = mem::take(&mut self.addresses.uncounted);
        if !uncounted.is_empty() {
            let entries = self.services.values().filter_map(|entry| Some((entry, entry.owner()?)));
            let all = entries.flat_map(|(entry, owner)| {
                let found = entry.endpoint_ips().filter(|ip| uncounted.contains(ip));
                found.map(move |ip| (*ip, owner.clone()))
            });
            self.addresses.count_new(&uncounted, all);
        }
        changed.append(&mut self.addresses.affected);
        if mem::take(&mut self.addresses.changed_cluster_ips).iter().any(|ip| self.node.had(ip)) {
            changed.extend(self.derive_node(&self.node.clone()));
        }
        let needs_nodes = self.addresses.has_external_addresses();
        self.complete |= self.listed() && (!needs_nodes || self.node.knows_nodes(&self.options));
        changed
    }

    /// Applies an event of a kind of object: `put` keeps objects that are new or different, `keep` removes all but
    /// those of these names, which are all that there are, and `remove` removes one.
    fn take<T: Named>(
        &mut self,
        event: Event<T>,
        put: fn(&mut Self, Vec<T>) -> BTreeSet<ObjectName>,
        keep: fn(&mut Self, &FxHashSet<ObjectName>) -> BTreeSet<ObjectName>,
        remove: fn(&mut Self, &ObjectName) -> BTreeSet<ObjectName>,
    ) -> BTreeSet<ObjectName> {
        match event {
            Event::Replace(objects) => {
                let mut changed = keep(self, &objects.iter().map(T::object_name).collect());
                changed.append(&mut put(self, objects));
                changed
            }
            Event::InitApply(objects) => put(self, objects),
            Event::InitDone(names) => keep(self, &names),
            Event::Apply(object) => put(self, vec![object]),
            Event::Delete(name) => remove(self, &name),
        }
    }

    fn put_services(&mut self, services: Vec<Service>) -> BTreeSet<ObjectName> {
        services.into_iter().filter_map(|service| self.put_service(service)).collect()
    }

    fn keep_services(&mut self, names: &FxHashSet<ObjectName>) -> BTreeSet<ObjectName> {
        self.services_listed = true;
        let mut gone: Vec<_> = self.services.keys().filter(|name| !names.contains(name)).cloned().collect();
        // Only the last are remembered. Sorted, so that every node remembers the same ones.
        gone.sort_unstable();
        gone.iter().flat_map(|name| self.remove_service(name)).collect()
    }

    fn put_service(&mut self, mut service: Service) -> Option<ObjectName> {
        let name = self.kept_name(service.name);
        service.name = name.clone();
        for port in &mut service.ports {
            self.interned.strings.share(&mut port.name);
        }
        service.cluster_ips.shrink_to_fit();
        service.external_ips.shrink_to_fit();
        service.load_balancer_ips.shrink_to_fit();
        service.load_balancer_source_ranges.iter_mut().for_each(Vec::shrink_to_fit);
        service.ports.shrink_to_fit();
        service.problems.shrink_to_fit();
        let entry = self.services.entry(name.clone()).or_default();
        self.former_ages.apply(&mut service, entry.service.as_ref(), &self.options);
        if entry.service.as_ref() == Some(&service) {
            return None;
        }
        self.addresses.replace(entry.service.as_ref(), Some(&service), &self.options);
        let before = entry.owner();
        let (ejects, starts_slowly) =
            (!service.ejection(&self.options).is_empty(), service.slow_start().is_some());
        entry.standings.retain(|_, standing| if standing.starts() { starts_slowly } else { ejects });
        self.ejecting += usize::from(asks_for_ejection(&service));
        self.ejecting -= usize::from(entry.service.as_ref().is_some_and(asks_for_ejection));
        entry.service = Some(service);
        entry.recount_endpoints(before.as_ref(), &mut self.addresses);
        Some(name)
    }

    fn remove_service(&mut self, name: &ObjectName) -> BTreeSet<ObjectName> {
        let Some(entry) = self.services.get_mut(name) else { return BTreeSet::new() };
        let before = entry.owner();
        let Some(service) = entry.service.take() else { return BTreeSet::new() };
        self.ejecting -= usize::from(asks_for_ejection(&service));
        entry.recount_endpoints(before.as_ref(), &mut self.addresses);
        self.addresses.replace(Some(&service), None, &self.options);
        self.former_ages.remember(&service, &self.options);
        BTreeSet::from([service.name])
    }

    fn put_slices(&mut self, slices: Vec<EndpointSlice>) -> BTreeSet<ObjectName> {
        slices.into_iter().flat_map(|slice| self.put_slice(slice)).collect()
    }

    fn keep_slices(&mut self, names: &FxHashSet<ObjectName>) -> BTreeSet<ObjectName> {
        let gone: Vec<_> = self.owners.keys().filter(|name| !names.contains(name)).cloned().collect();
        let mut changed: BTreeSet<_> = gone.iter().flat_map(|name| self.remove_slice(name)).collect();
        if !mem::replace(&mut self.slices_listed, true) {
            // The Services that have waited for slices have none.
            let bare = self.services.iter().filter(|(_, entry)| entry.slices.is_empty());
            changed.extend(bare.map(|(service, _)| service.clone()));
        }
        changed
    }

    /// A slice may arrive before its Service, and a changed label may move it to another Service.
    fn put_slice(&mut self, slice: EndpointSlice) -> BTreeSet<ObjectName> {
        let service = self.kept_name(slice.service.clone());
        let slice = CompactSlice::new(slice, &self.options.node_name, &mut self.interned);
        let mut changed = BTreeSet::new();
        if self.owners.get(&slice.name).is_some_and(|owner| *owner != service) {
            changed.extend(self.remove_slice(&slice.name));
        }
        self.owners.entry(slice.name.clone()).or_insert_with(|| service.clone());
        let entry = self.services.entry(service.clone()).or_default();
        if entry.slice(&slice.name) != Some(&slice) {
            let ready_before = entry.ready_before_change().filter(|_| self.complete);
            let owner = entry.owner();
            if let Some(owner) = &owner {
                self.addresses.add_endpoints(&slice, owner);
            }
            if let (Some(before), Some(owner)) = (entry.put_slice(slice), &owner) {
                self.addresses.remove_endpoints(&before, owner);
            }
            entry.endpoints_changed(ready_before.as_ref());
            if !entry.standings.is_empty() {
                self.unsettled.insert(service.clone());
            }
            changed.extend(self.put_api_endpoints(&service));
            changed.insert(service);
        }
        changed
    }

    fn remove_slice(&mut self, name: &ObjectName) -> BTreeSet<ObjectName> {
        let mut changed = BTreeSet::new();
        if let Some(service) = self.owners.remove(name)
            && let Some(entry) = self.services.get_mut(&service)
            && let Some(before) = entry.remove_slice(name)
        {
            entry.endpoints_changed(None);
            if let Some(owner) = entry.owner() {
                self.addresses.remove_endpoints(&before, &owner);
            }
            changed = self.put_api_endpoints(&service);
            changed.insert(service);
        }
        changed
    }

    /// API servers listen where the Service by which pods reach them has endpoints.
    fn put_api_endpoints(&mut self, of: &ObjectName) -> BTreeSet<ObjectName> {
        let [namespace, name] = API_SERVER;
        if !of.is(namespace, name) {
            return BTreeSet::new();
        }
        let slices = self.services.get(of).map_or(&[][..], |entry| &entry.slices);
        let endpoints = slices.iter().flat_map(|slice| {
            let ports = slice.ports.iter().map(|port| port.port);
            ports.flat_map(|port| slice.endpoints.iter().map(move |it| SocketAddr::new(it.address, port)))
        });
        let endpoints = endpoints.collect();
        self.change_node(|node| node.api_endpoints = endpoints)
    }

    /// Changes facts of this node.
    fn change_node(&mut self, change: impl FnOnce(&mut ThisNode)) -> BTreeSet<ObjectName> {
        let before = self.node.clone();
        change(&mut self.node);
        if self.node == before { BTreeSet::new() } else { self.derive_node(&before) }
    }

    /// Derives what follows from the facts of this node and from the ClusterIPs; `before` is the node without the
    /// change.
    fn derive_node(&mut self, before: &ThisNode) -> BTreeSet<ObjectName> {
        self.node.derive(|ip| self.addresses.is_cluster_ip(ip), &self.options);
        if self.node == *before {
            return BTreeSet::new();
        }
        let dependent =
            self.services.iter().filter(|(_, entry)| entry.depends_on(before, &self.node, &self.options));
        dependent.map(|(service, _)| service.clone()).collect()
    }

    /// Adds other nodes. Each node reports to its Node every few minutes, which changes nothing here.
    fn put_peers(&mut self, nodes: Vec<Node>) -> BTreeSet<ObjectName> {
        if nodes.iter().all(|node| self.node.peers.has_exactly(node)) {
            return BTreeSet::new();
        }
        self.change_peers(|peers| peers.add(nodes))
    }

    fn keep_peers(&mut self, names: &FxHashSet<ObjectName>) -> BTreeSet<ObjectName> {
        self.change_peers(|peers| peers.end_list(|name| names.contains(&ObjectName::new("", name))))
    }

    fn remove_peer(&mut self, name: &ObjectName) -> BTreeSet<ObjectName> {
        self.change_peers(|peers| peers.retain(|other| *other != *name.name()))
    }

    fn change_peers(&mut self, change: impl FnOnce(&mut Peers)) -> BTreeSet<ObjectName> {
        self.change_node(|node| change(Arc::make_mut(&mut node.peers)))
    }

    fn change_tunnels(&mut self, change: impl FnOnce(&mut Tunnels)) -> BTreeSet<ObjectName> {
        self.change_node(|node| change(Arc::make_mut(&mut node.tunnels)))
    }

    /// The copy of a name that is kept already, or else the name itself.
    fn kept_name(&self, name: ObjectName) -> ObjectName {
        self.services.get_key_value(&name).map_or(name, |(kept, _)| kept.clone())
    }
}

impl Inputs {
    /// Whether both lists have arrived.
    pub(crate) fn listed(&self) -> bool {
        self.services_listed && self.slices_listed
    }

    /// The desired state for a Service, as computed last.
    pub(crate) fn computed(&self, service: &ObjectName) -> Option<&Computed> {
        self.services.get(service)?.computed.as_ref()
    }

    /// The names of all Services, in no particular order.
    pub(crate) fn services(&self) -> impl Iterator<Item = &ObjectName> {
        self.services.iter().filter(|(_, entry)| entry.service.is_some()).map(|(name, _)| name)
    }

    /// Every Service, or the name that slices have for one, with its slices; in no particular order.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&ObjectName, &ServiceEntry)> {
        self.services.iter().map(|(name, entry)| (name, &**entry))
    }

    /// The decisions about a Service, or why it is not served. `Err(None)`: a Service without slices waits for the
    /// end of the first list of slices. Otherwise everything would be computed twice at a start.
    pub(crate) fn decide(&self, service: &ObjectName) -> Result<Decisions<'_>, Option<NotServed>> {
        let entry = self.services.get(service).ok_or(Some(NotServed::Unknown))?;
        let service = entry.service.as_ref().ok_or(Some(NotServed::Unknown))?;
        if let Some(why) = NotServed::for_service(service) {
            return Err(Some(why));
        }
        if entry.slices.is_empty() && !self.slices_listed {
            return Err(None);
        }
        Ok(Decisions::new(ServiceInputs {
            service,
            slices: &entry.slices,
            node: &self.node,
            options: &self.options,
            addresses: &self.addresses,
            standings: &entry.standings,
            now: self.now,
        }))
    }

    /// Stores what a Service asks for now, and returns what it asked for before. A Service without any inputs is
    /// forgotten.
    pub(crate) fn set_computed(
        &mut self,
        service: &ObjectName,
        mut now: Option<Computed>,
    ) -> Option<Computed> {
        let entry = self.services.get_mut(service)?;
        if let Some((now, before)) = now.as_mut().zip(entry.computed.as_ref()) {
            now.desired.keep_from(&before.desired);
        }
        let before = mem::replace(&mut entry.computed, now);
        if entry.is_empty() {
            self.services.remove(service);
        }
        before
    }

    /// Whether a Service that is served has a NodePort.
    pub(crate) fn has_node_ports(&self) -> bool {
        let mut served = self.services.values().filter(|entry| entry.computed.is_some());
        served.any(|entry| entry.has_node_ports())
    }

    /// The problems of a Service and its slices.
    pub(crate) fn problems_of(&self, service: &ObjectName) -> impl Iterator<Item = Problem<'_>> {
        self.services.get(service).into_iter().flat_map(|entry| entry.problems())
    }

    /// All problems of the inputs.
    pub(crate) fn problems(&self) -> impl Iterator<Item = Problem<'_>> {
        self.services.values().flat_map(|entry| entry.problems())
    }
}

fn asks_for_ejection(service: &Service) -> bool {
    service.balancing.as_ref().and_then(|it| it.ejection).is_some_and(|it| !it.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forgotten_service_takes_no_memory() {
        let (service, slice) = (ObjectName::new("default", "web"), ObjectName::new("default", "web-1"));
        let mut inputs = Inputs::new(Options::new("node-a"));
        for change in [
            Change::Slices(Event::Apply(EndpointSlice {
                name: slice.clone(),
                service: service.clone(),
                family: ipvs::Family::V4,
                ports: Vec::new(),
                endpoints: Vec::new(),
                weight: None,
                triggered_at: None,
                problems: Vec::new(),
            })),
            Change::Slices(Event::Delete(slice)),
        ] {
            assert_eq!(inputs.apply(change), BTreeSet::from([service.clone()]));
            inputs.set_computed(&service, None);
        }
        assert!(inputs.services.is_empty() && inputs.owners.is_empty());
    }
}
