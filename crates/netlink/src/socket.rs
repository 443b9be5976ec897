//! The socket: opening it, sending and receiving; and its other end.

mod exchange;

use std::{io, ops::Range};

use netlink_sys::protocols::{NETLINK_GENERIC, NETLINK_NETFILTER, NETLINK_ROUTE};
use nix::{
    errno::Errno,
    sys::{
        socket::{setsockopt, sockopt},
        time::{TimeVal, TimeValLike},
    },
};

use crate::{
    Batch, Error,
    reply::{Reply, replies},
};

#[cfg(feature = "replay")]
use crate::{Transcript, replay::Tape};

/// How long the kernel may take to answer. It answers within the send call, except when another owner of the
/// family's lock is slow; upstream's client waits three seconds for a reply.
const TIMEOUT_SECONDS: u64 = 10;

/// The buffers asked for. Without CAP_NET_ADMIN the kernel keeps its defaults (about 208 KiB).
const SEND_BUFFER: usize = 16 << 20;
pub(crate) const RECEIVE_BUFFER: usize = 16 << 20;

/// What one refused request costs in the receive queue: a small skb is charged with its overhead.
const BYTES_PER_ANSWER: usize = 1024;

/// The netlink protocols that a proxy needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// `NETLINK_GENERIC`: IPVS among others.
    Generic,
    /// `NETLINK_NETFILTER`: nf_tables and conntrack.
    Netfilter,
    /// `NETLINK_ROUTE`: links, addresses and routes.
    Route,
}

impl Protocol {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Generic => "generic",
            Self::Netfilter => "netfilter",
            Self::Route => "route",
        }
    }

    pub(crate) fn number(self) -> isize {
        match self {
            Self::Generic => NETLINK_GENERIC,
            Self::Netfilter => NETLINK_NETFILTER,
            Self::Route => NETLINK_ROUTE,
        }
    }
}

/// A blocking netlink socket, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Socket {
    wire: Wire,
    port: u32,
    sequence: u32,
    buffer: Vec<u8>,
    answers_that_fit: usize,
}

impl Socket {
    /// Opens a socket that receives up to 64 KiB at a time: right for large dumps and batches.
    pub fn open(protocol: Protocol) -> Result<Self, Error> {
        Self::open_with(protocol, 64 << 10)
    }

    /// Opens a socket that receives 8 KiB at a time: right for very many short dumps.
    ///
    /// The kernel sizes the buffers of a dump by the largest receive ever made on the socket, and
    /// zeroes them (`netlink_dump` in net/netlink/af_netlink.c), so a thousand dumps of five entries
    /// each cost half as much here.
    pub fn open_for_short_dumps(protocol: Protocol) -> Result<Self, Error> {
        Self::open_with(protocol, 8 << 10)
    }

    fn open_with(protocol: Protocol, receive_size: usize) -> Result<Self, Error> {
        #[cfg(feature = "replay")]
        let record = match Tape::of_this_thread() {
            Some(Tape::Replay(transcript)) => return Ok(Self::replay(transcript)),
            Some(Tape::Record(transcript)) => Some(transcript),
            None => None,
        };
        let cannot =
            |operation| move |source: io::Error| Error::Open { operation, protocol: protocol.name(), source };
        let mut inner = netlink_sys::Socket::new(protocol.number()).map_err(cannot("open"))?;
        let port = inner.bind_auto().map_err(cannot("bind"))?.port_number();
        inner.set_cap_ack(true).map_err(cannot("set NETLINK_CAP_ACK on"))?;
        inner.set_ext_ack(true).map_err(cannot("set NETLINK_EXT_ACK on"))?;
        let timeout = TimeVal::seconds(i64::try_from(TIMEOUT_SECONDS).unwrap_or(10));
        setsockopt(&inner, sockopt::ReceiveTimeout, &timeout)
            .and_then(|()| setsockopt(&inner, sockopt::SendTimeout, &timeout))
            .map_err(|errno| cannot("set time-outs of")(errno.into()))?;
        // Forcing needs CAP_NET_ADMIN. Without it the defaults serve, in smaller pieces.
        let _ = setsockopt(&inner, sockopt::SndBufForce, &SEND_BUFFER);
        let _ = setsockopt(&inner, sockopt::RcvBufForce, &RECEIVE_BUFFER);
        let granted = inner.get_rx_buf_sz().map_err(cannot("read the buffer size of"))?;
        Ok(Self {
            wire: Wire::Kernel {
                socket: inner,
                #[cfg(feature = "replay")]
                record,
            },
            port,
            sequence: 0,
            buffer: vec![0; receive_size],
            answers_that_fit: (granted / BYTES_PER_ANSWER).clamp(64, 8192),
        })
    }

