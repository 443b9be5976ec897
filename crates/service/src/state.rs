//! All inputs together, and what they ask of the kernel.

mod claims;
mod dirty;
mod ejection;
mod former_ages;
mod inputs;
mod service_entry;
mod standings;
mod totals;

pub use claims::{Conflict, ConflictLoss};
pub use dirty::{Dirty, Key};
pub use totals::Reports;

pub(crate) use claims::{Claim, Claims, ConflictIndex};
pub(crate) use former_ages::FormerAges;
pub(crate) use inputs::Inputs;
pub(crate) use service_entry::{Computed, ServiceEntry};
pub(crate) use totals::SharedKeys;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use ipvs::{Family, ServiceAddress};
use netfilter::Element;

use crate::{
    compute::{DesiredService, DesiredVirtualServer, Urgency},
    direct_return::Demand,
    input::{Change, ObjectName, Options, Problem},
};

/// The latest inputs of all Services, and what they ask of the kernel.
///
/// Several Services may claim one address and port. One holds it: the first by the kind of the address
/// ([`AddressKind`](crate::AddressKind)), then the oldest, then the first by name. The others' claims wait
/// until the owner withdraws. VIPs and elements that belong to no virtual server are shared: they are wanted until
/// the last Service that asks for them is gone.
#[derive(Debug)]
pub struct State {
    pub(crate) inputs: Inputs,
    claims: Claims,
    conflict_index: ConflictIndex,
    shared: SharedKeys,
    pub(crate) direct_return: Demand,
    reports: Reports,
    /// The last owners of addresses that have no owner now.
    former_owners: BTreeMap<ServiceAddress, ObjectName>,
}

impl State {
    /// No Service, no slice, an unknown node.
    pub fn new(options: Options) -> Self {
        Self {
            inputs: Inputs::new(options),
            claims: Claims::default(),
            conflict_index: ConflictIndex::default(),
            shared: SharedKeys::default(),
            direct_return: Demand::default(),
            reports: Reports::default(),
            former_owners: BTreeMap::new(),
        }
    }

    /// Applies a change and returns the keys whose desired value may have changed. Keys whose desired value is
    /// known to be the same are left out.
    pub fn apply(&mut self, change: Change) -> Dirty {
        let mut dirty = Dirty::default();
        let unpacked = Family::BOTH.map(|family| self.unpacks(family));
        let peers_before = self.inputs.node.peers.clone();
        let claims = &self.claims;
        let services = match change {
            Change::Answers(answers) => self.inputs.judge(&answers, |at| claims.owner(at)),
            change => self.inputs.apply(change),
        };
        for service in services {
            let now = self.inputs.decide(&service).ok().map(Computed::from_decisions);
            let changed = now.as_ref() != self.inputs.computed(&service);
            let before = self.inputs.set_computed(&service, now);
            if changed {
                self.update(&service, before.as_ref(), &mut dirty);
            }
            let problems = self.inputs.problems_of(&service).map(Problem::event_text).collect();
            self.reports.set_problems(&service, problems);
        }
        self.touch_tunnels(unpacked, &peers_before, &mut dirty);
        self.direct_return.update(&peers_before, &self.inputs.node.peers);
        dirty
    }

    /// The configuration that is the same for every Service.
    pub fn options(&self) -> &Options {
        &self.inputs.options
    }

    /// Whether both lists have arrived, and the other nodes too if any address depends on them.
    /// Until then the desired state is incomplete and must not be acted on. Once it is complete it stays so.
    pub fn synced(&self) -> bool {
        self.inputs.complete
    }

    /// Whether the lists of Services and EndpointSlices have arrived.
    pub fn listed(&self) -> bool {
        self.inputs.listed()
    }

    /// Whether anything depends on the addresses of other nodes: an external address, which must not be one of theirs,
    /// or a tunnel, which leads to one.
    pub fn needs_nodes(&self) -> bool {
        self.inputs.addresses.has_external_addresses() || !self.unpacking().is_empty()
    }

    /// The virtual server at an address, of the Service that owns it.
    pub fn virtual_server(&self, address: &ServiceAddress) -> Option<&Arc<DesiredVirtualServer>> {
        self.inputs.computed(self.claims.owner(address)?)?.virtual_server(address)
    }

    /// Every virtual server, in no particular order.
    pub fn virtual_servers(&self) -> impl Iterator<Item = &Arc<DesiredVirtualServer>> {
        self.claims
            .owners()
            .filter_map(|(address, service)| self.inputs.computed(service)?.virtual_server(address))
    }

    /// The address of every virtual server with the Service that owns it, in no particular order.
    pub fn owners(&self) -> impl Iterator<Item = (&ServiceAddress, &ObjectName)> {
        self.claims.owners()
    }

