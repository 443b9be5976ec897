//! Comparing the desired state with the kernel.

mod differences;

use std::{net::IpAddr, sync::Arc};

use dummy_interface::Operation::{EnsureDevice, EnsureTunnel, RemoveTunnel};
use ipvs::{Command, Family, Forwarding, Protocol, RealServer, ServiceAddress, ServiceFlags, VirtualServer};
use netfilter::{
    ClusterIpFor, Element, MaxSegmentSize,
    Operation::{AddDirectReturn, InstallTable, PrepareTable, RemoveDirectReturn},
    TunnelExit,
};
use service::{DesiredVirtualServer, State, Touched, Urgency};

use self::differences::Differences;
use crate::{Observed, Ownership, Plan, RealServerImage, VirtualServerImage, is_foreign};

/// How much is compared.
#[derive(Clone, Copy, Debug)]
pub enum Scope<'a> {
    /// Everything desired, and everything observed.
    All,
    /// What virtual servers rest on: the device, the tables without their rules for other programs' traffic, tunnels, and
    /// the elements that Services share.
    Foundation,
    /// These virtual servers, with their elements and VIPs.
    VirtualServers(&'a [Arc<DesiredVirtualServer>]),
    /// The touched keys, and some parts as a whole.
    Touched(&'a Touched, Whole),
}

/// The parts of the kernel that are compared as a whole. Only the parts are listed whose changes the kernel
/// reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Whole {
    /// kube-ipvs0 with every VIP.
    pub dummy_interface: bool,
    /// Our tables with every element.
    pub tables: bool,
}

