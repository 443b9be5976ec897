//! Pure: Services and EndpointSlices and a Node in, the desired state of the kernel out.

mod change;
mod desired;
mod input;
mod name;
mod options;
mod state;

pub use change::Change;
pub use desired::{DesiredService, DesiredVirtualServer};
pub use input::{
    Endpoint, EndpointPort, EndpointSlice, Node, Service, ServiceKind, ServicePort, TrafficPolicy,
};
pub use name::{InvalidName, ObjectName};
pub use options::Options;
pub use state::{State, Touched, Urgency};
