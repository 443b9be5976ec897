//! What one Service asks of the kernel, and why.
//!
//! ```text
//! ServiceInputs ─► ExternalAddresses ─► EffectiveBalancing ─► Quota ─► Frontend, each address with a port
//!                                                                         │
//!              ┌─── PortGroup, the frontends of one port and family ◄─────┘
//!              │      its endpoints, merged from all slices
//!              └─► PolicyGroup, those with one traffic policy
//!                     its EndpointSelection, and the endpoints used ─┬─► DesiredService
//!                                                                    └─► Explanation
//! ```

mod address_kind;
mod address_owner;
mod balancing;
mod collect;
mod decisions;
mod desired_service;
mod direct_return;
mod endpoint_selection;
mod endpoints;
mod external_addresses;
mod frontend;
mod health_check;
mod limits;
mod not_served;
mod port_group;
mod source_ranges;
mod traffic;
mod urgency;

pub use address_kind::AddressKind;
pub use address_owner::AddressOwner;
pub use desired_service::{DesiredService, DesiredVirtualServer, HealthCheck, WithoutLocalEndpoint};
pub use direct_return::{DirectReturnParts, Entrance};
pub use endpoint_selection::{EndpointScope, EndpointSelection};
pub use external_addresses::{AddressRefusal, RefusedAddress, SpecialAddress};
pub use limits::{
    MAX_ADDRESSES, MAX_ALLOWED_SOURCES, MAX_REAL_SERVERS, MAX_REAL_SERVERS_MH,
    MAX_REAL_SERVERS_PER_VIRTUAL_SERVER, MAX_VIRTUAL_SERVERS,
};
pub use not_served::NotServed;
pub use traffic::Traffic;
pub use urgency::Urgency;

pub(crate) use decisions::Decisions;
pub(crate) use desired_service::Extras;
pub(crate) use endpoints::PortEndpoint;
pub(crate) use frontend::Frontend;
pub(crate) use port_group::{PolicyGroup, PortGroup};

pub(crate) use balancing::EffectiveBalancing;
use direct_return::DirectReturn;
use external_addresses::ExternalAddresses;
use limits::Quota;
use source_ranges::SourceRanges;
