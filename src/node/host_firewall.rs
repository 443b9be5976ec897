//! The host's own firewall: which of its chains drop traffic of Services, and our rule that accepts it there.

pub(crate) mod check;
mod rule;

pub(crate) use rule::{AcceptRule, ChainFinding};
