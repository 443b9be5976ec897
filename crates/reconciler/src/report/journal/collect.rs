//! From the operations of a sync to the changes of Services: their owners, and the causes by the desired state.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ipvs::ServiceAddress;
use service::{EndpointCause, ObjectName, State};
use watcher::Operation;

use super::change::{ChangeKind, ServiceChange};
use crate::sync::{
    Done, PlanOutcome, RealServerOperation, VipOperation, VirtualServerOperation, VirtualServerOperations,
};

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
    let mut by_service: BTreeMap<&ObjectName, Vec<OnServer<'_>>> = BTreeMap::new();
    for (at, done) in &operations.virtual_servers {
        if let Some(service) = state.last_owner(at) {
            by_service.entry(service).or_default().push((at, done));
        }
    }
    let failures: Vec<_> = outcome.failures.iter().filter(|(operation, _)| is_new(operation)).collect();
    let failed_vips = failures.iter().filter_map(|(operation, _)| operation.key()?.vip());
    let mut at_vips = owners_at(state, &operations.vips.keys().copied().chain(failed_vips).collect());
    let mut failed: BTreeMap<&ObjectName, ServiceChange> = BTreeMap::new();
    for (operation, cause) in failures {
        let Some(key) = operation.key() else { continue };
        let owner = key.belongs_to().and_then(|at| state.last_owner(&at));
        let of_vip = key.vip().and_then(|vip| at_vips.get(&vip)).into_iter().flatten().copied();
        for service in owner.into_iter().chain(of_vip) {
            match failed.get_mut(service) {
                Some(change) => change.more_operations += 1,
                None => _ = failed.insert(service, failed_change(operation, cause)),
            }
        }
    }
    let of_servers = by_service.into_iter().flat_map(|(service, servers)| {
        let mut changes = virtual_servers(state, service, &servers);
        changes.extend(endpoints(state, service, &servers));
        changes.into_iter().map(move |change| (service, change))
    });
    let of_vips = operations.vips.iter().flat_map(move |(vip, done)| {
        let owners = at_vips.remove(vip).into_iter().flatten();
        owners.map(|service| (service, vip_change(*vip, *done)))
    });
    of_servers.chain(of_vips).chain(failed).map(|(service, change)| (service.clone(), change))
}

type OnServer<'a> = (&'a ServiceAddress, &'a VirtualServerOperations);

/// The Services with frontends at some addresses, or that had them last.
fn owners_at<'a>(state: &'a State, vips: &BTreeSet<IpAddr>) -> BTreeMap<IpAddr, BTreeSet<&'a ObjectName>> {
    let mut owners: BTreeMap<IpAddr, BTreeSet<&ObjectName>> = BTreeMap::new();
    if vips.is_empty() {
        return owners;
    }
    for (address, service) in state.owners().chain(state.former_owners()) {
        if vips.contains(&address.ip) {
            owners.entry(address.ip).or_default().insert(service);
        }
    }
    owners
}

/// One change for each operation on virtual servers, at whatever number of them.
fn virtual_servers(state: &State, service: &ObjectName, servers: &[OnServer<'_>]) -> Vec<ServiceChange> {
    let mut at: BTreeMap<Done<VirtualServerOperation>, Places> = BTreeMap::new();
    for (address, done) in servers {
        if let Some(own) = done.own {
            at.entry(own).or_default().add(**address);
        }
    }
    let change = |(Done { operation, is_repair }, places): (Done<VirtualServerOperation>, Places)| {
        let change = match operation {
            VirtualServerOperation::Added(endpoints) => {
                ServiceChange { endpoints: Some(endpoints), ..places.change(ChangeKind::VirtualServerAdded) }
            }
            VirtualServerOperation::Changed(schedulers) => {
                let cause =
                    schedulers.map(|[before, now]| format!("scheduler {now} instead of {before}").into());
                ServiceChange { cause, ..places.change(ChangeKind::VirtualServerChanged) }
            }
            VirtualServerOperation::Removed => {
                let cause = Some(state.withdrawal_cause(service)).filter(|_| !is_repair);
                ServiceChange { cause, ..places.change(ChangeKind::VirtualServerRemoved) }
            }
        };
        ServiceChange { repair: is_repair, ..change }
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

fn vip_change(vip: IpAddr, Done { operation, is_repair }: Done<VipOperation>) -> ServiceChange {
    let kind = match operation {
        VipOperation::Bound => ChangeKind::VipBound,
        VipOperation::Unbound => ChangeKind::VipUnbound,
    };
    ServiceChange { vip: Some(vip), repair: is_repair, ..ServiceChange::new(kind) }
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
