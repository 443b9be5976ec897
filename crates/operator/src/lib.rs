//! The output of the operator's commands, for `kube-ipvs` on a node and for `kubectl ipvs` beside it: the forms
//! ([`output`]), and the answers that both read and write ([`explain`], [`top`]).
//!
//! Plain data: no kernel, no client, no thread.

pub mod explain;
pub mod output;
pub mod terminal;
pub mod top;
