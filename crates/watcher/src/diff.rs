//! Comparing the desired state with the kernel.

use std::{net::IpAddr, sync::Arc};

use dummy_interface::Operation::{EnsureDevice, EnsureTunnel, RemoveTunnel};
use ipvs::{Command, Family, Forwarding, RealServer, ServiceAddress, ServiceFlags, VirtualServer};
use netfilter::{
    ClusterIpFor, Element, MaxSegmentSize,
    Operation::{AddDirectReturn, InstallTable, PrepareTable, RemoveDirectReturn},
    TunnelExit,
};
use service::{DesiredVirtualServer, Dirty, State, Urgency};

use crate::{
    Draining, Drift, Observed, Ownership, Plan, RealServerImage, VirtualServerImage, is_foreign,
    plan::Differences,
};

/// Compares the desired state with the kernel, and plans what makes the kernel as desired.
///
/// The order makes before it breaks: the device and the tables, then the elements of a VIP, then its
/// virtual and real servers, and the VIP itself last, since it opens the door; urgent Services come
/// first. Removal goes the other way round and comes last. A VIP is never live without its
/// masquerade rule, and no live real server is removed to be added again.
///
/// A new table takes no traffic from the destination NAT of others, such as a former proxy, before everything
/// that serves it instead is in place.
///
/// The changes of the allowed clients of a virtual server follow each other: ranges must not overlap, and a
/// client that is allowed before and after must not be dropped in between. They are divided only with that in
/// mind. A virtual server that becomes open to all clients does so last of all.
pub fn diff(
    desired: &State,
    observed: &Observed,
    dirty: &Dirty,
    ours: &Ownership,
    draining: &Draining,
) -> Plan {
    let mut differences = Differences::default();
    let comparison = Comparison { desired, observed, ours };
    if dirty.device {
        comparison.device(&mut differences);
    }
    dirty.tables.iter().for_each(|family| comparison.table(*family, &mut differences));
    dirty.rules.iter().for_each(|family| comparison.rules(*family, &mut differences));
    for family in &dirty.tunnels {
        comparison.tunnel(*family, &mut differences);
        comparison.senders(*family, &mut differences);
    }
    dirty.elements.iter().for_each(|element| comparison.element(element, &mut differences));
    for key in &dirty.virtual_servers {
        comparison.virtual_server(key, draining, &mut differences);
    }
    dirty.vips.iter().for_each(|vip| comparison.vip(vip, &mut differences));
    differences.into_plan()
}

/// Compares everything desired and everything observed, and plans what makes the kernel as desired. Nothing
/// is known of how long real servers have been draining.
pub fn diff_everything(desired: &State, observed: &Observed, ours: &Ownership) -> Plan {
    diff(desired, observed, &differing(desired, observed, ours), ours, &Draining::default())
}

/// The keys that are not as desired, of everything desired and observed.
pub fn differing(desired: &State, observed: &Observed, ours: &Ownership) -> Dirty {
    let mut dirty = Dirty::default();
    let comparison = Comparison { desired, observed, ours };
    comparison.differing_links(&mut dirty);
    comparison.differing_tables(&mut dirty);
    comparison.differing_virtual_servers(&mut dirty);
    dirty
}

/// The keys that are not as desired, of the parts that have drifted, and the virtual servers that have.
pub fn differing_in(drift: Drift, desired: &State, observed: &Observed, ours: &Ownership) -> Dirty {
    let mut dirty = Dirty { virtual_servers: drift.virtual_servers, ..Dirty::default() };
    let comparison = Comparison { desired, observed, ours };
    if drift.links {
        comparison.differing_links(&mut dirty);
    }
    if drift.tables {
        comparison.differing_tables(&mut dirty);
    }
    dirty
}

