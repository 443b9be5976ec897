//! Clients: how a host asks a server.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    iter,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpStream, UdpSocket},
    os::fd::{AsRawFd, OwnedFd},
    sync::atomic::{AtomicU16, Ordering},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use ipvs::{Protocol, ServiceAddress};
use nix::{
    errno::Errno,
    libc,
    sys::{
        socket::{
            AddressFamily, SockFlag, SockProtocol, SockType, SockaddrStorage, bind, connect, getsockopt,
            setsockopt, sockopt,
        },
        time::{TimeVal, TimeValLike},
    },
};

use super::{
    Host,
    server::{GOODBYE, WHO},
};
use crate::patience::patience;

/// How long a client waits for an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// The same, where the lab is.
pub(super) fn for_an_answer() -> Duration {
    patience(PATIENCE)
}

/// A port for a client. Linux chooses the same one for connections to different addresses. If two of them lead to one pod
/// through IPVS, the answers of both get the source address of one (`ip_vs_conn_out_get` in
/// net/netfilter/ipvs/ip_vs_conn.c knows them by the pod's and the client's address and port), and the other client waits.
fn next_port() -> u16 {
    const FIRST: u16 = 20_000;
    static TAKEN: AtomicU16 = AtomicU16::new(0);
    FIRST + TAKEN.fetch_add(1, Ordering::Relaxed) % (30_000 - FIRST)
}

/// How many ports are tried before a connection fails because none is free.
const PORTS_TRIED: usize = 100;

/// A line that the server gives back.
const ECHO: &str = "are you there?\n";

/// How a client asks.
#[derive(Clone, Copy, Debug)]
pub struct Manner {
    /// Its source address and port; the kernel chooses what is unspecified. `None`: any address, and a port that no client
    /// had before.
    pub source: Option<SocketAddr>,
    /// How long it waits for an answer.
    pub patience: Duration,
}

impl Default for Manner {
    fn default() -> Self {
        Self { source: None, patience: for_an_answer() }
    }
}

/// What a pod said to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The name of the pod that answered.
    pub from: String,
    /// The client's address as the pod saw it.
    pub seen_as: IpAddr,
}

impl Host {
    /// Asks a TCP service who it is. Each call makes a new connection.
    pub fn ask(&self, service: SocketAddr) -> Result<Answer> {
        self.connect(service)?.reset()
    }

    /// Asks a UDP service who it is, from a new port.
    pub fn ask_udp(&self, service: SocketAddr) -> Result<Answer> {
        self.flow(service)?.ask()
    }

    /// Asks a service who it is, by its protocol.
    pub fn ask_at(&self, service: ServiceAddress) -> Result<Answer> {
        self.ask_in(Manner::default(), service)
    }

    /// Asks a service who it is, with these settings.
    pub fn ask_in(&self, manner: Manner, service: ServiceAddress) -> Result<Answer> {
        let address = SocketAddr::new(service.ip, service.port);
        match service.protocol {
            Protocol::Tcp => self.open(SockProtocol::Tcp, manner, address)?.reset(),
            Protocol::Udp => self.flow_in(manner, address)?.ask(),
            Protocol::Sctp => self.associate_in(manner, address)?.reset(),
            other => bail!("no client speaks {other}"),
        }
    }

    /// Opens a TCP connection that stays.
    pub fn connect(&self, service: SocketAddr) -> Result<Connection> {
        self.open(SockProtocol::Tcp, Manner::default(), service)
    }

    /// The same from an address and port of this host; port 0 is any.
    pub fn connect_from(&self, source: SocketAddr, service: SocketAddr) -> Result<Connection> {
        self.connect_in(Manner { source: Some(source), ..Manner::default() }, service)
    }

    /// Opens a TCP connection with these settings. The time limit for the connection also applies to each
    /// later answer.
    pub fn connect_in(&self, manner: Manner, service: SocketAddr) -> Result<Connection> {
        self.open(SockProtocol::Tcp, manner, service)
    }

    /// Opens an SCTP association that stays, from this host's own address: with several addresses an
    /// association could bypass IPVS.
    pub fn associate(&self, service: SocketAddr) -> Result<Connection> {
        self.associate_in(Manner::default(), service)
    }

