//! Pure: Services and EndpointSlices and a Node in, the desired state of the kernel out.
//!
//! The crate knows no Kubernetes client and no kernel. What it is told are plain values
//! ([`Change`]); what it answers are plain values too ([`DesiredVirtualServer`], VIPs, nf_tables
//! elements). So the same events always give the same state, in whatever order they come.
//!
//! ```text
//! Change ──► State ─┬─ per Service: the Service, its slices ──► DesiredService
//!                   └─ over all Services: who holds which address and port,
//!                      which VIPs and shared elements are wanted by at least one
//! ```
//!
//! - A [`DesiredService`] is all that one Service asks for. It is computed from the Service, its own
//!   slices, this node and the [`Options`], and of other Services only by whether one has a ClusterIP that it names
//!   as an external address: a change costs what its Service costs, and ten thousand other Services do not matter.
//! - A port is served at the ClusterIP, at external IPs and load balancers' addresses, and as NodePort
//!   at the node's own addresses. Where traffic comes in decides which policy counts, whether the address
//!   is made local to the node, who is masqueraded, and who is let in.
//! - Of all that, each Service has room for so much, whatever others ask for: a few kilobytes of it multiply to more
//!   than a kernel takes in a minute.
//! - Its real servers come out of three steps: the slices are merged into one list of endpoints per
//!   port and family, one decision is taken for the list (ready or draining; everywhere, in this zone,
//!   on this node), and the decision picks from the list.
//! - Services meet only where they ask for the same thing. An address and port goes to the first of
//!   their claims, and with it the elements by which its flows are masqueraded and its clients let in; VIPs,
//!   hairpins and health check ports are counted.
//! - [`State::explain`] goes the same way again for one Service and keeps what was passed over, with the reason.
//! - [`State::apply`] answers with the keys whose desired value may be another one now, so that whoever
//!   writes to the kernel looks at those and at nothing else.

mod compute;
mod explain;
mod input;
mod one_line;
mod ref_counts;
pub mod seconds;
mod state;

pub use compute::{
    AddressKind, AddressRefusal, DesiredService, DesiredVirtualServer, EndpointScope, EndpointSelection,
    HealthCheck, MAX_ALLOWED_SOURCES, MAX_REAL_SERVERS, MAX_REAL_SERVERS_MH,
    MAX_REAL_SERVERS_PER_VIRTUAL_SERVER, MAX_VIRTUAL_SERVERS, NotServed, RefusedAddress, SpecialAddress,
    Traffic, Urgency, WithoutLocalEndpoint,
};
pub use explain::{
    EndpointReason, ExplainedAddress, ExplainedBalancing, ExplainedEndpoint, ExplainedPart, Explanation,
    HintsIgnored,
};
pub use input::{
    Absence, Balancing, Change, Endpoint, EndpointPort, EndpointSlice, ExternalIps, InvalidName, Node,
    NodePortAddresses, ObjectName, Options, Problem, Service, ServiceKind, ServicePort, TrafficPolicy,
    Weight, Weights,
};
pub use one_line::one_line;
pub use state::{Conflict, ConflictLoss, State, Touched};
