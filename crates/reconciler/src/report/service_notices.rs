//! Notices to the owners of Services about what is not served as they ask for it.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
};

use ipvs::{Protocol, RealServerAddress, ServiceAddress};
use service::{EjectedEndpoint, EjectionState, ObjectName, RefusedAddress, State, in_turn};
use tracing::{info, warn};

/// A problem of one Service that its owner can solve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The Service that it is about.
    pub service: ObjectName,
    /// The kind of problem.
    pub reason: Reason,
    /// One sentence for a person.
    pub text: String,
}

/// The kind of problem that a notice is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// Another Service owns an address and port of this one, and is served there.
    AddressTaken,
    /// An external address of the Service is refused: no Service may have it.
    AddressRefused,
    /// A field or annotation of the Service, or of one of its slices, is not used as it is written.
    FieldNotUsed,
    /// Endpoints of the Service get no new connections: clients fail there.
    EndpointEjected,
}

/// Receives notices. The writer thread calls it: it must not block.
pub type NoticeCallback = Box<dyn Fn(Notice) + Send>;

/// How many notices are logged at once: one Service can want the addresses of ten thousand.
const MOST_LOGGED: usize = 20;

/// Sends each notice once, as long as its cause lasts.
pub(crate) struct ServiceNotices {
    /// The revision of the desired state's reports that was sent last.
    revision: u64,
    /// The notices that were sent of that revision.
    conflicts: BTreeSet<(ObjectName, Unserved)>,
    refusals: BTreeSet<(ObjectName, RefusedAddress)>,
    /// Fields and annotations that are not used as they are written, as text.
    unused_fields: BTreeSet<(ObjectName, String)>,
    ejections: BTreeSet<(ObjectName, Ejected)>,
    notices: NoticeCallback,
}

/// An address and port that a Service asks for and does not get, because its claim comes later.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Unserved {
    /// An address and port, and the Service that has it.
    Named(ServiceAddress, ObjectName),
    /// This many more.
    More(usize),
}

impl ServiceNotices {
    pub(crate) fn new(notices: NoticeCallback) -> Self {
        let (conflicts, refusals, unused_fields, ejections) = Default::default();
        Self { revision: 0, conflicts, refusals, unused_fields, ejections, notices }
    }

    /// Logs and sends the notices that were not sent before.
    pub(crate) fn send_new(&mut self, state: &State) {
        let revision = state.reports_revision();
        if mem::replace(&mut self.revision, revision) == revision {
            return;
        }
        let conflicts = new_entries(&mut self.conflicts, conflicts(state));
        let refusals = new_entries(&mut self.refusals, each(state.reports().refused()));
        let refusals = refusals.into_iter().map(|(service, refused)| Notice {
            service,
            reason: Reason::AddressRefused,
            text: refused.to_string(),
        });
        let losses = by_namespaces(conflicts.into_iter().map(conflict_notice).chain(refusals));
        losses.iter().take(MOST_LOGGED).for_each(log);
        if let Some(more @ 1..) = losses.len().checked_sub(MOST_LOGGED) {
            warn!("and {more} more addresses that Services request but do not get");
        }
        // What is wrong with a field was logged when the object was decoded.
        let unused = new_entries(&mut self.unused_fields, each(state.reports().problems()));
        let unused = by_namespaces(unused.into_iter().map(|(service, text)| Notice {
            service,
            reason: Reason::FieldNotUsed,
            text,
        }));
        // What this node cannot do was not logged yet.
        let is_from_state = |Notice { service, text, .. }: &&Notice| {
            state.desired(service).is_some_and(|desired| desired.problems().contains(text))
        };
        let unlogged = unused.iter().filter(is_from_state).take(MOST_LOGGED);
        unlogged.for_each(log);
        let ejections = self.log_ejections(state);
        let all = losses.into_iter().chain(unused).chain(ejections);
        by_namespaces(all).into_iter().for_each(&self.notices);
    }
}

/// The protocol and address of an endpoint that is ejected, or was and has not answered since.
type Ejected = (Protocol, RealServerAddress);

