//! Which rules of our table a packet is compared with, and what each made of it.
//!
//! The kernel's trace names only rules that match. But a packet is compared with the rules of a chain one after the
//! other, so whatever stands before one that matched was evaluated too (`nft_do_chain` in
//! net/netfilter/nf_tables_core.c).
mod rules;
mod trace;

pub(crate) use rules::{Evaluated, Rules};
pub(crate) use trace::Trace;
