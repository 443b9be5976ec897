//! Servers: what a host answers.

use std::{
    io::{self, BufRead, BufReader, Write},
    net::{IpAddr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::fd::AsRawFd,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::Result;
use nix::sys::socket::{Backlog, SockProtocol, SockaddrStorage, bind, listen};

use super::{Host, client};

/// With this a client asks the server who it is.
pub(super) const WHO: &str = "who?\n";

/// With this it asks the server to close the connection.
pub(super) const GOODBYE: &str = "goodbye\n";

/// How fast the servers of a host answer.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Milliseconds before each answer over a connection.
    delay: AtomicU64,
    /// Held while they are stopped.
    stopped: Mutex<()>,
}

impl Pace {
    pub(super) fn set_delay(&self, delay: Duration) {
        self.delay.store(u64::try_from(delay.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(super) fn stop_for(&self, time: Duration) {
        let _stopped = self.lock();
        thread::sleep(time);
    }

    /// Waits until they run.
    fn until_running(&self) {
        drop(self.lock());
    }

    /// Waits until a question is answered.
    fn until_answer(&self) {
        thread::sleep(Duration::from_millis(self.delay.load(Ordering::Relaxed)));
        self.until_running();
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.stopped.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Host {
    /// Serves TCP, UDP, and SCTP if the kernel has it, on `port`: answers each client with this host's
    /// name and the peer's address, and echoes what else comes over a connection.
    pub fn serve(&self, port: u16) -> Result<()> {
        let udp = self.inside(move || UdpSocket::bind((Ipv6Addr::UNSPECIFIED, port)))??;
        let name = self.name.clone();
        thread::spawn(move || answer_datagrams(&udp, &name));
        self.serve_connections(self.inside(move || TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)))??);
        if client::has_sctp() {
            for address in [IpAddr::from(self.ipv4), self.ipv6.into()] {
                self.serve_connections(self.inside(move || listen_sctp((address, port).into()))??);
            }
        }
        Ok(())
    }

    fn serve_connections(&self, listener: TcpListener) {
        let (name, pace) = (self.name.clone(), Arc::clone(&self.pace));
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                pace.until_running();
                let (name, pace) = (name.clone(), Arc::clone(&pace));
                // The server ignores clients that have gone.
                thread::spawn(move || drop(converse(&stream, &name, &pace)));
            }
        });
    }

    /// Lets programs on this host reach a TCP service of the surrounding machine, such as an API server, at
    /// the service's own address: connections are accepted here and forwarded there.
    pub fn reach(&self, service: SocketAddr) -> Result<()> {
        if !service.ip().is_loopback() {
            self.run("ip", &["addr", "add", &service.ip().to_string(), "dev", "lo"])?;
        }
        let listener = self.inside(move || TcpListener::bind(service))??;
        thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                if let Ok(far) = TcpStream::connect_timeout(&service, client::for_an_answer()) {
                    hand_on(&near, &far);
                    hand_on(&far, &near);
                }
            }
        });
        Ok(())
    }
}

/// Listens at one address only: otherwise an association would tell the client all the others, which bypass
/// IPVS.
fn listen_sctp(address: SocketAddr) -> nix::Result<TcpListener> {
    let socket = client::socket(SockProtocol::Sctp, address)?;
    bind(socket.as_raw_fd(), &SockaddrStorage::from(address))?;
    listen(&socket, Backlog::MAXCONN)?;
    // From here on the calls are the same as for TCP.
    Ok(socket.into())
}

fn answer_datagrams(socket: &UdpSocket, name: &str) {
    let mut buffer = [0; 128];
    while let Ok((_, peer)) = socket.recv_from(&mut buffer) {
        // As with connections: the client may have gone.
        let _ = socket.send_to(greeting(name, peer).as_bytes(), peer);
    }
}

/// The client speaks first: what an SCTP server sends by itself may overtake the end of the handshake, on
/// another processor, and is discarded then.
fn converse(mut stream: &TcpStream, name: &str, pace: &Pace) -> io::Result<()> {
    let peer = stream.peer_addr()?;
    for line in BufReader::new(stream).lines() {
        let line = line? + "\n";
        pace.until_answer();
        match line {
            line if line == WHO => stream.write_all(greeting(name, peer).as_bytes())?,
            line if line == GOODBYE => break,
            line => stream.write_all(line.as_bytes())?,
        }
    }
    Ok(())
}

fn greeting(name: &str, peer: SocketAddr) -> String {
    format!("{name} {}\n", peer.ip().to_canonical())
}

/// Copies what `from` says to `to`, in a thread, until one of them ends.
fn hand_on(from: &TcpStream, to: &TcpStream) {
    if let (Ok(mut from), Ok(mut to)) = (from.try_clone(), to.try_clone()) {
        thread::spawn(move || {
            let _ = io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Write);
        });
    }
}
