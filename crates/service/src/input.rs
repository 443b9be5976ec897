//! What the API server, or a directory of manifests, tells, and what this node keeps of it.

mod balancing;
mod change;
mod cluster_ips;
mod endpoint_slice;
mod name;
mod node;
mod options;
mod problem;
mod service;
mod slice;
mod strings;
mod this_node;

pub use balancing::{Balancing, Weight, Weights};
pub use change::{Absence, Change};
pub use endpoint_slice::{Endpoint, EndpointPort, EndpointSlice};
pub use name::{InvalidName, ObjectName};
pub use node::Node;
pub use options::{ExternalIps, NodePortAddresses, Options};
pub use problem::Problem;
pub use service::{Service, ServiceKind, ServicePort, TrafficPolicy};

pub(crate) use cluster_ips::ClusterIps;
pub(crate) use slice::{Interned, KnownEndpoint, KnownSlice, Traits};
pub(crate) use this_node::ThisNode;
