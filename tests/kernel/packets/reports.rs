//! What the kernel's netfilter reports of packets, on a netlink socket.

use std::os::fd::{AsRawFd, OwnedFd};

use netlink::Batch;
use nix::{
    errno::Errno,
    sys::socket::{
        AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, send, socket,
    },
};

/// A socket that receives reports.
pub(crate) struct PacketReports(OwnedFd);

impl PacketReports {
    /// Opens it in this thread's namespace, for these multicast groups, a bit each.
    pub(crate) fn open(groups: u32) -> Self {
        let protocol = SockProtocol::NetlinkNetFilter;
        let socket = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol).unwrap();
        bind(socket.as_raw_fd(), &NetlinkAddr::new(0, groups)).unwrap();
        Self(socket)
    }

    pub(crate) fn send(&self, batch: &Batch) {
        send(self.0.as_raw_fd(), batch.as_bytes(), MsgFlags::empty()).unwrap();
    }

    /// What `read` finds in the messages that have come since this was asked last: type, and what comes after the header.
    pub(crate) fn read<T>(&self, read: impl Fn((u16, &[u8])) -> Option<T>) -> Vec<T> {
        let (mut found, mut buffer) = (Vec::new(), vec![0; 64 << 10]);
        loop {
            match recv(self.0.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT) {
                Ok(length) => found.extend(messages(&buffer[..length]).filter_map(&read)),
                Err(Errno::EAGAIN) => return found,
                Err(errno) => panic!("reports of packets: {errno}"),
            }
        }
    }
}

/// The messages in a datagram: type, and what comes after the header.
fn messages(mut datagram: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let header = datagram.get(..16)?;
        let length = u32::from_ne_bytes(header[..4].try_into().unwrap()) as usize;
        let kind = u16::from_ne_bytes([header[4], header[5]]);
        let payload = &datagram[16..length];
        datagram = datagram.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, payload))
    })
}
