//! Blocking netlink for programs that configure the kernel in bulk.
//!
//! Three things that general netlink crates leave to the caller, and that decide whether a proxy
//! with ten thousand virtual servers starts in tenths of a second or in minutes:
//!
//! - **Batches.** [`Socket::pipeline`] sends many requests in one datagram and asks for one
//!   acknowledgement, on the last. The kernel still answers every *failed* request, so each
//!   [`FailedRequest`] is matched to its request by sequence number. Nothing is transactional.
//! - **Transactions.** [`Socket::transact`] sends a begin…end sequence as one datagram, which
//!   nf_tables applies whole or not at all.
//! - **Dumps that are right.** [`Socket::dump`] starts over when the kernel marks that the table
//!   changed under it (`NLM_F_DUMP_INTR`).
//!
//! A receive queue that overflows (`ENOBUFS`) loses answers, not operations: the caller gets
//! [`Error::StateUnknown`] and must read back what it wrote.
//!
//! Notifications of the kernel come through a `Notifications` (feature `notifications`), the only part
//! that does not block but needs tokio.
//!
//! ```no_run
//! use netlink::{Batch, Protocol, Socket};
//!
//! let mut socket = Socket::open(Protocol::Generic)?;
//! let ipvs = socket.generic_family("IPVS")?;
//! let mut batch = Batch::default();
//! batch.generic(ipvs, 17, 1, |_| {}); // IPVS_CMD_FLUSH
//! for failure in socket.pipeline(&mut batch)? {
//!     eprintln!("request {} failed: {}", failure.index, failure.error);
//! }
//! # Ok::<(), netlink::Error>(())
//! ```

mod batch;
mod error;
#[cfg(feature = "notifications")]
mod notifications;
#[cfg(feature = "replay")]
mod replay;
mod reply;
mod socket;

pub use batch::{Batch, Encoder};
pub use error::{Error, FailedRequest, KernelError, OperationError, if_exists};
pub use nix::errno::Errno;
#[cfg(feature = "notifications")]
pub use notifications::{Notifications, each_notification};
#[cfg(feature = "replay")]
pub use replay::Transcript;
pub use reply::{Attribute, Reply, attributes, find};
pub use socket::{Protocol, Socket};
