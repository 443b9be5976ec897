//! Objects of the API server or of a directory of manifests, and what this node keeps of them.
//!
//! The objects are plain values, already decoded, with what the data plane needs and nothing else. Elements that could
//! not be decoded are left out of them, and reported in their `problems`.

mod address_book;
mod answers;
mod balancing;
mod change;
mod endpoint_slice;
mod object_name;
mod options;
mod peers;
mod service;
mod standing;
mod this_node;

pub use answers::{Answer, Answers, EndpointAnswer};
pub use balancing::{
    Balancing, ByDistance, Distance, DistanceWeights, Ejection, InvalidDistanceWeights, InvalidEjection,
    InvalidUntrackedServices, UntrackedServices, Weight, Weights,
};
pub use change::{Absence, Change, Event, Named};
pub use endpoint_slice::{Endpoint, EndpointPort, EndpointSlice};
pub use object_name::{InvalidName, ObjectName, Problem};
pub use options::{ExternalIps, NodePortAddresses, Options};
pub use service::{DNS_PORT, Service, ServiceKind, ServicePort, Traffic, TrafficPolicy};
pub use standing::{EjectionCause, Share};
pub use this_node::Node;

pub(crate) use address_book::{AddressBook, EndpointOwner};
pub(crate) use endpoint_slice::{CompactEndpoint, CompactSlice, Interners, Traits};
pub(crate) use peers::Peers;
pub(crate) use standing::{EndpointKey, Standing, Standings};
pub(crate) use this_node::ThisNode;

use std::time::Instant;

use ipvs::Family;

/// The inputs of one Service. Its desired state is a function of them and of nothing else.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServiceInputs<'a> {
    /// The Service itself.
    pub(crate) service: &'a Service,
    /// Its EndpointSlices, sorted by name.
    pub(crate) slices: &'a [CompactSlice],
    /// This node.
    pub(crate) node: &'a ThisNode,
    /// The configuration.
    pub(crate) options: &'a Options,
    /// The addresses of all Services and endpoints.
    pub(crate) addresses: &'a AddressBook,
    /// How its endpoints stand, and the time.
    pub(crate) standings: &'a Standings,
    pub(crate) now: Option<Instant>,
}

impl<'a> ServiceInputs<'a> {
    /// The slices of a family that have endpoints.
    pub(crate) fn filled_slices(self, family: Family) -> impl Iterator<Item = &'a CompactSlice> {
        self.slices.iter().filter(move |slice| slice.family == family && !slice.endpoints.is_empty())
    }

    /// The slices of a family that have none.
    pub(crate) fn empty_slices(self, family: Family) -> impl Iterator<Item = &'a CompactSlice> {
        self.slices.iter().filter(move |slice| slice.family == family && slice.endpoints.is_empty())
    }
}
