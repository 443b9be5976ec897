//! Changes of the inputs.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use ipvs::{Family, Scheduler, Tunnel};
use rustc_hash::FxHashSet;

use super::{EndpointSlice, Node, ObjectName, Peer, Service};
use crate::direct_return::UnpackingPeers;

/// A change of the inputs.
///
/// A list comes as a whole, or in parts while it is read for the first time. It is then complete at its end, and
/// objects that it has left out are gone.
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
    /// The node's own addresses have changed. They must be known before the desired state is acted on: without
    /// them, a node serves no NodePort, and binds addresses that it already has.
    NodeAddresses {
        /// All addresses on this node's own interfaces: not those on kube-ipvs0, and neither loopback nor
        /// link-local IPv6 addresses, which the reader leaves out.
        here: BTreeSet<IpAddr>,
        /// All addresses that were removed a moment ago and may come back. NodePorts stay there, so that connections
        /// outlive the absence of their address; for everything else they are gone.
        lost: BTreeSet<IpAddr>,
    },
    /// All other nodes of the cluster.
    ReplacePeers(Vec<Peer>),
    /// The next of the other nodes of a list that is being read.
    InitApplyPeers(Vec<Peer>),
    /// The list has been read to its end: there are nodes of these names, and no others.
    InitDonePeers(FxHashSet<ObjectName>),
    /// Another node is new or different.
    ApplyPeer(Peer),
    /// Another node is gone.
    DeletePeer(ObjectName),
    /// Nothing is known of the other nodes any more.
    ForgetPeers,
    /// The other nodes cannot be listed. External addresses no longer wait for that.
    PeersUnavailable,
    /// All addresses at which this node asks the API server.
    ApiServer(BTreeSet<SocketAddr>),
    /// The gateways of all of this node's routes.
    Gateways(BTreeSet<IpAddr>),
    /// All other nodes that unpack what comes through a tunnel.
    UnpackingPeers(UnpackingPeers),
    /// The endpoints to which the kernel tunnels at the start of the daemon. That holds for those whose nodes have not
    /// answered yet.
    TunnelledBefore(BTreeMap<IpAddr, Tunnel>),
    /// The smallest MTU among the links of this node, in bytes: what packets to other nodes may have at most.
    LinkMtu(u32),
    /// All families in which this node cannot unpack what comes through a tunnel.
    MissingTunnels(BTreeSet<Family>),
    /// All families in which packets came out of this node's tunnel of late.
    TunnelsInUse(BTreeSet<Family>),
    /// All schedulers that Services ask for and this node cannot use.
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
