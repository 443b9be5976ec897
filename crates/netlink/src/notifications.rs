//! Notifications: messages that the kernel sends by itself.

use std::io;

use netlink_sys::{AsyncSocket, AsyncSocketExt, SocketAddr, TokioSocket};
use nix::{
    errno::Errno,
    sys::socket::{setsockopt, sockopt},
};

use crate::{Error, Protocol, Reply, reply::replies, socket::RECEIVE_BUFFER};

/// The largest datagram of notifications: the kernel puts at most two pages into one (`NLMSG_GOODSIZE`).
const DATAGRAM: usize = 32 << 10;

/// The most datagrams that are passed on before the caller has its turn, so that a flood cannot hold it back.
const AT_ONCE: usize = 1024;

/// A subscription to multicast groups of a netlink protocol.
///
/// Notifications wait in the socket until they are read; thousands of them cost a few system calls.
pub struct Notifications {
    socket: TokioSocket,
    buffer: Vec<u8>,
}

impl Notifications {
    /// Subscribes in the calling thread's network namespace. Changes are reported from here on. Groups
    /// have the numbers 1 to 31.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime with I/O enabled.
    pub fn subscribe(protocol: Protocol, groups: &[u32]) -> Result<Self, Error> {
        let cannot = |source| Error::Open { operation: "subscribe with", protocol: protocol.name(), source };
        let bits = groups.iter().fold(0, |bits, group| bits | 1u32.wrapping_shl(group.wrapping_sub(1)));
        let mut socket = TokioSocket::new(protocol.number()).map_err(cannot)?;
        // Forcing needs CAP_NET_ADMIN. Without it more is lost in a flood, which the caller learns.
        let _ = setsockopt(socket.socket_ref(), sockopt::RcvBufForce, &RECEIVE_BUFFER);
        socket.socket_mut().bind(&SocketAddr::new(0, bits)).map_err(cannot)?;
        Ok(Self { socket, buffer: Vec::with_capacity(DATAGRAM) })
    }

    /// Waits for notifications, and passes on those that have come. Safe to cancel: none is forgotten.
    ///
    /// [`Error::StateUnknown`]: the queue was full (`ENOBUFS`) and some are lost, but changes from now on
    /// will be reported.
    pub async fn receive(&mut self, mut take: impl FnMut(&Reply<'_>)) -> Result<(), Error> {
        self.buffer.clear();
        let mut received = self.socket.recv(&mut self.buffer).await;
        let (mut datagrams, mut lost) = (0, false);
        loop {
            match received {
                Ok(()) => each_notification(&self.buffer, &mut take),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Until the queue has been emptied once, the kernel adds nothing to it and does not say so
                // again (`NETLINK_S_CONGESTED` in net/netlink/af_netlink.c).
                Err(error) if error.raw_os_error() == Some(Errno::ENOBUFS as i32) => lost = true,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return if lost { Err(Error::StateUnknown) } else { Ok(()) };
                }
                Err(error) => return Err(Error::Receive(error)),
            }
            datagrams += 1;
            if datagrams >= AT_ONCE && !lost {
                return Ok(());
            }
            self.buffer.clear();
            received = self.socket.socket_ref().recv(&mut self.buffer, 0).map(drop);
        }
    }
}

/// Passes on the messages of a datagram. What cannot be read ends it.
pub fn each_notification(datagram: &[u8], mut take: impl FnMut(&Reply<'_>)) {
    replies(datagram).map_while(Result::ok).for_each(|message| take(&message));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, port: u32, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(16 + payload.len()).unwrap();
        let mut bytes =
            [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &[0; 6], &port.to_ne_bytes(), payload].concat();
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    #[test]
    fn each_message_of_a_datagram_is_passed_on_up_to_one_that_is_cut_short() {
        let mut datagram = [message(1, 7, b"abcde"), message(2, 0, b"")].concat();
        datagram.extend(&message(3, 0, b"lost")[..18]);
        let mut taken = Vec::new();
        each_notification(&datagram, |it| taken.push((it.kind, it.port, it.payload.to_vec())));
        assert_eq!(taken, [(1, 7, b"abcde".to_vec()), (2, 0, Vec::new())]);
    }
}
