//! Errors of an exchange and of one command.

use std::fmt;

use netlink::Errno;

use crate::{Command, VirtualServer};

/// An exchange with the kernel that failed as a whole. A command that is refused is a
/// [`FailedRequest`](crate::FailedRequest).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The family IPVS does not exist: the module ip_vs is missing.
    #[error("the kernel has no IPVS: load the module ip_vs")]
    NoIpvs,
    /// CAP_NET_ADMIN in the initial user namespace is missing; IPVS requires it even to read.
    #[error("IPVS refuses to {operation}: CAP_NET_ADMIN in the initial user namespace is needed (EPERM)")]
    NotPermitted {
        /// The operation.
        operation: &'static str,
    },
    /// The module ip_vs was unloaded and loaded again since it was last asked, so nothing is left of what was
    /// there before. Some of the commands may have been executed since: read back and compare.
    #[error("the module ip_vs was unloaded and loaded again, so its table was lost; it is read again")]
    Reloaded,
    /// Some other failure of the exchange. Commands may have been executed: read back and compare.
    #[error("cannot {operation}")]
    Netlink {
        /// The operation.
        operation: &'static str,
        /// The reason, for a log.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl Error {
    /// A function that turns an error of netlink during `operation` into this type.
    pub(super) fn during(operation: &'static str) -> impl Fn(netlink::Error) -> Self {
        move |source| match source {
            netlink::Error::NoSuchFamily(_) => Self::NoIpvs,
            refused if refused.errno() == Some(Errno::EPERM) => Self::NotPermitted { operation },
            source => Self::Netlink { operation, source: source.into() },
        }
    }
}

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

    /// The kernel's text (extended acknowledgement), or without one the meaning of the errno.
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

/// The refusal of a command, with the meaning of its errno where the kernel gives no text.
pub(super) fn explained(command: &Command, error: netlink::KernelError) -> netlink::KernelError {
    let netlink::KernelError { errno, message } = error;
    netlink::KernelError { errno, message: message.or_else(|| reason(command, errno)) }
}

/// The meaning of an errno for a command, where `net/netfilter/ipvs/ip_vs_ctl.c` leaves no doubt.
fn reason(command: &Command, errno: Errno) -> Option<Box<str>> {
    match (command, errno) {
        (Command::AddVirtualServer(server) | Command::EditVirtualServer(server), Errno::ENOENT) => {
            Some(missing_modules(server))
        }
        (Command::AddRealServer(id, _) | Command::EditRealServer(id, _), Errno::ESRCH) => {
            Some(format!("there is no virtual server {id}").into())
        }
        (Command::AddRealServer(..) | Command::EditRealServer(..), Errno::ERANGE) => {
            Some("a weight is at most 2147483647, and a lower threshold at most the upper one".into())
        }
        (Command::AddRealServer(_, server) | Command::EditRealServer(_, server), Errno::EINVAL) => Some(
            format!("{} is not a unicast address to which IPVS can forward in this way", server.address.ip)
                .into(),
        ),
        (command, Errno::EAFNOSUPPORT) => {
            Some(format!("the kernel has no {} for IPVS", command.virtual_server().family()).into())
        }
        _ => None,
    }
}

/// The kernel runs modprobe for `ip_vs_NAME` and `ip_vs_pe_NAME` by itself before it answers ENOENT.
fn missing_modules(server: &VirtualServer) -> Box<str> {
    let VirtualServer { scheduler, persistence_engine, .. } = server;
    match persistence_engine {
        None => format!("no scheduler {scheduler}: the kernel cannot load the module ip_vs_{scheduler}"),
        Some(engine) => format!(
            "no scheduler {scheduler} or no persistence engine {engine}: \
             the kernel cannot load the module ip_vs_{scheduler} or ip_vs_pe_{engine}"
        ),
    }
    .into()
}

#[cfg(test)]
mod tests {
    use netlink::KernelError;

    use super::{Command, Errno, Error, VirtualServer, explained};
    use crate::{Protocol, RealServer, Scheduler, ServiceAddress};

    fn vip() -> ServiceAddress {
        ServiceAddress { protocol: Protocol::Tcp, ip: [10, 96, 0, 1].into(), port: 443 }
    }

    #[test]
    fn a_missing_scheduler_is_named_with_its_module() {
        let add = Command::AddVirtualServer(VirtualServer::new(vip(), "fancy".parse().unwrap()));
        assert_eq!(
            explained(&add, KernelError::new(Errno::ENOENT)).to_string(),
            "ENOENT (No such file or directory): \
             no scheduler fancy: the kernel cannot load the module ip_vs_fancy"
        );
    }

    #[test]
    fn where_a_persistence_engine_is_asked_for_both_modules_are_named() {
        let mut server = VirtualServer::new(vip(), Scheduler::RR).persistent(60);
        server.persistence_engine = Some("sip".into());
        let edit = Command::EditVirtualServer(server);
        let reason = explained(&edit, KernelError::new(Errno::ENOENT)).message.unwrap();
        assert!(reason.contains("ip_vs_rr") && reason.contains("ip_vs_pe_sip"), "{reason}");
    }

    #[test]
    fn the_kernels_own_words_win() {
        let add = Command::AddRealServer(vip().into(), RealServer::masquerade([224, 0, 0, 1].into(), 80));
        let error = KernelError { errno: Errno::EINVAL, message: Some("no".into()) };
        assert_eq!(explained(&add, error).cause(), "no");
    }

    #[test]
    fn a_kernel_that_does_not_know_the_family_has_no_ipvs() {
        let transcript = netlink::Transcript::default();
        // struct nlmsghdr of an NLMSG_ERROR to the first request, and struct nlmsgerr.
        let header = [&36u32.to_ne_bytes()[..], &2u16.to_ne_bytes(), &[0; 2], &1u32.to_ne_bytes(), &[0; 4]];
        let answer = [&header.concat()[..], &(-(Errno::ENOENT as i32)).to_ne_bytes(), &[0; 16]].concat();
        transcript.push(&answer);
        let refused = transcript.replay(crate::KernelIpvs::open).unwrap_err();
        assert_eq!(refused.to_string(), "the kernel has no IPVS: load the module ip_vs");
    }

    #[test]
    fn a_missing_permission_and_a_missing_module_have_their_own_errors() {
        let convert = Error::during("read virtual servers");
        let eperm = netlink::Error::Refused(KernelError::new(Errno::EPERM));
        assert!(matches!(convert(eperm), Error::NotPermitted { operation: "read virtual servers" }));
        assert!(matches!(convert(netlink::Error::NoSuchFamily("IPVS".into())), Error::NoIpvs));
        assert!(matches!(convert(netlink::Error::StateUnknown), Error::Netlink { .. }));
    }
}
