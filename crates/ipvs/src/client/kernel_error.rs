//! The kernel's answer to a command that it does not execute.

use std::fmt;

use netlink::Errno;

/// The kernel's answer to a command that it does not execute: an error number, and often what it means.
///
/// ```
/// use ipvs::KernelError;
///
/// const ENOENT: i32 = 2;
/// let error = KernelError::new(ENOENT).because("no scheduler fancy");
/// assert_eq!(error.to_string(), "ENOENT (No such file or directory): no scheduler fancy");
/// assert_eq!((error.errno(), error.message()), (ENOENT, Some("no scheduler fancy")));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelError(netlink::KernelError);

impl KernelError {
    /// An error with an error number of include/uapi/asm-generic/errno.h, as in `libc` or
    /// [`io::Error::raw_os_error`](std::io::Error::raw_os_error). For code that stands in for a kernel.
    pub fn new(errno: i32) -> Self {
        Self(netlink::KernelError::new(Errno::from_raw(errno)))
    }

    /// This error with an explanation.
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

impl fmt::Display for KernelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for KernelError {}

/// One of several commands, which the kernel refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FailedRequest {
    /// The command's position among those that were applied, from 0.
    pub index: usize,
    /// The kernel's answer.
    pub error: KernelError,
}

impl FailedRequest {
    /// The error of the command at this position.
    pub fn new(index: usize, error: KernelError) -> Self {
        Self { index, error }
    }

    pub(super) fn from_netlink(failure: netlink::FailedRequest) -> Self {
        Self { index: failure.index, error: KernelError(failure.error) }
    }
}

impl fmt::Display for FailedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "request {}: {}", self.index, self.error)
    }
}
