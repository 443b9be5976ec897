//! The kernel's own texts about IPVS in `/proc/net`.

pub mod connections;
pub mod summary;
mod text;
