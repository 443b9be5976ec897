//! What the tests of several tiers use.
#![allow(dead_code, unused_imports, reason = "each tier uses a part of this")]

pub(crate) mod cluster;
pub(crate) mod documents;
pub(crate) mod hand_over;
pub(crate) mod observability;
pub(crate) mod operator;
pub(crate) mod peer;
pub(crate) mod role;
pub(crate) mod traffic;
