//! Which of the flows to an address are masqueraded.

use ipvs::ServiceAddress;
use netfilter::Element;
use serde::Serialize;

/// The set of our tables that has an address, and that says which of its flows are masqueraded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum MasqueradeSet {
    /// `cluster-ips`
    ClusterIps,
    /// `external`
    External,
    /// `external-local`
    ExternalLocal,
    /// `direct-return`
    DirectReturn,
}

impl MasqueradeSet {
    /// The element of an address.
    pub fn element(self, of: ServiceAddress) -> Element {
        match self {
            Self::ClusterIps => Element::ClusterIp(of),
            Self::External => Element::External(of),
            Self::ExternalLocal => Element::ExternalLocal(of),
            Self::DirectReturn => Element::DirectReturn(of),
        }
    }
}
