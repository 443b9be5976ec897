//! What is at the other end of a socket.

use std::io;

/// The kernel; for tests, also with a record of what it says, or that record alone.
#[derive(Debug)]
pub(crate) enum Wire {
    Kernel(netlink_sys::Socket),
    #[cfg(feature = "replay")]
    Recorded(netlink_sys::Socket, crate::Transcript),
    #[cfg(feature = "replay")]
    Replay(crate::Transcript),
}

impl Wire {
    /// A kernel that cannot do it says so, and sends everything.
    pub(crate) fn filter_dumps(&mut self) {
        match self {
            Self::Kernel(socket) => _ = socket.set_netlink_get_strict_chk(true),
            #[cfg(feature = "replay")]
            Self::Recorded(socket, _) => _ = socket.set_netlink_get_strict_chk(true),
            #[cfg(feature = "replay")]
            Self::Replay(_) => {}
        }
    }

    /// Sends one datagram.
    pub(crate) fn send(&self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Kernel(socket) => socket.send(bytes, 0).map(drop),
            #[cfg(feature = "replay")]
            Self::Recorded(socket, _) => socket.send(bytes, 0).map(drop),
            #[cfg(feature = "replay")]
            Self::Replay(_) => Ok(()),
        }
    }

    /// Receives one datagram, as much of it as fits, and says how much that is.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Kernel(socket) => {
                let mut rest = buffer;
                socket.recv(&mut rest, 0)
            }
            #[cfg(feature = "replay")]
            Self::Recorded(socket, transcript) => {
                let mut rest = &mut *buffer;
                let length = socket.recv(&mut rest, 0)?;
                transcript.push(buffer.get(..length).unwrap_or_default());
                Ok(length)
            }
            #[cfg(feature = "replay")]
            Self::Replay(transcript) => transcript.receive(buffer),
        }
    }
}