impl ServiceNotices {
    /// Logs which endpoints were ejected, and which of them get connections again. Returns a notice for each Service that
    /// had none. An endpoint that is on trial, or kept while others are out, and fails once more is nothing new.
    fn log_ejections(&mut self, state: &State) -> Vec<Notice> {
        let current: BTreeMap<_, _> = each(state.reports().ejected())
            .into_iter()
            .map(|(service, it)| ((service, (it.protocol, it.address)), it))
            .collect();
        let had_any: BTreeSet<_> = self.ejections.iter().map(|(service, _)| service.clone()).collect();
        let ended: Vec<_> =
            self.ejections.iter().filter(|key| !current.contains_key(*key)).cloned().collect();
        self.ejections.retain(|key| current.contains_key(key));
        let is_new = |(key, it): &(&(ObjectName, Ejected), &EjectedEndpoint)| {
            it.state == EjectionState::Out && !self.ejections.contains(*key)
        };
        let new: Vec<_> = current.iter().filter(is_new).collect();
        for ((service, (protocol, address)), it) in new.iter().take(MOST_LOGGED) {
            let namespace = service.namespace();
            warn!(namespace, object = %service, "{service}: {protocol} {address} gets no new connections: {}", it.cause);
        }
        // One that is gone has ended as well.
        let still_there = ended.iter().filter(|(service, key)| is_real_server(state, service, key));
        for (service, (protocol, address)) in still_there.take(MOST_LOGGED) {
            let namespace = service.namespace();
            info!(namespace, object = %service, "{service}: {protocol} {address} gets new connections again");
        }
        if let Some(more @ 1..) = new.len().checked_sub(MOST_LOGGED) {
            warn!("and {more} more endpoints get no new connections");
        }
        let new: Vec<_> = new.into_iter().map(|(key, _)| key.clone()).collect();
        let services: BTreeSet<_> = new.iter().map(|(service, _)| service.clone()).collect();
        self.ejections.extend(new);
        // Without addresses, so that all nodes say the same and one Event is enough.
        let notice = |service: ObjectName| Notice {
            text: format!(
                "clients fail at endpoints, which get no new connections: kube-ipvs explain {service} names them"
            ),
            reason: Reason::EndpointEjected,
            service,
        };
        services.into_iter().filter(|service| !had_any.contains(service)).map(notice).collect()
    }
}

fn is_real_server(state: &State, service: &ObjectName, (protocol, address): &Ejected) -> bool {
    let mut servers = state.desired(service).into_iter().flat_map(|desired| &desired.virtual_servers);
    servers.any(|server| {
        server.address.protocol == *protocol && server.real_servers.iter().any(|it| it.address == *address)
    })
}

/// All of them, in turn by namespaces: where the first are taken, one namespace cannot hide the others.
fn by_namespaces(notices: impl IntoIterator<Item = Notice>) -> Vec<Notice> {
    in_turn(notices, usize::MAX, |notice| notice.service.namespace().to_owned())
}

fn log(Notice { service, text, .. }: &Notice) {
    warn!(namespace = service.namespace(), object = %service, "{service}: {text}");
}

fn conflicts(state: &State) -> BTreeSet<(ObjectName, Unserved)> {
    let all = state.conflict_losses().flat_map(|(service, lost)| {
        let named = lost.named.into_iter().map(|(address, owner)| Unserved::Named(address, owner.clone()));
        let more = (lost.more > 0).then_some(Unserved::More(lost.more));
        named.chain(more).map(move |loss| (service.clone(), loss))
    });
    all.collect()
}

/// Pairs each Service with each entry of its list.
fn each<'a, T: Ord + Clone + 'a>(
    lists: impl Iterator<Item = (&'a ObjectName, &'a [T])>,
) -> BTreeSet<(ObjectName, T)> {
    lists.flat_map(|(service, list)| list.iter().map(|it| (service.clone(), it.clone()))).collect()
}

fn conflict_notice((service, loss): (ObjectName, Unserved)) -> Notice {
    let text = match loss {
        Unserved::Named(address, owner) => {
            // A reader of the Events of one namespace need not know what others have.
            let owner = match owner.namespace() == service.namespace() {
                true => owner.to_string(),
                false => "a Service of another namespace".to_owned(),
            };
            format!(
                "{address} belongs to {owner}, whose claim comes first; it is not served for this Service"
            )
        }
        Unserved::More(more) => {
            format!("more addresses and ports that belong to others, whose claims come first: {more}")
        }
    };
    Notice { service, reason: Reason::AddressTaken, text }
}

/// Replaces the entries that were sent with the current ones, and returns those that are new.
fn new_entries<K: Ord + Clone>(sent: &mut BTreeSet<K>, current: BTreeSet<K>) -> Vec<K> {
    let new = current.difference(sent).cloned().collect();
    *sent = current;
    new
}
