//! The results of a sync as numbers, for metrics and alerts. The log has the details.

use std::collections::{BTreeMap, BTreeSet};

use ipvs::Family;
use rustc_hash::FxHashSet;
use service::{Key, ObjectName};
use watcher::{DrainStats, Observed, Operation, ReadError};

/// The result of one sync and the kernel's state after it, as numbers. Kinds with a count of 0 are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SyncStats {
    /// Failed readings and operations. A retry that fails counts again.
    pub failures: BTreeMap<(Subsystem, FailureKind), usize>,
    /// Repairs of what another program had changed.
    pub repairs: BTreeMap<RepairKind, usize>,
    /// Graceful termination.
    pub drains: DrainStats,
    /// The kernel's state after the sync; `None` if that is in doubt.
    pub programmed: Option<Programmed>,
    /// How many problems of Services and EndpointSlices there are, whether or not the status has room for
    /// them.
    pub problems: usize,
    /// The Services of which something is left for the next sync, so that their last changes are not all in
    /// the kernel.
    pub left: FxHashSet<ObjectName>,
    /// How many virtual servers the kernel had lost ([`Observer::on_loss`](crate::Observer::on_loss)) and has not got
    /// back yet.
    pub lost_virtual_servers: usize,
}

/// The kernel's state, whichever program made it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Programmed {
    /// How many virtual servers with an address.
    pub virtual_servers: usize,
    /// How many real servers of these, including those that drain.
    pub real_servers: usize,
    /// How many VIPs of this node.
    pub vips: usize,
    /// The families in which this node unpacks what others send to its pods.
    pub unpacks: BTreeSet<Family>,
}

impl From<&Observed> for Programmed {
    fn from(image: &Observed) -> Self {
        Self {
            virtual_servers: image.virtual_servers.len(),
            real_servers: image.virtual_servers.real_server_count(),
            vips: image.dummy_interface.bound.len(),
            unpacks: Family::BOTH
                .into_iter()
                .filter(|family| {
                    image.dummy_interface.has_right_tunnel(*family)
                        && image.netfilter.direct_return.contains(family)
                })
                .collect(),
        }
    }
}

/// A part of the kernel with its own interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subsystem {
    /// Virtual and real servers.
    Ipvs,
    /// Our tables.
    NfTables,
    /// kube-ipvs0 and the VIPs.
    DummyInterface,
}

/// How something failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FailureKind {
    /// A part of the kernel could not be read: nothing was compared, and nothing done.
    Unread,
    /// The kernel refused an operation.
    Refused,
    /// A whole exchange failed, and which of its operations were done is not known: everything is read anew.
    InDoubt,
    /// An operation was not tried because an operation on which it depends had failed.
    PutOff,
}

/// The kind of object that was repaired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RepairKind {
    /// kube-ipvs0 itself.
    Device,
    /// A VIP on it, or its route.
    Vip,
    /// A table of ours.
    Table,
    /// An element of a set in it.
    Element,
    /// A virtual server.
    VirtualServer,
    /// A real server, or its weight.
    RealServer,
}

impl Subsystem {
    /// All variants.
    pub const ALL: [Self; 3] = [Self::Ipvs, Self::NfTables, Self::DummyInterface];

    /// The name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ipvs => "ipvs",
            Self::NfTables => "nf_tables",
            Self::DummyInterface => "links",
        }
    }

    /// The subsystem that carries out an operation.
    pub(crate) fn from_operation(operation: &Operation) -> Self {
        match operation {
            Operation::Ipvs(_) => Self::Ipvs,
            Operation::Netfilter(_) => Self::NfTables,
            Operation::DummyInterface(_) => Self::DummyInterface,
        }
    }

    /// The subsystem that could not be read.
    pub(crate) fn from_read_error(error: &ReadError) -> Self {
        match error {
            ReadError::Ipvs(_) => Self::Ipvs,
            ReadError::Netfilter(_) => Self::NfTables,
            ReadError::DummyInterface(_) => Self::DummyInterface,
        }
    }
}

impl FailureKind {
    /// All variants.
    pub const ALL: [Self; 4] = [Self::Unread, Self::Refused, Self::InDoubt, Self::PutOff];

    /// The name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unread => "unread",
            Self::Refused => "refused",
            Self::InDoubt => "in_doubt",
            Self::PutOff => "put_off",
        }
    }
}

impl RepairKind {
    /// All variants.
    pub const ALL: [Self; 6] =
        [Self::Device, Self::Vip, Self::Table, Self::Element, Self::VirtualServer, Self::RealServer];

    /// The name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Vip => "vip",
            Self::Table => "table",
            Self::Element => "element",
            Self::VirtualServer => "virtual_server",
            Self::RealServer => "real_server",
        }
    }

    /// The kind of object that an operation repairs.
    pub(crate) fn from_operation(operation: &Operation) -> Self {
        use ipvs::Command::{AddRealServer, DeleteRealServer, EditRealServer};
        match (operation, operation.key()) {
            (Operation::Ipvs(AddRealServer(..) | EditRealServer(..) | DeleteRealServer(..)), _) => {
                Self::RealServer
            }
            (Operation::Ipvs(_), _) => Self::VirtualServer,
            (_, Some(Key::Element(_))) => Self::Element,
            (_, Some(Key::Vip(_))) => Self::Vip,
            (Operation::Netfilter(_), _) => Self::Table,
            (Operation::DummyInterface(_), _) => Self::Device,
        }
    }
}
