//! From the operations of a sync to the changes of Services: their owners, and the causes by the desired state.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    iter,
    net::IpAddr,
};

use ipvs::ServiceAddress;
use service::{EndpointCause, ObjectName, State};
use watcher::Operation;

use super::change::{ChangeKind, ServiceChange};
use crate::sync::{Done, PlanOutcome, RealServerOperation, VirtualServerOperation, VirtualServerOperations};

/// The changes of each Service in a sync. Of the operations that failed, only those for which `is_new` holds count: a
/// failure that lasts fails at every retry.
///
/// They come one by one: together those of a first sync would take more memory than anything else in it.
pub(crate) fn service_changes(
    state: &State,
    outcome: &PlanOutcome,
    is_new: impl Fn(&Operation) -> bool,
) -> impl Iterator<Item = (ObjectName, ServiceChange)> {
    let operations = &outcome.service_operations;
    let on_servers = operations.virtual_servers.iter();
    let mut on_servers: Vec<_> =
        on_servers.filter_map(|(at, done)| Some((state.last_owner(at)?, (at, done)))).collect();
    on_servers.sort_unstable_by_key(|(service, (at, _))| (*service, *at));

    let failures: Vec<_> = outcome.failures.iter().filter(|(operation, _)| is_new(operation)).collect();
    let failed_vips = failures.iter().filter_map(|(operation, _)| operation.key()?.vip());
    let failed_vips: BTreeSet<IpAddr> = failed_vips.collect();
    let at_vips = if operations.vips.is_empty() && failed_vips.is_empty() {
        OwnersAt::default()
    } else {
        OwnersAt::new(state, |ip| operations.vips.contains_key(ip) || failed_vips.contains(ip))
    };
    let mut failed: BTreeMap<&ObjectName, ServiceChange> = BTreeMap::new();
    for (operation, cause) in failures {
        let Some(key) = operation.key() else { continue };
        let owner = key.belongs_to().and_then(|at| state.last_owner(&at));
        let of_vip = key.vip().into_iter().flat_map(|vip| at_vips.at(vip));
        for service in owner.into_iter().chain(of_vip) {
            match failed.get_mut(service) {
                Some(change) => change.more_operations += 1,
                None => _ = failed.insert(service, failed_change(operation, cause)),
            }
        }
    }
    let mut on_servers = on_servers.into_iter().peekable();
    let of_servers = iter::from_fn(move || {
        let (service, first) = on_servers.next()?;
        let others = iter::from_fn(|| on_servers.next_if(|(next, _)| *next == service));
        let servers: Vec<_> = iter::once(first).chain(others.map(|(_, on)| on)).collect();
        let mut changes = virtual_servers(state, service, &servers);
        changes.extend(endpoints(state, service, &servers));
        Some(changes.into_iter().map(move |change| (service, change)))
    });
    let of_vips = operations.vips.iter().flat_map(move |(vip, done)| {
        at_vips.at(*vip).map(|service| (service, vip_change(*vip, *done))).collect::<Vec<_>>()
    });
    let all = of_servers.flatten().chain(of_vips).chain(failed);
    all.map(|(service, change)| (service.clone(), change))
}

type OnServer<'a> = (&'a ServiceAddress, &'a VirtualServerOperations);

/// The Services with frontends at some addresses, or that had them last: sorted, each once.
#[derive(Default)]
struct OwnersAt<'a>(Vec<(IpAddr, &'a ObjectName)>);

impl<'a> OwnersAt<'a> {
    fn new(state: &'a State, is_asked_for: impl Fn(&IpAddr) -> bool) -> Self {
        let all = state.owners().chain(state.former_owners());
        let asked_for = all.filter(|(at, _)| is_asked_for(&at.ip)).map(|(at, service)| (at.ip, service));
        let mut owners: Vec<_> = asked_for.collect();
        owners.sort_unstable();
        owners.dedup();
        Self(owners)
    }

    fn at(&self, vip: IpAddr) -> impl Iterator<Item = &'a ObjectName> {
        let begin = self.0.partition_point(|(ip, _)| *ip < vip);
        let from = self.0.get(begin..).unwrap_or_default();
        from.iter().take_while(move |(ip, _)| *ip == vip).map(|(_, service)| *service)
    }
}

