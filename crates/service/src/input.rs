//! What the API server, or a directory of manifests, tells, and what this node keeps of it.

mod change;
mod cluster_ips;
mod name;
mod objects;
mod options;
mod problem;
mod slice;
mod strings;
mod this_node;

pub use change::{Absence, Change};
pub use name::{InvalidName, ObjectName};
pub use objects::{
    Endpoint, EndpointPort, EndpointSlice, Node, Service, ServiceKind, ServicePort, TrafficPolicy,
};
pub use options::{ExternalIps, NodePortAddresses, Options};
pub use problem::Problem;

pub(crate) use cluster_ips::ClusterIps;
pub(crate) use slice::{Interned, KnownEndpoint, KnownSlice, Traits};
pub(crate) use strings::{Copies, Strings};
pub(crate) use this_node::ThisNode;
