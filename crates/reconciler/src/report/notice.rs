//! Notices to the owner of a Service.

use service::ObjectName;

/// A problem of one Service that its owner can solve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The Service that it is about.
    pub service: ObjectName,
    /// The kind of problem.
    pub reason: Reason,
    /// One sentence for a person.
    pub text: String,
}

/// The kind of problem that a notice is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// An address and port of the Service belongs to another one, which is served there instead.
    AddressTaken,
    /// An external address of the Service is one that no Service gets.
    AddressRefused,
    /// A field or annotation of the Service, or of one of its slices, is not used as it is written.
    FieldNotUsed,
}

/// Receives notices. The writer thread calls it: it must not block.
pub type NoticeCallback = Box<dyn Fn(Notice) + Send>;
