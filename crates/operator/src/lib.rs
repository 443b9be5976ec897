//! The output of the operator's commands, for `kube-ipvs` on a node and for `kubectl ipvs` beside it: the forms
//! ([`output`]), what may be asked about ([`subject`]), and the answers that both read
//! and write ([`explain`], [`top`]).
//!
//! Plain data: no kernel, no client, no thread.

pub mod explain;
pub mod output;
pub mod subject;
pub mod terminal;
pub mod top;
