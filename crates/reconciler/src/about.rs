//! What an operation is about, as far as the next comparison is concerned.

use std::collections::BTreeSet;

use dummy_interface::Change::{Bind, EnsureDevice, Unbind};
use ipvs::{Command, Id, ServiceAddress, VirtualServer};
use netfilter::Change::{AddElement, DeleteElement, InstallTable, PrepareTable};
use service::Touched;
use watcher::{Operation, Plan};

/// Whether an operation is about something that is known to have changed.
pub(crate) fn is_about(operation: &Operation, touched: &Touched) -> bool {
    match operation {
        Operation::Ipvs(command) => match command.virtual_server() {
            Id::Address(address) => touched.virtual_servers.contains(&address),
            Id::Mark { .. } => false,
        },
        Operation::Netfilter(AddElement(element) | DeleteElement(element)) => {
            touched.elements.contains(element)
        }
        Operation::Link(Bind(vip) | Unbind(vip)) => touched.vips.contains(vip),
        Operation::Netfilter(PrepareTable(_) | InstallTable(_)) | Operation::Link(EnsureDevice) => false,
    }
}

/// Marks what a failed operation was about, so that the next sync compares it again.
pub(crate) fn touch(touched: &mut Touched, operation: &Operation) {
    match operation {
        Operation::Ipvs(command) => {
            if let Id::Address(address) = command.virtual_server() {
                touched.virtual_servers.insert(address);
            }
        }
        Operation::Netfilter(AddElement(element) | DeleteElement(element)) => {
            touched.elements.insert(*element);
        }
        Operation::Link(Bind(vip) | Unbind(vip)) => {
            touched.vips.insert(*vip);
        }
        // No key stands for these: a look at everything finds them missing.
        Operation::Netfilter(PrepareTable(_) | InstallTable(_)) | Operation::Link(EnsureDevice) => {}
    }
}

/// The virtual servers that must be looked at once more after the plan: those with real servers that have
/// just got weight 0 and may turn out to have no connection; and, unless everything was read just before,
/// those that were edited, since an edit creates what is missing, without its real servers.
pub(crate) fn in_doubt(plan: &Plan, all_read: bool) -> BTreeSet<ServiceAddress> {
    let doubt = |command: &Command| match command {
        Command::EditRealServer(Id::Address(of), server) if server.weight == 0 => Some(*of),
        Command::EditVirtualServer(VirtualServer { id: Id::Address(of), .. }) if !all_read => Some(*of),
        _ => None,
    };
    plan.commands().filter_map(doubt).collect()
}
