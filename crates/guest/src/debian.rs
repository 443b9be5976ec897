//! Kernels and their sources out of the distribution's packages.

pub(crate) mod apt;
pub(crate) mod kernel_package;
pub(crate) mod modules;
pub(crate) mod suite;
