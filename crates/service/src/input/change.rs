//! News from the API server or the directory.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ipvs::Scheduler;
use rustc_hash::FxHashSet;

use super::{EndpointSlice, Node, ObjectName, Service};

/// One piece of news.
///
/// A list comes as a whole, or, when nothing is known yet, as it is read: then it is complete when its end says so, and
/// what it leaves out is gone from there on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// All Services.
    ReplaceServices(Vec<Service>),
    /// The next Services of a list that is being read.
    InitApplyServices(Vec<Service>),
    /// The list has been read to its end: there are these Services, and no others.
    InitDoneServices(FxHashSet<ObjectName>),
    /// A Service is new or different.
    ApplyService(Service),
    /// A Service is gone.
    DeleteService(ObjectName),
    /// All EndpointSlices.
    ReplaceSlices(Vec<EndpointSlice>),
    /// The next EndpointSlices of a list that is being read.
    InitApplySlices(Vec<EndpointSlice>),
    /// The list has been read to its end: there are these EndpointSlices, and no others.
    InitDoneSlices(FxHashSet<ObjectName>),
    /// An EndpointSlice is new or different.
    ApplySlice(EndpointSlice),
    /// An EndpointSlice is gone.
    DeleteSlice(ObjectName),
    /// This node is new or different.
    ApplyNode(Node),
    /// The Node is gone. What it last said holds: its pods are still where they were.
    DeleteNode,
    /// The node's own addresses are others. To be told before the desired state is acted on: without, a node
    /// serves no NodePort, and binds what is its own already.
    NodeAddresses {
        /// All addresses on this node's own interfaces: not those on kube-ipvs0, and neither loopback nor
        /// link-local IPv6 addresses, which whoever reads them leaves out.
        here: BTreeSet<IpAddr>,
        /// All addresses that went from there a moment ago and may come again. NodePorts stay at them, so that
        /// connections outlive the absence of their address; for everything else they are gone.
        lost: BTreeSet<IpAddr>,
    },
    /// All schedulers that were asked for and cannot be used.
    MissingSchedulers(BTreeMap<Scheduler, Absence>),
}

/// Why a scheduler cannot be used on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absence {
    /// The kernel was asked, and lacks it.
    Lacking,
    /// Its module is not loaded, and the kernel was not asked: to load it on demand can hang IPVS.
    NotLoaded,
}
