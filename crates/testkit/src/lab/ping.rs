//! Echo requests.

use std::{
    fs,
    net::{IpAddr, SocketAddr, UdpSocket},
};

use anyhow::{Context, Result, ensure};
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};

use super::{Host, client::for_an_answer};

/// Types of ICMP messages: request and reply.
const ECHO_V4: (u8, u8) = (8, 0);
const ECHO_V6: (u8, u8) = (128, 129);

impl Host {
    /// Sends an echo request and waits for the reply.
    pub fn ping(&self, ip: IpAddr) -> Result<()> {
        self.inside(move || exchange(ip))?.with_context(|| format!("{} pings {ip}", self.name))
    }
}

/// The socket is one for echo requests alone: the kernel adds identifier and checksum, and hands over the
/// reply to this very request (`net/ipv4/ping.c`).
fn exchange(ip: IpAddr) -> Result<()> {
    // Whose group may have such sockets, in this network namespace: by default nobody's.
    fs::write("/proc/sys/net/ipv4/ping_group_range", "0 0")?;
    let (family, protocol, (request, reply)) = match ip {
        IpAddr::V4(_) => (AddressFamily::Inet, SockProtocol::Icmp, ECHO_V4),
        IpAddr::V6(_) => (AddressFamily::Inet6, SockProtocol::IcmpV6, ECHO_V6),
    };
    let socket = UdpSocket::from(socket(family, SockType::Datagram, SockFlag::SOCK_CLOEXEC, protocol)?);
    socket.set_read_timeout(Some(for_an_answer()))?;
    socket.connect(SocketAddr::new(ip, 0))?;
    socket.send(&[request, 0, 0, 0, 0, 0, 0, 1])?;
    let mut buffer = [0; 128];
    let length = socket.recv(&mut buffer)?;
    let kind = buffer.get(..length).and_then(|message| message.first());
    ensure!(kind == Some(&reply), "the answer to a ping was of type {kind:?}");
    Ok(())
}
