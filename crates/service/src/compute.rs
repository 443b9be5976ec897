//! The desired state of the kernel for one Service, and the reasons for it.
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

mod address_owner;
mod balancing;
mod decisions;
mod desired_service;
mod endpoint_selection;
mod endpoints;
mod external_addresses;
mod frontend;
mod limits;
mod source_ranges;
mod untracked;
mod weight;

pub use address_owner::AddressOwner;
pub use decisions::{NotServed, Urgency};
pub use desired_service::{
    DesiredService, DesiredVirtualServer, EjectedEndpoint, EjectionState, HealthCheck, WithoutLocalEndpoint,
};
pub use endpoint_selection::{EndpointReason, EndpointScope, EndpointSelection, HintsIgnored};
pub use external_addresses::{AddressRefusal, RefusedAddress, SpecialAddress};
pub use frontend::AddressKind;
pub use limits::{
    MAX_ADDRESSES, MAX_ALLOWED_SOURCES, MAX_REAL_SERVERS, MAX_REAL_SERVERS_MH,
    MAX_REAL_SERVERS_PER_VIRTUAL_SERVER, MAX_VIRTUAL_SERVERS,
};
pub use weight::EndpointWeight;

pub(crate) use balancing::EffectiveBalancing;
pub(crate) use decisions::Decisions;
pub(crate) use endpoints::{PolicyGroup, PortEndpoint, PortGroup, precedence};
pub(crate) use external_addresses::ExternalAddresses;
pub(crate) use frontend::Frontend;

use desired_service::Extras;
use limits::Quota;
use source_ranges::SourceRanges;
use untracked::Untracked;
