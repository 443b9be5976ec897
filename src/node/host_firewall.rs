//! The host's own firewall: which of its chains drop traffic of Services, and our rules that accept it there.

pub(crate) mod check;
mod rules;

pub(crate) use rules::{Finding, OurRules, drops_still};