    /// How many virtual servers of a family there are.
    pub fn virtual_server_count(&self, family: Family) -> usize {
        self.claims.count(family)
    }

    /// Whether a Service wants this address to be local to the node.
    pub fn wants_vip(&self, vip: &IpAddr) -> bool {
        self.shared.vips.contains(vip)
    }

    /// Every address that must be local to the node, each once, in no particular order.
    pub fn vips(&self) -> impl Iterator<Item = &IpAddr> {
        self.shared.vips.iter()
    }

    /// The external addresses at which Services are served and that are not made local to the node, because another
    /// host has them; sorted. None as long as it is not known which addresses other nodes have.
    pub fn unbound(&self) -> BTreeSet<IpAddr> {
        if !self.inputs.node.knows_nodes(self.options()) {
            return BTreeSet::new();
        }
        let external = self.virtual_servers().filter(|server| server.kind.is_external());
        let node = &self.inputs.node;
        external.map(|server| server.address.ip).filter(|ip| !self.wants_vip(ip) && !node.has(ip)).collect()
    }

    /// Whether a Service wants this element in our nf_tables sets.
    pub fn wants_element(&self, element: &Element) -> bool {
        if element.is_for_unpacking() && !self.unpacks(element.family()) {
            return false;
        }
        match (element, element.virtual_server()) {
            (_, Some(of)) => self.virtual_server(of).is_some_and(|server| server.has_element(element)),
            (Element::Vip(vip), None) => self.wants_vip(vip),
            (Element::TunnelSender(ip), None) => self.inputs.node.peers.send_from(ip),
            (_, None) => self.shared.elements.contains(element),
        }
    }

    /// Every element that our sets must contain, each once, in no particular order.
    pub fn elements(&self) -> impl Iterator<Item = Element> {
        let of_vips = self.vips().copied().map(Element::Vip);
        let all = self.elements_of_services().chain(self.tunnel_senders()).chain(of_vips);
        all.filter(|element| !element.is_for_unpacking() || self.unpacks(element.family()))
    }

    fn tunnel_senders(&self) -> impl Iterator<Item = Element> {
        let senders = Family::BOTH.into_iter().flat_map(|family| self.inputs.node.peers.senders(family));
        senders.map(Element::TunnelSender)
    }

    /// The elements that Services ask for beside VIPs, those among them that are wanted only where this node unpacks.
    pub(crate) fn elements_of_services(&self) -> impl Iterator<Item = Element> {
        let of_servers = self.virtual_servers().flat_map(|server| server.elements());
        of_servers.chain(self.shared.elements.iter().copied())
    }

    /// The Service that owns an address and port.
    pub fn owner(&self, of: &ServiceAddress) -> Option<&ObjectName> {
        self.claims.owner(of)
    }

    /// The Service that owns an address and port, or that owned it last.
    pub fn last_owner(&self, of: &ServiceAddress) -> Option<&ObjectName> {
        self.owner(of).or_else(|| self.former_owners.get(of))
    }

    /// The addresses that have no owner now, with the last one, sorted.
    pub fn former_owners(&self) -> impl Iterator<Item = (&ServiceAddress, &ObjectName)> {
        self.former_owners.iter()
    }

    /// Forgets the last owners of addresses without an owner, except those to keep: of which the kernel still has
    /// something.
    pub fn retain_former_owners(&mut self, mut keep: impl FnMut(&ServiceAddress) -> bool) {
        self.former_owners.retain(|address, _| keep(address));
    }

    /// How soon an address must work. The most urgent Service there decides for all: its VIP would otherwise attract
    /// traffic before the virtual servers of the others exist.
    pub fn urgency(&self, of: &IpAddr) -> Urgency {
        if self.shared.urgent_ips.contains(of) { Urgency::First } else { Urgency::Normal }
    }

    /// The desired state for one Service, including addresses that another Service owns. `None`: there is
    /// no such Service, or it is not ours to serve.
    pub fn desired(&self, service: &ObjectName) -> Option<&DesiredService> {
        self.inputs.computed(service).map(|computed| &computed.desired)
    }

