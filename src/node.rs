//! The node itself: what is checked and set on it before anything is programmed, and what is checked from then on.
//!
//! [`requirements`] refuses a node that cannot be served, [`sysctl`] sets kernel parameters, [`init`] does both in the
//! order that the kernel needs, [`advice`] looks for settings that hurt traffic, and [`host_firewall`] accepts traffic
//! of Services in the host's own firewall.

pub mod advice;
pub(crate) mod families;
pub(crate) mod host_firewall;
pub mod init;
pub mod limits;
pub(crate) mod oom;
pub mod requirements;
pub mod sysctl;
pub(crate) mod vip_binding;
