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
    /// The Node is gone. What it last said holds: its pods are still where they were.
    DeleteNode,
    /// All addresses on this node's own interfaces: not those on kube-ipvs0, and neither loopback nor
    /// link-local IPv6 addresses, which whoever reads them leaves out. To be told before the desired state
    /// is acted on: without, a node serves no NodePort, and binds what is its own already.
    NodeAddresses(BTreeSet<IpAddr>),
}
