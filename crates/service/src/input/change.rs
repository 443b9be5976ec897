//! Changes of the inputs.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    time::Instant,
};

use ipvs::{Family, Scheduler, Tunnel};
use rustc_hash::FxHashSet;

use super::{Answers, EndpointSlice, Node, ObjectName, Service};
use crate::direct_return::UnpackingPeers;

/// An event of the objects of one kind, shaped like kube's `watcher::Event`.
///
/// A list comes as a whole, or in parts while it is read for the first time. It is then complete at its end, and
/// objects that it has left out are gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<T> {
    /// All objects.
    Replace(Vec<T>),
    /// The next objects of a list that is being read.
    InitApply(Vec<T>),
    /// The list has been read to its end: there are objects of these names, and no others.
    InitDone(FxHashSet<ObjectName>),
    /// An object is new or different.
    Apply(T),
    /// The object of this name is gone.
    Delete(ObjectName),
}

impl<T> Event<T> {
    /// The number of objects that it brings or removes. The end of a list has none.
    pub fn objects(&self) -> usize {
        match self {
            Self::Replace(objects) | Self::InitApply(objects) => objects.len(),
            Self::InitDone(_) => 0,
            Self::Apply(_) | Self::Delete(_) => 1,
        }
    }

    /// Whether all objects are known after it.
    pub fn completes_the_list(&self) -> bool {
        matches!(self, Self::Replace(_) | Self::InitDone(_))
    }
}

/// An object that events are about.
pub trait Named {
    /// Its namespace and name. The namespace of a cluster-wide object is empty.
    fn object_name(&self) -> ObjectName;
}

impl Named for Service {
    fn object_name(&self) -> ObjectName {
        self.name.clone()
    }
}

impl Named for EndpointSlice {
    fn object_name(&self) -> ObjectName {
        self.name.clone()
    }
}

impl Named for Node {
    fn object_name(&self) -> ObjectName {
        ObjectName::new("", &*self.name)
    }
}

/// A change of the inputs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Of Services.
    Services(Event<Service>),
    /// Of EndpointSlices.
    Slices(Event<EndpointSlice>),
    /// Of the other nodes of the cluster.
    Peers(Event<Node>),
    /// Nothing is known of the other nodes any more.
    ForgetPeers,
    /// The other nodes cannot be listed. External addresses no longer wait for that.
    PeersUnavailable,
    /// This node is new or different. `None`: there is no such Node, or no longer. What it last said holds: its pods
    /// are still where they were.
    Node(Option<Node>),
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
    /// All families in which packets have recently come out of this node's tunnel.
    TunnelsInUse(BTreeSet<Family>),
    /// What endpoints answer.
    Answers(Answers),
    /// The time. It only goes forward.
    Time(Instant),
    /// All schedulers that Services ask for and this node cannot use.
    MissingSchedulers(BTreeMap<Scheduler, Absence>),
}

/// Why a scheduler cannot be used on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absence {
    /// The kernel was asked, and lacks it.
    Lacking,
    /// Its module is not loaded, and the kernel was not asked: loading it on demand can hang IPVS.
    NotLoaded,
}
