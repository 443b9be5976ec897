//! Which operations must be put off because an operation on which they depend has failed.

use std::{collections::HashSet, net::IpAddr};

use dummy_interface::Operation::{Bind, Unbind};
use ipvs::{Command, Family, ServiceAddress};
use netfilter::{
    Element,
    Operation::{AddDirectReturn, AddElement, DeleteElement, InstallTable, PrepareTable},
};
use watcher::{Observed, Operation};

/// Remembers which operations of a plan failed, and which others they block.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Blocked {
    /// Families whose table is missing.
    families: HashSet<Family>,
    /// Families whose table could not be given direct return.
    without_direct_return: HashSet<Family>,
    /// Virtual servers with a wrong element: they would let in clients that must stay out, or leave flows without
    /// masquerade.
    unguarded: HashSet<ServiceAddress>,
    /// Addresses that would lead to an unguarded virtual server, or to this node's own programs.
    unguarded_vips: HashSet<IpAddr>,
    /// Virtual servers that could not be added, so that they can get no real servers.
    missing: HashSet<ServiceAddress>,
    /// Addresses of the missing virtual servers.
    vips_of_missing: HashSet<IpAddr>,
    /// Virtual servers that should be gone, and may live on.
    lingering: HashSet<ServiceAddress>,
    /// Addresses that should be unbound, and may still be bound.
    lingering_vips: HashSet<IpAddr>,
    /// Families with a failed add. `None`: a new table does not wait for them.
    families_with_failed_add: Option<HashSet<Family>>,
}

impl Blocked {
    /// Starts a plan. With `defers_install` a new table takes no flows from the rules of other programs while an add
    /// of its family fails.
    pub(crate) fn new(defers_install: bool) -> Self {
        Self { families_with_failed_add: defers_install.then(HashSet::new), ..Self::default() }
    }

    /// Whether nothing is blocked: no operation has failed yet.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::new(self.families_with_failed_add.is_some())
    }

    /// Records that an operation was not carried out, as far as is known. `observed` is the image before it.
    pub(crate) fn record_failure(&mut self, operation: &Operation, observed: &Observed) {
        if let (Some(families), Some(family)) = (&mut self.families_with_failed_add, adds_to(operation)) {
            families.insert(family);
        }
        match operation {
            Operation::Netfilter(PrepareTable(family)) => {
                self.families.insert(*family);
            }
            Operation::Netfilter(AddDirectReturn(family)) => {
                self.without_direct_return.insert(*family);
            }
            Operation::Netfilter(AddElement(Element::Vip(vip))) => {
                self.unguarded_vips.insert(*vip);
            }
            // Nobody comes in by these who should not.
            Operation::Netfilter(AddElement(element)) if element.is_for_unpacking() => {}
            Operation::Netfilter(AddElement(element) | DeleteElement(element)) => {
                if let Some(of) = element.virtual_server() {
                    self.unguarded.insert(*of);
                    if observed.virtual_servers.contains_key(of) {
                        self.unguarded_vips.insert(of.ip);
                    }
                }
            }
            Operation::Ipvs(command @ Command::AddVirtualServer(_)) => {
                self.missing.extend(command.address());
                self.vips_of_missing.extend(command.address().map(|at| at.ip));
            }
            Operation::Ipvs(command @ Command::DeleteVirtualServer(_)) => {
                self.lingering.extend(command.address());
            }
            Operation::DummyInterface(Unbind(vip)) => {
                self.lingering_vips.insert(*vip);
            }
            // Without these, what is already there goes on serving, or the rules of another program do.
            Operation::Netfilter(_) | Operation::Ipvs(_) | Operation::DummyInterface(_) => {}
        }
    }

    /// Why an operation must be put off, if it must.
    pub(crate) fn blocked_by(&self, operation: &Operation, observed: &Observed) -> Option<&'static str> {
        match operation {
            Operation::Netfilter(change) if self.families.contains(&change.family()) => {
                Some("put off: its table is missing")
            }
            Operation::Netfilter(InstallTable(family))
                if self
                    .families_with_failed_add
                    .as_ref()
                    .is_some_and(|families| families.contains(family)) =>
            {
                Some("put off: not all is there yet that serves what it takes from the rules of others")
            }
            Operation::Netfilter(AddElement(element))
                if element.is_of_direct_return()
                    && self.without_direct_return.contains(&element.family()) =>
            {
                Some("put off: its table has no direct return")
            }
            Operation::Netfilter(DeleteElement(element)) => self.still_needed(element),
            Operation::Ipvs(command) => self.command_blocked_by(command),
            Operation::DummyInterface(Bind(vip)) if self.leads_nowhere(vip, observed) => {
                Some("put off: none of its virtual servers is there")
            }
            Operation::DummyInterface(Bind(vip)) if self.unguarded_vips.contains(vip) => {
                Some("put off: an element of it in our tables is not as it should be")
            }
            Operation::Netfilter(_) | Operation::DummyInterface(_) => None,
        }
    }

    fn command_blocked_by(&self, command: &Command) -> Option<&'static str> {
        let of = command.address()?;
        match command {
            Command::AddVirtualServer(_)
                if self.unguarded.contains(&of) || self.families.contains(&Family::from(of.ip)) =>
            {
                Some("put off: an element of it in our tables is not as it should be")
            }
            Command::AddRealServer(..) | Command::EditRealServer(..) if self.missing.contains(&of) => {
                Some("put off: its virtual server is missing")
            }
            // It may be on another node, and would answer its clients past this one; and it may be meant for
            // other clients.
            Command::AddRealServer(_, server) | Command::EditRealServer(_, server)
                if self.unguarded.contains(&of) && server.weight != 0 =>
            {
                Some("put off: an element of its virtual server in our tables is not as it should be")
            }
            _ => None,
        }
    }

    /// Why an element must stay, if it must.
    fn still_needed(&self, element: &Element) -> Option<&'static str> {
        match (element, element.virtual_server()) {
            (Element::Vip(vip), _) if self.lingering_vips.contains(vip) => Some("put off: it is still bound"),
            (_, Some(of)) if self.lingering.contains(of) => {
                Some("put off: its virtual server is still there")
            }
            (_, Some(of)) if self.unguarded.contains(of) => {
                Some("put off: another element of its virtual server is not as it should be")
            }
            _ => None,
        }
    }

    /// Whether a VIP would lead to nothing but this node's own programs.
    fn leads_nowhere(&self, vip: &IpAddr, observed: &Observed) -> bool {
        self.vips_of_missing.contains(vip)
            && !observed.virtual_servers.keys().any(|address| address.ip == *vip)
    }
}

/// The family of an operation that adds something; `None` for others.
fn adds_to(operation: &Operation) -> Option<Family> {
    match operation {
        Operation::Netfilter(AddElement(element)) if !element.is_for_unpacking() => Some(element.family()),
        Operation::Ipvs(command @ Command::AddVirtualServer(_)) => {
            command.address().map(|at| Family::from(at.ip))
        }
        Operation::DummyInterface(Bind(vip)) => Some(Family::from(*vip)),
        Operation::Netfilter(_) | Operation::Ipvs(_) | Operation::DummyInterface(_) => None,
    }
}
