//! Network namespaces: one for a test, or several as hosts with links between them.

use std::{
    io::{Read, Write},
    net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream},
    sync::mpsc::{Sender, channel},
    time::Duration,
};

use nix::sched::{CloneFlags, unshare};

use crate::programs::run;

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
        self.inside(move || {
            let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).unwrap();
            std::thread::spawn(move || {
                for (mut stream, peer) in std::iter::from_fn(|| listener.accept().ok()) {
                    let _ = write!(stream, "{}", peer.ip().to_canonical());
                }
            });
        });
    }

    /// Connects from here and returns the source address that the server saw; `None` if nobody
    /// answers within `patience`.
    pub(crate) fn source_seen_by(&self, server: SocketAddr, patience: Duration) -> Option<IpAddr> {
        self.inside(move || {
            let mut stream = TcpStream::connect_timeout(&server, patience).ok()?;
            stream.set_read_timeout(Some(patience)).unwrap();
            let mut seen = String::new();
            stream.read_to_string(&mut seen).ok()?;
            seen.parse().ok()
        })
    }

    /// The same, of a server that must answer.
    #[track_caller]
    pub(crate) fn source_at(&self, server: SocketAddr) -> IpAddr {
        match self.source_seen_by(server, Duration::from_secs(10)) {
            Some(source) => source,
            None => panic!("no answer from {server}"),
        }
    }

    pub(crate) fn write(&self, path: &'static str, value: &'static str) {
        self.inside(move || std::fs::write(path, value).unwrap_or_else(|e| panic!("{path}: {e}")));
    }
}
