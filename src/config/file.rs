//! The configuration file: `KubeProxyConfiguration`, its defaults, reading and writing it.

pub(super) mod decode;
pub(crate) mod defaults;
pub(super) mod encode;
pub(super) mod ignored_fields;
pub(super) use super::v1alpha1;
pub(crate) mod yaml;