    fn associate_in(&self, manner: Manner, service: SocketAddr) -> Result<Connection> {
        let mut source = manner.source.unwrap_or_else(|| any(service));
        if source.ip().is_unspecified() {
            source.set_ip(self.address(service.ip()));
        }
        self.open(SockProtocol::Sctp, Manner { source: Some(source), ..manner }, service)
    }

    fn open(&self, protocol: SockProtocol, manner: Manner, service: SocketAddr) -> Result<Connection> {
        self.inside(move || Connection::open(protocol, manner, service))?
            .with_context(|| format!("{} connects to {service} by {protocol:?}", self.name))
    }

    /// Opens a UDP socket that keeps asking from one port.
    pub fn flow(&self, service: SocketAddr) -> Result<Flow> {
        self.flow_in(Manner::default(), service)
    }

    fn flow_in(&self, manner: Manner, service: SocketAddr) -> Result<Flow> {
        let socket = self.inside(move || -> Result<UdpSocket> {
            let socket = UdpSocket::bind(manner.source.unwrap_or_else(|| any(service)))?;
            socket.set_read_timeout(Some(manner.patience))?;
            socket.connect(service)?;
            Ok(socket)
        })??;
        Ok(Flow { socket, what: format!("{} asks {service} by UDP", self.name) })
    }
}

/// A TCP connection, or an SCTP association, to a pod. Dropped, it is closed.
#[derive(Debug)]
pub struct Connection {
    /// The pod at the other end.
    pub answer: Answer,
    stream: BufReader<TcpStream>,
}

impl Connection {
    /// Opens it in this thread's namespace.
    pub(super) fn open(protocol: SockProtocol, manner: Manner, service: SocketAddr) -> Result<Self> {
        let socket = match manner.source {
            Some(source) => connected(protocol, source, manner.patience, service)?,
            None => {
                let mut ports = iter::repeat_with(next_port).take(PORTS_TRIED).map(|port| {
                    connected(protocol, SocketAddr::new(any(service).ip(), port), manner.patience, service)
                });
                // All ports may have had their turn within the minute that one is in TIME_WAIT.
                let in_use = |error: &anyhow::Error| error.downcast_ref() == Some(&Errno::EADDRNOTAVAIL);
                let used = ports.find(|result| !result.as_ref().is_err_and(in_use));
                used.unwrap_or(Err(Errno::EADDRNOTAVAIL.into()))?
            }
        };
        // The calls for TCP also work for SCTP, as long as there is one stream.
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(manner.patience))?;
        let mut stream = BufReader::new(stream);
        let answer = parse(&exchange(&mut stream, WHO)?)?;
        Ok(Self { answer, stream })
    }

    /// Sends a line and expects it back.
    pub fn still_works(&mut self) -> Result<()> {
        self.ask_for_echo()?;
        self.expect_echo()
    }

    /// Sends a line without waiting for the answer, so that other connections can send too.
    pub fn ask_for_echo(&mut self) -> Result<()> {
        Ok(self.stream.get_mut().write_all(ECHO.as_bytes())?)
    }

    /// Receives what [`Connection::ask_for_echo`] sent.
    pub fn expect_echo(&mut self) -> Result<()> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        ensure!(line == ECHO, "the echo was {line:?}");
        Ok(())
    }

    /// Sends a line of this length and expects it back.
    pub fn echoes(&mut self, bytes: usize) -> Result<()> {
        let line = "x".repeat(bytes) + "\n";
        let answer = exchange(&mut self.stream, &line)?;
        ensure!(answer == line, "of {bytes} bytes {} came back", answer.len());
        Ok(())
    }

    /// Breaks the connection off, by RST or ABORT, and returns what the pod had said. The connection
    /// leaves the IPVS table after 10 s; after a close by FIN it would stay in TIME_WAIT for two minutes
    /// (`tcp_timeouts` in net/netfilter/ipvs/ip_vs_proto_tcp.c).
    pub fn reset(self) -> Result<Answer> {
        setsockopt(self.stream.get_ref(), sockopt::Linger, &libc::linger { l_onoff: 1, l_linger: 0 })?;
        Ok(self.answer)
    }

    /// Closes the connection, and waits until the server has closed its end.
    pub fn close(mut self) -> Result<()> {
        self.stream.get_mut().shutdown(Shutdown::Write).context("closing")?;
        self.stream.read_to_end(&mut Vec::new()).context("waiting for the other end to close")?;
        Ok(())
    }

    /// Lets the server close the connection; this end stays open. When it is dropped it is the server
    /// that waits in TIME_WAIT, and the client's port can be used again at once.
    pub fn server_closes(&mut self) -> Result<()> {
        self.stream.get_mut().write_all(GOODBYE.as_bytes())?;
        let mut rest = String::new();
        self.stream.read_to_string(&mut rest)?;
        ensure!(rest.is_empty(), "after the goodbye came {rest:?}");
        Ok(())
    }
}

