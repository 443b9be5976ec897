//! The kernel client.

use std::collections::{BTreeSet, HashSet};

use ipvs::Family;

use crate::{Change, Element};

/// Why a read or a transaction failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// CAP_NET_ADMIN is missing.
    #[error("nf_tables refuses to {operation}: CAP_NET_ADMIN is needed (EPERM)")]
    NotPermitted {
        /// What was asked.
        operation: &'static str,
    },
    /// The transaction was rolled back because of this object; nothing of it took effect.
    #[error("nf_tables transaction rolled back: cannot {operation}")]
    RolledBack {
        /// What the failing request was to do, in nft's words.
        operation: String,
        /// The kernel's answer.
        source: netlink::Error,
    },
    /// Some other failure of the exchange.
    #[error("cannot {operation}")]
    Netlink {
        /// What was asked.
        operation: &'static str,
        /// What went wrong.
        source: netlink::Error,
    },
}

/// Our tables as the kernel shows them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// The families whose table exists with exactly our sets, chains and rules.
    pub installed: BTreeSet<Family>,
    /// The elements in our sets.
    pub elements: HashSet<Element>,
}

/// The seam to our nf_tables tables in one network namespace. No other table is read or written.
pub trait Netfilter {
    /// Reads our tables.
    fn observe(&mut self) -> Result<Observed, Error>;

    /// Applies the changes in one atomic transaction; on `Err` nothing took effect, unless the answer
    /// was lost ([`netlink::Error::StateUnknown`], [`netlink::Error::TimedOut`]).
    ///
    /// Deleting an element that does not exist fails the transaction: diff against what was observed.
    fn apply(&mut self, changes: &[Change]) -> Result<(), Error>;
}

/// The real kernel.
#[derive(Debug)]
pub struct KernelNetfilter {}
