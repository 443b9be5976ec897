//! The node itself: what is required of it and set on it before anything is programmed.
//!
//! [`requirements`] refuses a node that cannot be served, [`sysctl`] sets kernel parameters, [`init`] does
//! both in the order that the kernel needs, and [`host_firewall`] accepts traffic of Services in the host's
//! own firewall. `checks` has what is checked before the start and from then on.

pub(crate) mod families;
pub(crate) mod host_firewall;
pub mod init;
pub mod requirements;
pub(crate) mod routing_drops;
pub mod sysctl;