/// One change for each operation on virtual servers, at whatever number of them.
fn virtual_servers(state: &State, service: &ObjectName, servers: &[OnServer<'_>]) -> Vec<ServiceChange> {
    let mut at: BTreeMap<&Done<VirtualServerOperation>, Places> = BTreeMap::new();
    for (address, done) in servers {
        if let Some(own) = &done.own {
            at.entry(own).or_default().add(**address);
        }
    }
    let change = |(Done { operation, is_repair }, places): (&Done<VirtualServerOperation>, Places)| {
        let change = match operation {
            VirtualServerOperation::Added(endpoints) => {
                ServiceChange { endpoints: Some(*endpoints), ..places.change(ChangeKind::VirtualServerAdded) }
            }
            VirtualServerOperation::Changed(schedulers) => {
                let cause = schedulers
                    .as_deref()
                    .map(|[before, now]| format!("scheduler {now} instead of {before}").into());
                ServiceChange { cause, ..places.change(ChangeKind::VirtualServerChanged) }
            }
            VirtualServerOperation::Removed => {
                let cause = Some(state.withdrawal_cause(service)).filter(|_| !*is_repair);
                ServiceChange { cause, ..places.change(ChangeKind::VirtualServerRemoved) }
            }
        };
        ServiceChange { repair: *is_repair, ..change }
    };
    at.into_iter().map(change).collect()
}

/// One change for each endpoint, operation and cause, at whatever number of virtual servers.
fn endpoints(state: &State, service: &ObjectName, servers: &[OnServer<'_>]) -> Vec<ServiceChange> {
    if servers.iter().all(|(_, done)| done.real_servers.is_empty()) {
        return Vec::new();
    }
    let causes = state.endpoint_causes(service);
    let mut at: BTreeMap<_, Places> = BTreeMap::new();
    for (address, done) in servers {
        for (endpoint, done) in &done.real_servers {
            let found = causes.cause(address, endpoint);
            if done.operation == RealServerOperation::Changed && found.starts_slowly() {
                continue;
            }
            let is_out = found.is_out();
            at.entry((*endpoint, *done, is_out, cause(found, *done))).or_default().add(**address);
        }
    }
    let change = |((endpoint, Done { operation, is_repair }, is_out, cause), places): (_, Places)| {
        let kind = match operation {
            RealServerOperation::Drained if is_out => ChangeKind::EndpointOut,
            RealServerOperation::Added => ChangeKind::EndpointAdded,
            RealServerOperation::Drained => ChangeKind::EndpointDraining,
            RealServerOperation::Restored => ChangeKind::EndpointRestored,
            RealServerOperation::Changed => ChangeKind::EndpointChanged,
            RealServerOperation::Removed(_) => ChangeKind::EndpointRemoved,
        };
        ServiceChange {
            endpoint: Some(endpoint),
            cause: Some(cause),
            repair: is_repair,
            ..places.change(kind)
        }
    };
    at.into_iter().map(change).collect()
}

fn cause(cause: EndpointCause, Done { operation, .. }: Done<RealServerOperation>) -> Cow<'static, str> {
    match operation {
        RealServerOperation::Removed(cut_off @ 1..) => {
            format!("{cause}; connections cut off: {cut_off}").into()
        }
        _ => cause.to_string().into(),
    }
}

fn vip_change(vip: IpAddr, Done { operation, is_repair }: Done<ChangeKind>) -> ServiceChange {
    ServiceChange { vip: Some(vip), repair: is_repair, ..ServiceChange::new(operation) }
}

fn failed_change(operation: &Operation, cause: &str) -> ServiceChange {
    ServiceChange {
        operation: Some(operation.to_string().into()),
        virtual_server: operation.key().and_then(|key| key.belongs_to()),
        vip: operation.key().and_then(|key| key.vip()),
        cause: Some(cause.to_owned().into()),
        ..ServiceChange::new(ChangeKind::Failed)
    }
}

/// The virtual servers at which the same was done: the first, and the number of the others.
#[derive(Clone, Copy, Debug, Default)]
struct Places {
    first: Option<ServiceAddress>,
    more: usize,
}

impl Places {
    fn add(&mut self, address: ServiceAddress) {
        match self.first {
            None => self.first = Some(address),
            Some(_) => self.more += 1,
        }
    }

    fn change(self, kind: ChangeKind) -> ServiceChange {
        ServiceChange {
            virtual_server: self.first,
            more_virtual_servers: self.more,
            ..ServiceChange::new(kind)
        }
    }
}
