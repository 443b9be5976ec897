//! The kernel's answer to a command that it does not execute.

use std::fmt;

use netlink::Errno;

/// The kernel's refusal of one command, or of a virtual server.
///
/// ```
/// use ipvs::Refusal;
///
/// const ENOENT: i32 = 2;
/// let refusal = Refusal::new(ENOENT).because("no scheduler fancy");
/// assert_eq!(refusal.to_string(), "ENOENT (No such file or directory): no scheduler fancy");
/// assert_eq!((refusal.errno(), refusal.message()), (ENOENT, Some("no scheduler fancy")));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal(netlink::Refusal);

impl Refusal {
    /// A refusal with an error number of include/uapi/asm-generic/errno.h, as in `libc` or
    /// [`io::Error::raw_os_error`](std::io::Error::raw_os_error). For code that stands in for a kernel.
    pub fn new(errno: i32) -> Self {
        Self(netlink::Refusal::new(Errno::from_raw(errno)))
    }

    /// This refusal with an explanation.
    #[must_use]
    pub fn because(mut self, message: impl Into<Box<str>>) -> Self {
        self.0.message = Some(message.into());
        self
    }

    /// The error number.
    pub fn errno(&self) -> i32 {
        self.0.errno as i32
    }

    /// The kernel's own words (extended acknowledgement), or what the errno means where the kernel has none.
    pub fn message(&self) -> Option<&str> {
        self.0.message.as_deref()
    }

    /// The message if there is one, and the error number otherwise.
    pub fn cause(&self) -> String {
        self.0.cause()
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Refusal {}

/// One of several commands, which the kernel refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Failure {
    /// The command's position among those that were applied, from 0.
    pub index: usize,
    /// The kernel's answer.
    pub refusal: Refusal,
}

impl Failure {
    /// The refusal of the command at this position.
    pub fn new(index: usize, refusal: Refusal) -> Self {
        Self { index, refusal }
    }

    pub(super) fn from_netlink(failure: netlink::Failure) -> Self {
        Self { index: failure.index, refusal: Refusal(failure.refusal) }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "request {}: {}", self.index, self.refusal)
    }
}
