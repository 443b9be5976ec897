//! What the tests of several modules use: hosts in network namespaces, and programs that cross-check.

pub(crate) mod cluster;
pub(crate) mod host;
pub(crate) mod programs;