impl Whole {
    /// Neither part.
    pub const NONE: Self = Self { dummy_interface: false, tables: false };
}

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
/// The allowed clients of a virtual server change in one transaction: ranges must not overlap, and a client
/// that is allowed before and after must not be dropped in between. A virtual server that becomes open to
/// everybody does so last of all.
pub fn diff(desired: &State, observed: &Observed, scope: Scope<'_>, ours: &Ownership) -> Plan {
    let mut differences = Differences::default();
    let comparison = Comparison { desired, observed, ours };
    match scope {
        Scope::All => {
            comparison.device(&mut differences);
            comparison.tables(&mut differences);
            for family in Family::BOTH {
                comparison.tunnel(family, &mut differences);
            }
            comparison.every_element(&mut differences);
            comparison.every_virtual_server(&mut differences);
            comparison.every_vip(&mut differences);
        }
        Scope::Foundation => {
            comparison.device(&mut differences);
            comparison.prepared_tables(&mut differences);
            for family in Family::BOTH {
                comparison.tunnel(family, &mut differences);
            }
            for element in desired.shared_elements() {
                comparison.element(&element, &mut differences);
            }
        }
        Scope::VirtualServers(servers) => {
            for server in servers {
                comparison.virtual_server_with_its_address(server, &mut differences);
            }
        }
        Scope::Touched(touched, whole) => {
            if whole.dummy_interface {
                comparison.device(&mut differences);
            }
            for family in Family::BOTH {
                if whole != Whole::NONE || touched.tunnels.contains(&family) {
                    comparison.tunnel(family, &mut differences);
                }
                if touched.tunnels.contains(&family) {
                    comparison.senders(family, &mut differences);
                }
            }
            if whole.tables {
                comparison.tables(&mut differences);
                comparison.every_element(&mut differences);
            } else {
                touched.elements.iter().for_each(|element| comparison.element(element, &mut differences));
            }
            for key in &touched.virtual_servers {
                comparison.virtual_server(key, &mut differences);
            }
            if whole.dummy_interface {
                comparison.every_vip(&mut differences);
            } else {
                touched.vips.iter().for_each(|vip| comparison.vip(vip, &mut differences));
            }
        }
    }
    differences.into_plan()
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

    fn tables(&self, differences: &mut Differences) {
        self.prepared_tables(differences);
        let missing = self.ours.families.difference(&self.observed.netfilter.installed);
        differences.tables.extend(missing.copied().map(InstallTable));
    }

    fn prepared_tables(&self, differences: &mut Differences) {
        let netfilter::Observed { installed, prepared, .. } = &self.observed.netfilter;
        let missing = self.ours.families.difference(installed).filter(|family| !prepared.contains(family));
        differences.prepared_tables.extend(missing.copied().map(PrepareTable));
    }

    /// What unpacks packets from other nodes, in a family.
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

    /// Those who were let into the tunnel of a family.
    fn senders(&self, family: Family, differences: &mut Differences) {
        let is_sender = |it: &Element| matches!(it, Element::TunnelSender(_)) && it.family() == family;
        for element in self.observed.netfilter.elements.iter().filter(is_sender) {
            self.element(&element, differences);
        }
    }

    fn every_element(&self, differences: &mut Differences) {
        for element in self.desired.elements() {
            self.element(&element, differences);
        }
        for element in self.observed.netfilter.elements.iter() {
            if !self.desired.wants_element(&element) {
                self.element(&element, differences);
            }
        }
    }

    /// Compares the virtual servers in the order of their addresses, so that the plan does not depend on the
    /// order of the maps.
    fn every_virtual_server(&self, differences: &mut Differences) {
        let wanted = self.desired.virtual_servers().map(|wanted| wanted.address);
        let unwanted = self.observed.virtual_servers.keys().copied();
        let unwanted = unwanted.filter(|address| self.desired.virtual_server(address).is_none());
        let mut addresses: Vec<_> = wanted.chain(unwanted).collect();
        addresses.sort_unstable();
        for address in &addresses {
            self.virtual_server(address, differences);
        }
    }

    fn every_vip(&self, differences: &mut Differences) {
        for vip in self.desired.vips() {
            self.vip(vip, differences);
        }
        let dummy_interface = &self.observed.dummy_interface;
        for vip in dummy_interface.bound.union(&dummy_interface.stale_bindings) {
            if !self.desired.wants_vip(vip) {
                self.vip(vip, differences);
            }
        }
    }

    fn element(&self, element: &Element, differences: &mut Differences) {
        if !self.ours.families.contains(&element.family()) {
            return;
        }
        let has = self.observed.netfilter.elements.contains(element);
        match (self.desired.wants_element(element), has) {
            (false, true) if matches!(element, Element::TunnelSender(_)) && !self.desired.knows_peers() => {}
            // It goes with its set.
            (false, true) if element.is_of_direct_return() && !self.desired.unpacks(element.family()) => {}
            (true, false) => differences.opening(self.urgency(element)).elements.push(*element),
            (false, true) if self.is_replaced(element) => {
                differences.opening(self.urgency(element)).replaced_elements.push(*element);
            }
            (false, true) => differences.obsolete_elements.push(*element),
            _ => {}
        }
    }

    /// Whether the element stands in the way of another, which a virtual server that stays will have: it allows clients
    /// that overlap with others, or has a key of a map that may get another value.
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

    /// Compares a virtual server that is wanted with what belongs to it: its elements, and its address.
    fn virtual_server_with_its_address(&self, wanted: &DesiredVirtualServer, differences: &mut Differences) {
        let vip = wanted.address.ip;
        for element in wanted.elements().chain([Element::Vip(vip)]) {
            self.element(&element, differences);
        }
        self.virtual_server(&wanted.address, differences);
        self.vip(&vip, differences);
    }

    fn virtual_server(&self, address: &ServiceAddress, differences: &mut Differences) {
        match (self.desired.virtual_server(address), self.observed.virtual_servers.get(address)) {
            (Some(wanted), Some(image)) if image.is(wanted) => {}
            (Some(wanted), image) if self.ours.serves(&address.ip) => {
                let opening = differences.opening(self.desired.urgency(&address.ip));
                missing(wanted, image, &mut opening.servers);
                if let Some(image) = image {
                    let leaving =
                        departing(wanted, image).filter_map(|server| next_drain_step(address, &server));
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

/// The wanted real server with the kind of tunnel that it has, if it is masqueraded: open connections that go through a
/// tunnel yet use the kind that the real server has now (`ip_vs_tunnel_xmit`).
fn with_its_tunnel(observed: &RealServer, wanted: &RealServer) -> RealServer {
    let mut kept = *wanted;
    if wanted.forwarding == Forwarding::Masquerade {
        kept.tunnel = observed.tunnel;
    }
    kept
}

/// The next command for a real server that is no longer wanted; `None` while it has to wait.
///
/// One of UDP or SCTP is removed at once. One of TCP first gets weight 0, and with that no new connections;
/// only then does a count of 0 mean that nobody is cut off, and it is removed. If it has been draining for
/// too long, it is removed with the connections that it has.
fn next_drain_step(of: &ServiceAddress, server: &RealServerImage) -> Option<Command> {
    let id = (*of).into();
    let drains = of.protocol == Protocol::Tcp;
    if drains && server.config.weight != 0 {
        Some(Command::EditRealServer(id, server.config.weight(0)))
    } else if drains && server.connections != 0 && !server.expired {
        None
    } else {
        Some(Command::DeleteRealServer(id, server.config.address))
    }
}
