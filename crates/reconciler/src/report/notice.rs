//! Notices: what the owner of a Service should hear of.

use service::ObjectName;

/// Something about one Service that its owner can do something about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The Service that it is about.
    pub service: ObjectName,
    /// The kind of thing that happened.
    pub reason: Reason,
    /// One sentence for a person.
    pub text: String,
}

/// The kind of thing that a notice is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// An address and port of the Service belongs to another one, which is served there instead.
    AddressTaken,
    /// An external address of the Service is one that no Service gets.
    AddressRefused,
    /// A field or annotation of the Service, or of one of its slices, is not used as it is written.
    FieldNotUsed,
}

/// Takes notices. The writer thread calls it in the middle of its work: it must not block.
pub type NoticeCallback = Box<dyn Fn(Notice) + Send>;