/// The real servers of a virtual server that are no longer wanted, including draining ones. Their connections
/// must be read from the kernel before they are compared.
pub fn departing_real_servers<'a>(
    desired: &'a State,
    observed: &'a Observed,
    of: &ServiceAddress,
) -> impl Iterator<Item = RealServerImage> + use<'a> {
    let both = desired.virtual_server(of).zip(observed.virtual_servers.get(of));
    both.into_iter().flat_map(|(wanted, image)| departing(wanted, image))
}

/// How many real servers of a virtual server a plan changes: what its part of the plan costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RealServerChanges {
    /// How many are to be added or edited.
    pub coming: usize,
    /// How many are to be removed.
    pub going: usize,
}

/// Counts the real servers of a virtual server that are not as desired.
pub fn real_server_changes(
    wanted: Option<&Arc<DesiredVirtualServer>>,
    image: Option<&VirtualServerImage>,
) -> RealServerChanges {
    let (coming, going) = match (wanted, image) {
        (Some(wanted), Some(image)) if image.is(wanted) => (0, 0),
        (Some(wanted), Some(image)) => {
            let differs = |real: &&RealServer| {
                image.real_server(&real.address).is_none_or(|image| !as_wanted(&image.config, real))
            };
            (wanted.real_servers.iter().filter(differs).count(), departing(wanted, image).count())
        }
        (Some(wanted), None) => (wanted.real_servers.len(), 0),
        (None, Some(image)) => (0, image.real_server_count()),
        (None, None) => (0, 0),
    };
    RealServerChanges { coming, going }
}

fn departing<'a>(
    wanted: &'a DesiredVirtualServer,
    image: &'a VirtualServerImage,
) -> impl Iterator<Item = RealServerImage> + use<'a> {
    image.real_servers().filter(|server| {
        wanted.real_servers.binary_search_by_key(&server.config.address, |real| real.address).is_err()
    })
}

struct Comparison<'a> {
    desired: &'a State,
    observed: &'a Observed,
    ours: &'a Ownership,
}

