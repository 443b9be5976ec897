//! Network namespaces: one for a test, or several as hosts with links between them.

use std::{
    io::{ErrorKind, Read, Write},
    net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::fd::AsRawFd,
    sync::mpsc::{Sender, channel},
    time::Duration,
};

use nix::{
    errno::Errno,
    sched::{CloneFlags, unshare},
    sys::{
        socket::{
            AddressFamily, SockFlag, SockProtocol, SockType, SockaddrStorage, bind, connect, setsockopt,
            socket, sockopt,
        },
        time::{TimeVal, TimeValLike},
    },
};

use crate::support::programs::run;

/// Runs `test` on a thread in a network namespace of its own, which goes away with it.
pub(crate) fn in_fresh_namespace<T: Send>(test: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace needs root");
            test()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// The outcome of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The server said this.
    Heard(String),
    /// Refused: an answer that the port is unreachable, or a reset.
    Refused,
    /// There was no answer.
    Silence,
}

/// How long to wait for an answer that is not expected.
pub(crate) const BRIEFLY: Duration = Duration::from_millis(400);
/// How long to wait for an expected answer.
pub(crate) const PATIENTLY: Duration = Duration::from_secs(10);

/// A network namespace that lives as long as this value.
pub(crate) struct Host {
    jobs: Sender<Box<dyn FnOnce() + Send>>,
    thread: String,
}

