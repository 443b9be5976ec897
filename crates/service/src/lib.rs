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
//! The folders follow this way. Each imports only from those before it, and from `direct_return`:
//!
//! - `input`: objects and facts about the node, and what this node keeps of them.
//! - `compute`: what one Service asks of the kernel. `Decisions` holds every decision, `frontend` where a port is
//!   served (a NodePort at the node's own addresses, for example), and `endpoints` which endpoints are used there; they
//!   become virtual servers and nf_tables elements, a [`DesiredService`].
//! - `state`: all Services together. An address and port goes to the first of its claims; VIPs, hairpin elements and
//!   health check ports are counted.
//! - `explain`: the decisions about one Service, rendered; whose an address is, and what becomes of a client there.
//! - `liveness`: whether endpoints answer, judged by counters.
//! - `direct_return`: all that direct return adds to these, in one place.
//!
//! Invariants:
//!
//! - A [`DesiredService`] is a function of one Service, its slices, this node and the [`Options`], and of who else has
//!   its addresses ([`AddressOwner`]). So a change costs what its Service costs, and ten thousand
//!   other Services do not matter.
//! - What one Service may ask for is bounded, whatever others ask for: a few kilobytes of it multiply to more than a
//!   kernel takes in a minute.
//! - [`State::apply`] returns the keys whose desired value may have changed. A writer compares those and nothing else.
//! - [`State::explain`] decides again in the same way, and keeps what each decision passed over.

mod collections;
mod compute;
mod direct_return;
mod explain;
mod input;
pub mod liveness;
mod state;
mod text;

pub use collections::{fair_shares, in_turn};
pub use compute::{
    AddressKind, AddressOwner, AddressRefusal, DesiredService, DesiredVirtualServer, EjectedEndpoint,
    EjectionState, EndpointReason, EndpointScope, EndpointSelection, EndpointWeight, HealthCheck,
    HintsIgnored, MAX_ADDRESSES, MAX_ALLOWED_SOURCES, MAX_REAL_SERVERS, MAX_REAL_SERVERS_MH,
    MAX_REAL_SERVERS_PER_VIRTUAL_SERVER, MAX_VIRTUAL_SERVERS, NotServed, RefusedAddress, SpecialAddress,
    Urgency, WithoutLocalEndpoint,
};
pub use direct_return::{
    DirectReturnParts, Entrance, ExternalForwarding, ForwardingMethod, Unpacking, UnpackingPeers,
};
pub use explain::{
    AddressExplanation, AddressQuery, AddressUse, Admission, Client, EndpointCause, EndpointCauses,
    EndpointPath, EndpointUse, ExplainedAddress, ExplainedBalancing, ExplainedClient, ExplainedEndpoint,
    ExplainedPart, Explanation, LEAST_AFFINITY, SourceAddress,
};
pub use input::{
    Absence, Answer, Answers, Balancing, ByDistance, Change, DNS_PORT, Distance, DistanceWeights, Ejection,
    EjectionCause, Endpoint, EndpointAnswer, EndpointPort, EndpointSlice, Event, ExternalIps,
    InvalidDistanceWeights, InvalidEjection, InvalidName, InvalidUntrackedServices, Named, Node,
    NodePortAddresses, ObjectName, Options, Problem, Service, ServiceKind, ServicePort, Share, Traffic,
    TrafficPolicy, UntrackedServices, Weight, Weights,
};
pub use state::{Conflict, ConflictLoss, Dirty, Key, Reports, State};
pub use text::{one_line, printable, printable_json, printable_line, seconds};