fn connected(
    protocol: SockProtocol,
    source: SocketAddr,
    patience: Duration,
    service: SocketAddr,
) -> Result<OwnedFd> {
    let socket = socket(protocol, service)?;
    // Bounds the wait for the connection too (`inet_stream_connect` in net/ipv4/af_inet.c).
    let patience = TimeVal::milliseconds(patience.as_millis().try_into()?);
    setsockopt(&socket, sockopt::SendTimeout, &patience)?;
    bind(socket.as_raw_fd(), &SockaddrStorage::from(source))?;
    connect(socket.as_raw_fd(), &SockaddrStorage::from(service)).map_err(|error| cause(&socket, error))?;
    Ok(socket)
}

/// A UDP socket that keeps its port: to IPVS and conntrack, all it sends is one flow.
#[derive(Debug)]
pub struct Flow {
    socket: UdpSocket,
    what: String,
}

impl Flow {
    /// Sends one datagram and waits for the answer.
    pub fn ask(&self) -> Result<Answer> {
        self.send(WHO.as_bytes()).with_context(|| self.what.clone())
    }

    /// The same with a datagram of this length.
    pub fn ask_with(&self, bytes: usize) -> Result<Answer> {
        self.send(&vec![b'x'; bytes]).with_context(|| self.what.clone())
    }

    fn send(&self, datagram: &[u8]) -> Result<Answer> {
        match self.socket.send(datagram) {
            // A rule dropped it on its way out. An ICMP message with the reason would be received next.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
            sent => drop(sent?),
        }
        let mut buffer = [0; 128];
        let length = self.socket.recv(&mut buffer)?;
        parse(std::str::from_utf8(buffer.get(..length).unwrap_or_default())?)
    }
}

/// Any address and port of the family of this one.
pub(super) fn any(like: SocketAddr) -> SocketAddr {
    let unspecified: IpAddr = match like {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    SocketAddr::new(unspecified, 0)
}

/// Whether the kernel has SCTP.
pub(super) fn has_sctp() -> bool {
    socket(SockProtocol::Sctp, SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0)).is_ok()
}

/// A socket for connections to or from an address of this family.
pub(super) fn socket(protocol: SockProtocol, address: SocketAddr) -> nix::Result<OwnedFd> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::Inet,
        SocketAddr::V6(_) => AddressFamily::Inet6,
    };
    let socket = nix::sys::socket::socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, protocol)?;
    setsockopt(&socket, sockopt::ReuseAddr, &true)?;
    Ok(socket)
}

/// Why a connection was not made in time, if the kernel knows the reason: SCTP, and TCP as long as it tries, only
/// record an unreachable port (`sk_err_soft`, in `sctp_v4_err` and `tcp_v4_err`).
fn cause(socket: &OwnedFd, error: Errno) -> Errno {
    match (error, getsockopt(socket, sockopt::SocketError)) {
        (Errno::EINPROGRESS, Ok(noted)) if noted != 0 => Errno::from_raw(noted),
        _ => error,
    }
}

/// Sends a line and reads one.
fn exchange(stream: &mut BufReader<TcpStream>, line: &str) -> Result<String> {
    stream.get_mut().write_all(line.as_bytes())?;
    let mut answer = String::new();
    stream.read_line(&mut answer)?;
    Ok(answer)
}

pub(super) fn parse(line: &str) -> Result<Answer> {
    let (from, seen_as) =
        line.trim_end().split_once(' ').with_context(|| format!("not a greeting: {line:?}"))?;
    Ok(Answer { from: from.to_owned(), seen_as: seen_as.parse()? })
}
