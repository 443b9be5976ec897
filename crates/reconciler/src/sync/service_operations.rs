//! The operations of a sync on what belongs to single Services, for the journal.

use std::{collections::BTreeMap, net::IpAddr};

use dummy_interface::Operation::{Bind, Unbind};
use ipvs::{
    Command::{
        AddRealServer, AddVirtualServer, DeleteRealServer, DeleteVirtualServer, EditRealServer,
        EditVirtualServer,
    },
    RealServerAddress, Scheduler, ServiceAddress,
};
use rustc_hash::FxHashMap;
use watcher::{Observed, Operation};

use crate::ChangeKind;

/// The operations that were carried out on virtual servers, real servers and VIPs, in no particular order of virtual
/// servers. Of several on one object the last one counts. A new virtual server counts its real servers.
#[derive(Debug, Default)]
pub(crate) struct ServiceOperations {
    pub(crate) virtual_servers: FxHashMap<ServiceAddress, VirtualServerOperations>,
    /// Bound or unbound.
    pub(crate) vips: BTreeMap<IpAddr, Done<ChangeKind>>,
}

/// What was done to a virtual server and its real servers.
#[derive(Debug, Default)]
pub(crate) struct VirtualServerOperations {
    pub(crate) own: Option<Done<VirtualServerOperation>>,
    pub(crate) real_servers: BTreeMap<RealServerAddress, Done<RealServerOperation>>,
}

/// An operation, and whether it repaired what another program had changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Done<T> {
    pub(crate) operation: T,
    pub(crate) is_repair: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum VirtualServerOperation {
    /// With so many real servers.
    Added(usize),
    /// Edited. The schedulers before and now, if they differ.
    Changed(Option<Box<[Scheduler; 2]>>),
    Removed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RealServerOperation {
    Added,
    /// Its weight became 0.
    Drained,
    /// Its weight was 0.
    Restored,
    Changed,
    /// So many connections were cut off.
    Removed(u64),
}

impl ServiceOperations {
    /// Records an operation that was carried out. `image` is the kernel before it.
    pub(crate) fn record(&mut self, operation: &Operation, image: &Observed, is_repair: bool, cut_off: u64) {
        match operation {
            Operation::Ipvs(command) => {
                if let Some(at) = command.address() {
                    self.virtual_servers
                        .entry(at)
                        .or_default()
                        .record(command, at, image, is_repair, cut_off);
                }
            }
            Operation::DummyInterface(Bind(vip)) => {
                self.vips.insert(*vip, Done { operation: ChangeKind::VipBound, is_repair });
            }
            Operation::DummyInterface(Unbind(vip)) => {
                self.vips.insert(*vip, Done { operation: ChangeKind::VipUnbound, is_repair });
            }
            Operation::DummyInterface(_) | Operation::Netfilter(_) => {}
        }
    }
}

impl VirtualServerOperations {
    fn record(
        &mut self,
        command: &ipvs::Command,
        at: ServiceAddress,
        image: &Observed,
        is_repair: bool,
        cut_off: u64,
    ) {
        use VirtualServerOperation::{Added, Changed, Removed};
        match command {
            AddVirtualServer(_) => self.own = Some(Done { operation: Added(0), is_repair }),
            EditVirtualServer(wanted) => {
                let before = image.virtual_servers.get(&at).map(|server| server.config().scheduler);
                let schedulers = before.filter(|it| *it != wanted.scheduler);
                let operation = Changed(schedulers.map(|before| [before, wanted.scheduler].into()));
                self.own.get_or_insert(Done { operation, is_repair });
            }
            DeleteVirtualServer(_) => {
                self.own = Some(Done { operation: Removed, is_repair });
                self.real_servers.clear();
            }
            AddRealServer(_, server) => match &mut self.own {
                Some(Done { operation: Added(count), .. }) => *count += 1,
                _ => self.insert(server.address, RealServerOperation::Added, is_repair),
            },
            EditRealServer(_, server) => {
                let image = image.virtual_servers.get(&at);
                let before = image.and_then(|image| image.real_server(&server.address));
                let operation = match (before.map(|it| it.config.weight), server.weight) {
                    (Some(0), 0) => RealServerOperation::Changed,
                    (_, 0) => RealServerOperation::Drained,
                    (Some(0), _) => RealServerOperation::Restored,
                    _ => RealServerOperation::Changed,
                };
                self.insert(server.address, operation, is_repair);
            }
            DeleteRealServer(_, server) => {
                self.insert(*server, RealServerOperation::Removed(cut_off), is_repair);
            }
        }
    }

    /// The first operation may be the repair, and the next one its consequence.
    fn insert(&mut self, server: RealServerAddress, operation: RealServerOperation, is_repair: bool) {
        let is_repair = is_repair || self.real_servers.get(&server).is_some_and(|before| before.is_repair);
        self.real_servers.insert(server, Done { operation, is_repair });
    }
}