    /// The addresses and ports that more than one Service wants, sorted.
    pub fn conflicts(&self) -> impl Iterator<Item = Conflict<'_>> {
        self.claims.conflicts()
    }

    /// How many of these addresses there are.
    pub fn conflict_count(&self) -> usize {
        self.claims.conflict_count()
    }

    /// The Services that want an address and port that another one holds, sorted by name, each with the first of its
    /// losses.
    pub fn conflict_losses(&self) -> impl Iterator<Item = (&ObjectName, ConflictLoss<'_>)> {
        self.conflict_index.all(&self.claims)
    }

    /// The reports on Services for load balancers, metrics and `status`.
    pub fn reports(&self) -> &Reports {
        &self.reports
    }

    /// A number that changes whenever the conflicts, the refusals or the problems do.
    pub fn reports_revision(&self) -> u64 {
        self.claims.revision + self.reports.revision
    }

    /// All problems of the inputs, in no particular order.
    pub fn problems(&self) -> impl Iterator<Item = Problem<'_>> {
        self.inputs.problems()
    }

    /// Whether a Service has a NodePort while no address of this node serves NodePorts, though the options ask for more
    /// than loopback addresses. Reads every Service if none does.
    pub fn has_unserved_node_ports(&self) -> bool {
        self.node_port_addresses().is_empty()
            && self.inputs.options.wants_node_ports()
            && self.inputs.has_node_ports()
    }

    /// The addresses of this node at which NodePorts are served, sorted. None, if the options name an
    /// address that the node does not have.
    pub fn node_port_addresses(&self) -> &[IpAddr] {
        &self.inputs.node.node_port_addresses
    }

    /// Whether weights change with time: [`Change::Time`] has an effect, and should come once a second.
    pub fn is_unsettled(&self) -> bool {
        self.inputs.is_unsettled()
    }

    /// Whether an endpoint is ejected or on trial, so that also those that answer matter.
    pub fn awaits_answers(&self) -> bool {
        self.inputs.awaits_answers()
    }

    /// Whether any failing endpoint would be ejected, so that [`Change::Answers`] has an effect.
    pub fn ejects(&self) -> bool {
        !self.options().ejection.is_empty() || self.inputs.ejecting > 0
    }

    /// Whether so many endpoints do not answer that the fault is this node's: none is ejected.
    pub fn has_fault(&self) -> bool {
        self.inputs.has_fault()
    }

    /// Replaces what a Service asked for before with what it asks for now.
    fn update(&mut self, service: &ObjectName, before: Option<&Computed>, dirty: &mut Dirty) {
        let now = self.inputs.computed(service);
        // Adding comes first, so that what stays wanted does not cease to be in between.
        for (computed, wanted) in [(now, true), (before, false)] {
            let Some(computed) = computed else { continue };
            self.shared.count(computed, wanted, dirty);
            self.direct_return.count(computed, wanted);
        }
        dirty.reports |=
            self.reports.update(service, before.map(|it| &it.desired), now.map(|it| &it.desired));
        let either = [before, now].into_iter().flatten();
        let addresses: BTreeSet<ServiceAddress> = either.flat_map(Computed::addresses).collect();
        let mut competitors = BTreeSet::new();
        for address in addresses {
            self.reassign(service, before, address, &mut competitors, dirty);
        }
        for competitor in competitors {
            self.conflict_index.update(&competitor, self.inputs.computed(&competitor), &self.claims);
        }
    }

    /// Replaces a Service's claim to an address. Marks the address as dirty if its virtual server has changed,
    /// whichever Service holds it, and collects the winner and the loser if there is a conflict.
    fn reassign(
        &mut self,
        service: &ObjectName,
        before: Option<&Computed>,
        address: ServiceAddress,
        competitors: &mut BTreeSet<ObjectName>,
        dirty: &mut Dirty,
    ) {
        let held_by = self.claims.owner(&address).cloned();
        let revision = self.claims.revision;
        let claim_before = before.and_then(|computed| computed.claim(service, &address));
        let claim_now = self.inputs.computed(service).and_then(|computed| computed.claim(service, &address));
        if claim_before != claim_now {
            if let Some(claim) = claim_before {
                self.claims.withdraw(&address, &claim);
            }
            if let Some(claim) = claim_now {
                let inputs = &self.inputs;
                let held_by = |owner: &ObjectName| inputs.computed(owner)?.claim(owner, &address);
                self.claims.claim(address, claim, held_by);
            }
        }
        if self.claims.revision != revision {
            let owner = self.claims.owner(&address);
            competitors.extend(held_by.iter().chain(owner).cloned());
            competitors.insert(service.clone());
        }
        match (&held_by, self.claims.owner(&address)) {
            (Some(owner), None) => _ = self.former_owners.insert(address, owner.clone()),
            (_, Some(_)) => _ = self.former_owners.remove(&address),
            (None, None) => {}
        }
        let server_before = held_by
            .and_then(|owner| if owner == *service { before } else { self.inputs.computed(&owner) })
            .and_then(|computed| computed.virtual_server(&address));
        let server_now = self.virtual_server(&address);
        if server_before == server_now {
            return;
        }
        dirty.virtual_servers.insert(address);
        // What was wanted before and is wanted now is toggled twice.
        for server in [server_before, server_now].into_iter().flatten() {
            server.elements().for_each(|element| dirty.toggle_element(element));
        }
    }
}
