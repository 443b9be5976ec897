//! Pure: Services, EndpointSlices and a Node in; the desired state of the kernel, and the reasons for it, out.
//!
//! The crate knows no Kubernetes client, no kernel, no clock and no thread. Its inputs are plain values ([`Change`]),
//! and so are its outputs ([`DesiredVirtualServer`], VIPs, nf_tables elements). The same changes give the same state in
//! any order.
//!
//! ```text
//! input/              compute/                                    state/                       explain/
//! Change ─► State ─► per Service: ServiceInputs ─► Decisions ─┬─► DesiredService ─► claims, ─► Dirty
//!                                                             │                     counts
//!                                                             └──────────────────────────────► Explanation
//! ```
//!
//! The folders follow this way, and each imports only from those before it:
//!
//! - `input`: what the API server and the node say, and what this node keeps of it.
//! - `compute`: what one Service asks of the kernel. `Decisions` holds every decision, `frontend` where a port is
//!   served (a NodePort at the node's own addresses, for example), `port_group` which endpoints are used there, and
//!   `collect` turns that into virtual servers and nf_tables elements.
//! - `state`: all Services together. An address and port goes to the first of its claims; VIPs, hairpin elements and
//!   health check ports are counted.
//! - `explain`: the decisions about one Service, rendered.
//!
//! What holds in it:
//!
//! - A [`DesiredService`] is a function of one Service, its slices, this node and the [`Options`], and of who else has
//!   its addresses ([`AddressOwner`]). So a change costs what its Service costs, and ten thousand
//!   other Services do not matter.
//! - What one Service may ask for is bounded, whatever others ask for: a few kilobytes of it multiply to more than a
//!   kernel takes in a minute.
//! - [`State::apply`] returns the keys whose desired value may have changed. A writer compares those and nothing else.
//! - [`State::explain`] decides again in the same way, and keeps what each decision passed over.

mod compute;
mod explain;
mod fair;
mod input;
mod one_line;
mod printable;
mod ref_counts;
pub mod seconds;
mod state;

pub use compute::{
    AddressKind, AddressOwner, AddressRefusal, DesiredService, DesiredVirtualServer, DirectReturnParts,
    EndpointScope, EndpointSelection, Entrance, HealthCheck, MAX_ADDRESSES, MAX_ALLOWED_SOURCES,
    MAX_REAL_SERVERS, MAX_REAL_SERVERS_MH, MAX_REAL_SERVERS_PER_VIRTUAL_SERVER, MAX_VIRTUAL_SERVERS,
    NotServed, RefusedAddress, SpecialAddress, Traffic, Urgency, WithoutLocalEndpoint,
};
pub use explain::{
    AddressExplanation, AddressUse, EndpointReason, EndpointWay, ExplainedAddress, ExplainedBalancing,
    ExplainedEndpoint, ExplainedPart, Explanation, HintsIgnored, LEAST_AFFINITY,
};
pub use fair::{fair_shares, in_turn};
pub use input::{
    Absence, Balancing, Change, Endpoint, EndpointPort, EndpointSlice, Event, ExternalForwarding,
    ExternalIps, ForwardingMethod, InvalidName, Named, Node, NodePortAddresses, ObjectName, Options, Problem,
    Service, ServiceKind, ServicePort, TrafficPolicy, Unpacking, UnpackingPeers, Weight, Weights,
};
pub use one_line::one_line;
pub use printable::{printable, printable_json, printable_line};
pub use state::{Conflict, ConflictLoss, Dirty, Key, State};