    /// A socket without a kernel: the rest of the transcript answers each request. Sequence numbers begin with 1, as in
    /// every socket.
    #[cfg(feature = "replay")]
    pub(crate) fn replay(transcript: Transcript) -> Self {
        Self {
            wire: Wire::Replay(transcript),
            port: 0,
            sequence: 0,
            buffer: vec![0; 64 << 10],
            answers_that_fit: 64,
        }
    }

    /// The number by which the kernel knows this socket among those of its protocol: a notification names the socket
    /// whose request made the change.
    pub fn port(&self) -> u32 {
        self.port
    }

    /// Lets the kernel filter dumps by what the request names: an interface, a table, a protocol
    /// (`NETLINK_GET_STRICT_CHK`). Kernels before 4.20 cannot and send everything, so the caller filters
    /// all the same.
    pub fn filter_dumps(&mut self) {
        self.wire.filter_dumps();
    }

    /// Sends these requests as one datagram, each with a sequence number of its own, and one of them with flags.
    /// Returns the first number.
    fn send(
        &mut self,
        batch: &mut Batch,
        requests: Range<usize>,
        flagged: usize,
        flags: u16,
    ) -> Result<u32, Error> {
        let first = self.sequence.wrapping_add(1);
        for index in requests.clone() {
            self.sequence = self.sequence.wrapping_add(1);
            batch.stamp(index, self.sequence, if index == flagged { flags } else { 0 });
        }
        let bytes = batch.slice(requests);
        loop {
            match self.wire.send(bytes) {
                Ok(()) => return Ok(first),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(Error::Send { bytes: bytes.len(), source }),
            }
        }
    }

    /// Passes on what is received, until `is_last` says that it was the last message.
    fn receive_until(
        &mut self,
        mut is_last: impl FnMut(&Reply<'_>) -> Result<bool, Error>,
    ) -> Result<(), Error> {
        loop {
            let length = match self.wire.receive(&mut self.buffer) {
                Ok(length) => length,
                Err(error) => match Errno::from_raw(error.raw_os_error().unwrap_or_default()) {
                    Errno::EINTR => continue,
                    Errno::ENOBUFS => return Err(Error::StateUnknown),
                    Errno::EAGAIN => return Err(Error::TimedOut { seconds: TIMEOUT_SECONDS }),
                    _ => return Err(Error::Receive(error)),
                },
            };
            for reply in replies(self.buffer.get(..length).unwrap_or_default()) {
                if is_last(&reply?)? {
                    return Ok(());
                }
            }
        }
    }
}

/// The other end of a socket: the kernel, in tests also with a record of what it sends; or such a record alone.
#[derive(Debug)]
enum Wire {
    Kernel {
        socket: netlink_sys::Socket,
        #[cfg(feature = "replay")]
        record: Option<Transcript>,
    },
    #[cfg(feature = "replay")]
    Replay(Transcript),
}

impl Wire {
    /// A kernel that cannot filter refuses the option, and sends everything.
    fn filter_dumps(&mut self) {
        match self {
            Self::Kernel { socket, .. } => _ = socket.set_netlink_get_strict_chk(true),
            #[cfg(feature = "replay")]
            Self::Replay(_) => {}
        }
    }

    /// Sends one datagram.
    fn send(&self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Kernel { socket, .. } => socket.send(bytes, 0).map(drop),
            #[cfg(feature = "replay")]
            Self::Replay(_) => Ok(()),
        }
    }

    /// Receives one datagram, as much of it as fits. Returns its length.
    fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Kernel {
                socket,
                #[cfg(feature = "replay")]
                record,
            } => {
                let mut rest = &mut *buffer;
                let length = socket.recv(&mut rest, 0)?;
                #[cfg(feature = "replay")]
                if let Some(record) = record {
                    record.push(buffer.get(..length).unwrap_or_default());
                }
                Ok(length)
            }
            #[cfg(feature = "replay")]
            Self::Replay(transcript) => transcript.receive(buffer),
        }
    }
}
