//! What can be asked of our nf_tables tables.

use std::collections::BTreeSet;

use ipvs::Family;
use netlink::OperationError;

use crate::{ElementSet, Operation};

/// Why a read or a transaction failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The exchange with the kernel failed.
    #[error(transparent)]
    Operation(#[from] OperationError),
    /// The transaction was rolled back because of this object; nothing of it took effect.
    #[error("nf_tables transaction rolled back: cannot {operation}")]
    RolledBack {
        /// What the failed request should have done, in nft's words.
        operation: String,
        /// The kernel's answer.
        source: netlink::Error,
    },
}

impl Error {
    pub(crate) fn new(operation: &'static str, source: netlink::Error) -> Self {
        OperationError::new("nf_tables", operation, source).into()
    }
}

/// Our tables as the kernel shows them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// The families whose table exists with exactly our sets, chains and rules.
    pub installed: BTreeSet<Family>,
    /// The families whose table only lacks the rules that take new flows from the destination NAT of others.
    pub prepared: BTreeSet<Family>,
    /// The families whose table has the sets of direct return.
    pub direct_return: BTreeSet<Family>,
    /// The elements in our sets.
    pub elements: ElementSet,
}

/// Our nf_tables tables in one network namespace. No other table is read or written.
pub trait Netfilter {
    /// Reads our tables.
    fn observe(&mut self) -> Result<Observed, Error>;

    /// Applies the changes in one atomic transaction; on `Err` nothing took effect, unless the answer
    /// was lost ([`netlink::Error::StateUnknown`], [`netlink::Error::TimedOut`]).
    ///
    /// Tables are made first, with or without direct return, then elements change in the order given, except that all intervals are
    /// deleted before others are added. Deleting an element that does not exist, or adding one that does, is
    /// not an error; changing an element of a table that does not exist is.
    fn apply(&mut self, operations: &[Operation]) -> Result<(), Error>;
}
