//! What hosts request of others: pages by HTTP, and echoes.

use std::{
    fs,
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpStream, UdpSocket},
};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};

use super::{Host, client::for_an_answer};

/// An answer by HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Its status: `200`.
    pub status: u16,
    /// Its headers, one per line, with names in lower case.
    pub headers: String,
    /// What comes after them.
    pub body: String,
}

impl Page {
    /// A header's value.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

impl Host {
    /// Requests a page from a server. Each call makes a new connection.
    pub fn get(&self, server: SocketAddr, path: &str) -> Result<Page> {
        let path = path.to_owned();
        let page = self.inside(move || fetch(server, &path))?;
        page.with_context(|| format!("{} asks {server} for a page", self.name))
    }
}

fn fetch(server: SocketAddr, path: &str) -> Result<Page> {
    let mut stream = TcpStream::connect_timeout(&server, for_an_answer())?;
    stream.set_read_timeout(Some(for_an_answer()))?;
    // With HTTP/1.0 the answer ends with the connection.
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let Some((head, body)) = answer.split_once("\r\n\r\n") else { bail!("not a page: {answer:?}") };
    let (first, headers) = head.split_once("\r\n").unwrap_or((head, ""));
    let status = first.split(' ').nth(1).unwrap_or_default();
    let status = status.parse().with_context(|| format!("not a status: {first:?}"))?;
    Ok(Page { status, headers: headers.replace("\r\n", "\n"), body: body.to_owned() })
}

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
    // Whose group may have such sockets, in this network namespace: by default no group's.
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