impl Host {
    pub(crate) fn new() -> Self {
        let (jobs, work) = channel::<Box<dyn FnOnce() + Send>>();
        std::thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace needs root");
            for job in work {
                job();
            }
        });
        let mut host = Self { jobs, thread: String::new() };
        host.thread = host.inside(|| {
            let path = std::fs::read_link("/proc/thread-self").unwrap();
            path.file_name().unwrap().to_str().unwrap().to_owned()
        });
        // No address stays tentative: the first neighbour solicitation must be answered.
        host.write("/proc/sys/net/ipv6/conf/default/accept_dad", "0");
        host.ip(&["link set lo up"]);
        host
    }

    /// Runs something inside.
    pub(crate) fn inside<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        let (result, answer) = channel();
        self.jobs.send(Box::new(move || drop(result.send(job())))).unwrap();
        answer.recv().expect("the job panicked")
    }

    pub(crate) fn ip(&self, commands: &[&str]) {
        for command in commands {
            let command = format!("ip {command}");
            self.inside(move || run(&command));
        }
    }

    /// Connects `self` to `router` by a pair of devices: `device` there, eth0 here. The router has
    /// address 1 of each /24 or /64 network, `self` address 2 and a default route.
    pub(crate) fn plug_into(&self, router: &Host, device: &str, networks: &[&str]) {
        router.ip(&[&format!("link add {device} type veth peer name eth0 netns {}", self.thread)]);
        for network in networks {
            let length = if network.contains(':') { 64 } else { 24 };
            router.ip(&[&format!("address add {network}1/{length} dev {device}")]);
            self.ip(&[&format!("address add {network}2/{length} dev eth0")]);
        }
        router.ip(&[&format!("link set {device} up")]);
        self.ip(&["link set eth0 up"]);
        for network in networks {
            self.ip(&[&format!("route add default via {network}1")]);
        }
    }

    /// Answers every TCP connection to `port` with the client's address as seen from here.
    pub(crate) fn echo_peers(&self, port: u16) {
        self.serve(port, |client| client.to_string());
    }

    /// Answers every TCP connection to `port`.
    pub(crate) fn serve(&self, port: u16, answer: impl Fn(IpAddr) -> String + Send + 'static) {
        self.inside(move || {
            let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).unwrap();
            std::thread::spawn(move || {
                for (mut stream, peer) in std::iter::from_fn(|| listener.accept().ok()) {
                    let _ = write!(stream, "{}", answer(peer.ip().to_canonical()));
                }
            });
        });
    }

    /// Connects from here by TCP and listens to what the server says.
    pub(crate) fn connect(&self, server: SocketAddr, patience: Duration) -> Outcome {
        self.inside(move || {
            let mut stream = match TcpStream::connect_timeout(&server, patience) {
                Ok(stream) => stream,
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => return Outcome::Refused,
                Err(_) => return Outcome::Silence,
            };
            stream.set_read_timeout(Some(patience)).unwrap();
            listen(&mut stream)
        })
    }

    /// The same from a given address of this host.
    pub(crate) fn connect_from(&self, source: IpAddr, server: SocketAddr, patience: Duration) -> Outcome {
        self.inside(move || {
            let family = if server.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
            let socket = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
            bind(socket.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(source, 0))).unwrap();
            let patience = TimeVal::microseconds(patience.as_micros().try_into().unwrap());
            setsockopt(&socket, sockopt::SendTimeout, &patience).unwrap();
            setsockopt(&socket, sockopt::ReceiveTimeout, &patience).unwrap();
            match connect(socket.as_raw_fd(), &SockaddrStorage::from(server)) {
                Ok(()) => listen(&mut TcpStream::from(socket)),
                Err(Errno::ECONNREFUSED) => Outcome::Refused,
                Err(_) => Outcome::Silence,
            }
        })
    }

    /// The same with a server that answers somehow.
    pub(crate) fn answer_of(&self, server: SocketAddr) -> Outcome {
        self.connect(server, PATIENTLY)
    }

    /// Connects from here and returns the source address that the server saw; `None` if no server
    /// answers within `patience`.
    pub(crate) fn source_seen_by(&self, server: SocketAddr, patience: Duration) -> Option<IpAddr> {
        match self.connect(server, patience) {
            Outcome::Heard(source) => source.parse().ok(),
            Outcome::Refused | Outcome::Silence => None,
        }
    }

    /// The same, of a server that must answer.
    #[track_caller]
    pub(crate) fn source_at(&self, server: SocketAddr) -> IpAddr {
        match self.source_seen_by(server, PATIENTLY) {
            Some(source) => source,
            None => panic!("no answer from {server}"),
        }
    }

    /// Sends a datagram from here and listens for one that comes back.
    pub(crate) fn send(&self, server: SocketAddr) -> Outcome {
        self.inside(move || {
            let any: IpAddr = if server.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
            let socket = UdpSocket::bind((any, 0)).unwrap();
            socket.connect(server).unwrap();
            exchange(&socket, b"?")
        })
    }

    /// Asks for an echo; the first byte of the answer, its type, is 0 (ICMP) or 129 (ICMPv6).
    pub(crate) fn ping(&self, ip: IpAddr) -> Outcome {
        // Whose group may have such sockets (`net/ipv4/ping.c`): by default no group's.
        self.write("/proc/sys/net/ipv4/ping_group_range", "0 0");
        self.inside(move || {
            let (family, protocol, echo_request) = match ip {
                IpAddr::V4(_) => (AddressFamily::Inet, SockProtocol::Icmp, 8),
                IpAddr::V6(_) => (AddressFamily::Inet6, SockProtocol::IcmpV6, 128),
            };
            let socket = socket(family, SockType::Datagram, SockFlag::SOCK_CLOEXEC, protocol).unwrap();
            let socket = UdpSocket::from(socket);
            socket.connect(SocketAddr::new(ip, 0)).unwrap();
            exchange(&socket, &[echo_request, 0, 0, 0, 0, 0, 0, 1])
        })
    }

    pub(crate) fn write(&self, path: &'static str, value: &'static str) {
        self.inside(move || std::fs::write(path, value).unwrap_or_else(|e| panic!("{path}: {e}")));
    }
}

fn listen(stream: &mut TcpStream) -> Outcome {
    let mut heard = String::new();
    stream.read_to_string(&mut heard).map_or(Outcome::Silence, |_| Outcome::Heard(heard))
}

fn exchange(socket: &UdpSocket, datagram: &[u8]) -> Outcome {
    let mut heard = [0; 64];
    socket.set_read_timeout(Some(PATIENTLY)).unwrap();
    socket.send(datagram).unwrap();
    match socket.recv(&mut heard) {
        Ok(length) => Outcome::Heard(heard[..length].escape_ascii().to_string()),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Outcome::Refused,
        Err(_) => Outcome::Silence,
    }
}
