//! Kernels, their sources and root file systems out of the distribution's packages.

pub(crate) mod apt;
pub(crate) mod kernel_package;
pub(crate) mod modules;
pub mod root;
pub(crate) mod suite;
