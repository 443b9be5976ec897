//! Which operations must not be done because something that they rest on was not.

use std::{collections::HashSet, net::IpAddr};

use dummy_interface::Operation::{Bind, Unbind};
use ipvs::{Command, Family, ServiceAddress};
use netfilter::{
    Element,
    Operation::{AddElement, DeleteElement, InstallTable, PrepareTable},
};
use watcher::{Observed, Operation};

/// Remembers what failed of a plan, and objects to the operations that would be wrong without it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Blocked {
    /// Families whose table is missing.
    families: HashSet<Family>,
    /// Virtual servers of which an element is not as wanted: they would let in whom they should not, or leave
    /// their flows without masquerade.
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
    /// Families of which something that shall be served is not. `None`: a new table does not wait for them.
    unserved: Option<HashSet<Family>>,
}

impl Blocked {
    /// Begins a plan, of which nothing has failed. With `patience` a new table takes no flows from the rules
    /// of others as long as not all of its family can be served.
    pub(crate) fn new(patience: bool) -> Self {
        Self { unserved: patience.then(HashSet::new), ..Self::default() }
    }

    /// Whether there can be no objection: nothing has failed yet.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::new(self.unserved.is_some())
    }

    /// Notes that an operation was not carried out, as far as is known. `observed` is what was there before.
    pub(crate) fn without(&mut self, operation: &Operation, observed: &Observed) {
        if let (Some(unserved), Some(family)) = (&mut self.unserved, opens(operation)) {
            unserved.insert(family);
        }
        match operation {
            Operation::Netfilter(PrepareTable(family)) => {
                self.families.insert(*family);
            }
            Operation::Netfilter(AddElement(Element::Vip(vip))) => {
                self.unguarded_vips.insert(*vip);
            }
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
            // Without these, what is already there goes on serving, or the rules of somebody else do.
            Operation::Netfilter(InstallTable(_)) | Operation::Ipvs(_) | Operation::DummyInterface(_) => {}
        }
    }

    /// Why an operation must be put off, if it must.
    pub(crate) fn blocked_by(&self, operation: &Operation, observed: &Observed) -> Option<&'static str> {
        match operation {
            Operation::Netfilter(change) if self.families.contains(&change.family()) => {
                Some("put off: its table is missing")
            }
            Operation::Netfilter(InstallTable(family))
                if self.unserved.as_ref().is_some_and(|unserved| unserved.contains(family)) =>
            {
                Some("put off: not all is there yet that serves what it takes from the rules of others")
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

/// The family in which something is not served without this operation; `None` if all is.
fn opens(operation: &Operation) -> Option<Family> {
    match operation {
        Operation::Netfilter(AddElement(element)) => Some(element.family()),
        Operation::Ipvs(command @ Command::AddVirtualServer(_)) => {
            command.address().map(|at| Family::from(at.ip))
        }
        Operation::DummyInterface(Bind(vip)) => Some(Family::from(*vip)),
        Operation::Netfilter(_) | Operation::Ipvs(_) | Operation::DummyInterface(_) => None,
    }
}
