//! News from the API server or the directory.

use std::{collections::BTreeSet, net::IpAddr};

use crate::{EndpointSlice, Node, ObjectName, Service};

/// One piece of news. A replacement carries the whole list, as after the first list and after a
/// relist: what it leaves out is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// All Services.
    ReplaceServices(Vec<Service>),
    /// A Service is new or different.
    ApplyService(Service),
    /// A Service is gone.
    DeleteService(ObjectName),
    /// All EndpointSlices.
    ReplaceSlices(Vec<EndpointSlice>),
    /// An EndpointSlice is new or different.
    ApplySlice(EndpointSlice),
    /// An EndpointSlice is gone.
    DeleteSlice(ObjectName),
    /// This node is new or different.
    ApplyNode(Node),
    /// The addresses on this node's own interfaces, kube-ipvs0 aside, have changed: these are all.
    NodeAddresses(BTreeSet<IpAddr>),
}
