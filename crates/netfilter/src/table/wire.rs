//! What goes over the wire. No part of the public API: it is for the tests, benches and fuzzers of the workspace.

use netlink::Batch;

use super::{client::change_elements, transaction::Transaction};
use crate::Operation;

/// Encodes the transaction that [`apply`](crate::Netfilter::apply) sends for operations on elements. Intervals that
/// are deleted must exist.
pub fn encode(operations: &[Operation]) -> Batch {
    let mut transaction = Transaction::default();
    change_elements(&mut transaction, operations);
    transaction.encode(None)
}
