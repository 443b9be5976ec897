//! Everything that decides how one Service is served on this node.

use ipvs::Family;

use super::{AddressBook, CompactSlice, Options, Service, ThisNode};

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
}

impl<'a> ServiceInputs<'a> {
    /// The slices of a family that have endpoints.
    pub(crate) fn filled_slices(self, family: Family) -> impl Iterator<Item = &'a CompactSlice> {
        self.slices.iter().filter(move |slice| slice.family == family && !slice.endpoints.is_empty())
    }
}