impl Comparison<'_> {
    fn device(&self, differences: &mut Differences) {
        if !self.observed.dummy_interface.device {
            differences.device.push(EnsureDevice);
        }
    }

    fn table(&self, family: Family, differences: &mut Differences) {
        if self.lacks_table(family) {
            differences.prepared_tables.push(PrepareTable(family));
        }
    }

    fn rules(&self, family: Family, differences: &mut Differences) {
        if self.lacks_rules(family) {
            differences.tables.push(InstallTable(family));
        }
    }

    fn lacks_table(&self, family: Family) -> bool {
        self.lacks_rules(family) && !self.observed.netfilter.prepared.contains(&family)
    }

    fn lacks_rules(&self, family: Family) -> bool {
        self.ours.families.contains(&family) && !self.observed.netfilter.installed.contains(&family)
    }

    /// Compares what unpacks packets from other nodes, in a family.
    fn tunnel(&self, family: Family, differences: &mut Differences) {
        if !self.ours.families.contains(&family) {
            return;
        }
        let links = &self.observed.dummy_interface;
        let has_rules = self.observed.netfilter.direct_return.contains(&family);
        if self.desired.unpacks(family) {
            if !links.has_right_tunnel(family) {
                differences.device.push(EnsureTunnel(family));
            }
            if !has_rules {
                differences.prepared_tables.push(AddDirectReturn(family));
            }
        } else {
            if has_rules {
                differences.obsolete_direct_return.push(RemoveDirectReturn(family));
            }
            if links.tunnels.contains_key(&family) {
                differences.obsolete_tunnels.push(RemoveTunnel(family));
            }
        }
    }

    /// Whether `tunnel` finds a difference.
    fn has_another_tunnel(&self, family: Family) -> bool {
        let mut differences = Differences::default();
        self.tunnel(family, &mut differences);
        !differences.into_plan().is_empty()
    }

    /// The installed `TunnelSender` elements of a family.
    fn senders(&self, family: Family, differences: &mut Differences) {
        let is_sender = |it: &Element| matches!(it, Element::TunnelSender(_)) && it.family() == family;
        for element in self.observed.netfilter.elements.iter().filter(is_sender) {
            self.element(&element, differences);
        }
    }

    fn differing_links(&self, dirty: &mut Dirty) {
        let links = &self.observed.dummy_interface;
        dirty.device |= !links.device;
        dirty.tunnels.extend(Family::BOTH.into_iter().filter(|family| self.has_another_tunnel(*family)));
        let is_bound = |vip: &IpAddr| links.bound.contains(vip) && !links.stale_bindings.contains(vip);
        dirty.vips.extend(self.desired.vips().filter(|vip| !is_bound(vip)));
        let bound = links.bound.union(&links.stale_bindings);
        dirty.vips.extend(bound.filter(|vip| !self.desired.wants_vip(vip)));
    }

    fn differing_tables(&self, dirty: &mut Dirty) {
        dirty.tables.extend(Family::BOTH.into_iter().filter(|family| self.lacks_table(*family)));
        dirty.rules.extend(Family::BOTH.into_iter().filter(|family| self.lacks_rules(*family)));
        dirty.tunnels.extend(Family::BOTH.into_iter().filter(|family| self.has_another_tunnel(*family)));
        let elements = &self.observed.netfilter.elements;
        dirty.elements.extend(self.desired.elements().filter(|element| !elements.contains(element)));
        dirty.elements.extend(elements.iter().filter(|element| !self.desired.wants_element(element)));
    }

    fn differing_virtual_servers(&self, dirty: &mut Dirty) {
        let images = &self.observed.virtual_servers;
        let is_right =
            |wanted: &Arc<DesiredVirtualServer>| images.get(&wanted.address).is_some_and(|it| it.is(wanted));
        let wanted = self.desired.virtual_servers().filter(|wanted| !is_right(wanted));
        dirty.virtual_servers.extend(wanted.map(|wanted| wanted.address));
        let unwanted = images.keys().filter(|address| self.desired.virtual_server(address).is_none());
        dirty.virtual_servers.extend(unwanted);
    }

    fn element(&self, element: &Element, differences: &mut Differences) {
        if !self.ours.families.contains(&element.family()) {
            return;
        }
        let has = self.observed.netfilter.elements.contains(element);
        match (self.desired.wants_element(element), has) {
            (false, true) if matches!(element, Element::TunnelSender(_)) && !self.desired.knows_peers() => {}
            // It is deleted with its set.
            (false, true) if element.is_of_direct_return() && !self.desired.unpacks(element.family()) => {}
            (true, false) => differences.opening(self.urgency(element)).elements.push(*element),
            (false, true) if self.is_replaced(element) => {
                differences.opening(self.urgency(element)).replaced_elements.push(*element);
            }
            (false, true) => differences.obsolete_elements.push(*element),
            _ => {}
        }
    }

    /// Whether the element stands in the way of another, which a virtual server that stays will have: it
    /// allows clients that overlap with others, or has a key of a map that may get another value.
    fn is_replaced(&self, element: &Element) -> bool {
        let stays = |to: &ServiceAddress| self.desired.virtual_server(to);
        match element {
            Element::AllowedSource(source) => {
                stays(&source.to).is_some_and(|server| server.allowed_sources.is_some())
            }
            Element::ClusterIpFor(ClusterIpFor { to, .. })
            | Element::MaxSegmentSize(MaxSegmentSize { to, .. })
            | Element::TunnelExit(TunnelExit { to, .. }) => {
                stays(to).is_some_and(|server| server.direct_return.is_some())
            }
            _ => false,
        }
    }

    fn urgency(&self, element: &Element) -> Urgency {
        match (element, element.virtual_server()) {
            (Element::Vip(ip), _) => self.desired.urgency(ip),
            (_, Some(of)) => self.desired.urgency(&of.ip),
            // Neither a pod nor a health check port knows how urgent the Services are that share it.
            (_, None) => Urgency::First,
        }
    }

    fn vip(&self, vip: &IpAddr, differences: &mut Differences) {
        if !self.ours.serves(vip) {
            return;
        }
        let dummy_interface = &self.observed.dummy_interface;
        let (bound, stale) =
            (dummy_interface.bound.contains(vip), dummy_interface.stale_bindings.contains(vip));
        match self.desired.wants_vip(vip) {
            // To bind a VIP also removes what an earlier configuration left behind.
            true if !bound || stale => {
                differences.opening(self.desired.urgency(vip)).vips.push(*vip);
            }
            false if bound || stale => differences.obsolete_vips.push(*vip),
            _ => {}
        }
    }

    fn virtual_server(&self, address: &ServiceAddress, draining: &Draining, differences: &mut Differences) {
        match (self.desired.virtual_server(address), self.observed.virtual_servers.get(address)) {
            (Some(wanted), Some(image)) if image.is(wanted) => {}
            (Some(wanted), image) if self.ours.serves(&address.ip) => {
                let opening = differences.opening(self.desired.urgency(&address.ip));
                missing(wanted, image, &mut opening.servers);
                if let Some(image) = image {
                    let leaving =
                        departing(wanted, image).filter_map(|server| draining.next_step(address, &server));
                    differences.leaving_real_servers.extend(leaving);
                }
            }
            (None, Some(_)) if self.ours.may_remove(address, self.observed) => {
                differences.obsolete_virtual_servers.push(*address);
                if is_foreign(address, self.observed) {
                    differences.foreign.insert(*address);
                }
            }
            _ => {}
        }
    }
}

