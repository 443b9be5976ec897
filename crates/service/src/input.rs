//! What the API server or a directory of manifests says, and what this node keeps of it.
//!
//! The objects are plain values, already decoded, with what the data plane needs and nothing else. Elements that could
//! not be decoded are left out of them, and reported in their `problems`.

mod address_book;
mod balancing;
mod change;
mod compact_slice;
mod endpoint_slice;
mod forwarding_method;
mod interner;
mod node;
mod object_name;
mod options;
mod peers;
mod problem;
mod service;
mod service_inputs;
mod this_node;

pub use balancing::{Balancing, Weight, Weights};
pub use change::{Absence, Change, Event, Named};
pub use endpoint_slice::{Endpoint, EndpointPort, EndpointSlice};
pub use forwarding_method::{ExternalForwarding, ForwardingMethod};
pub use node::Node;
pub use object_name::{InvalidName, ObjectName};
pub use options::{ExternalIps, NodePortAddresses, Options};
pub use peers::{Unpacking, UnpackingPeers};
pub use problem::Problem;
pub use service::{Service, ServiceKind, ServicePort, TrafficPolicy};

pub(crate) use address_book::{AddressBook, EndpointOwner};
pub(crate) use compact_slice::{CompactEndpoint, CompactSlice, Interners, Traits};
pub(crate) use peers::Peers;
pub(crate) use service_inputs::ServiceInputs;
pub(crate) use this_node::ThisNode;