/// Appends to `commands` what adds or edits a virtual server so that it is as wanted.
fn missing(wanted: &DesiredVirtualServer, image: Option<&VirtualServerImage>, commands: &mut Vec<Command>) {
    let id = wanted.address.into();
    match image {
        None => commands.push(Command::AddVirtualServer(wanted.config())),
        Some(image) => commands.extend(edits(&image.config(), wanted.config())),
    }
    for real in &*wanted.real_servers {
        match image.and_then(|image| image.real_server(&real.address)) {
            None => commands.push(Command::AddRealServer(id, *real)),
            Some(image) => {
                let wanted = with_its_tunnel(&image.config, real);
                if !as_wanted(&image.config, &wanted) {
                    commands.push(Command::EditRealServer(id, wanted));
                }
            }
        }
    }
}

/// The edits in place by which a virtual server becomes as wanted. The scheduler is changed last and by
/// itself: the kernel may lack it, and the reconciler may put the change off. The rest holds
/// without it.
fn edits(observed: &VirtualServer, wanted: VirtualServer) -> impl Iterator<Item = Command> {
    let same_scheduler = observed.scheduler == wanted.scheduler;
    let mut rest = wanted.clone();
    if !same_scheduler {
        rest.scheduler = observed.scheduler;
        rest.flags =
            (wanted.flags - ServiceFlags::OF_SCHEDULER) | (observed.flags & ServiceFlags::OF_SCHEDULER);
    }
    let rest = (rest != *observed).then_some(rest);
    let scheduler = (!same_scheduler).then_some(wanted);
    [rest, scheduler].into_iter().flatten().map(Command::EditVirtualServer)
}

/// Whether a real server needs no edit. Some kernels classify a masqueraded real server on this node as
/// local.
fn as_wanted(observed: &RealServer, wanted: &RealServer) -> bool {
    let forwarding = match observed.forwarding {
        Forwarding::Local => Forwarding::Masquerade,
        other => other,
    };
    observed.forwarding(forwarding) == *wanted
}

/// The wanted real server with the kind of tunnel that it has, if it is masqueraded: connections that still
/// go through a tunnel use the kind that the real server has now (`ip_vs_tunnel_xmit`).
fn with_its_tunnel(observed: &RealServer, wanted: &RealServer) -> RealServer {
    let mut kept = *wanted;
    if wanted.forwarding == Forwarding::Masquerade {
        kept.tunnel = observed.tunnel;
    }
    kept
}
