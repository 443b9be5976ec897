//! A small cluster of one node in network namespaces: the node, pods on it, and a client outside.
//!
//! ```text
//!  client ──────── node ──────── pod-1
//!  192.168.50.2    │   └──────── pod-2 …
//!                  kube-ipvs0, IPVS, nf_tables
//! ```
//!
//! Every pod has a link of its own to the node, so that all its traffic is routed. Addresses exist in
//! both families. Everything stays in namespaces that the lab made, and goes when it is dropped.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket},
    process::{Command, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use nix::{
    libc,
    sched::{CloneFlags, setns},
    sys::socket::{setsockopt, sockopt},
};

/// How long a client waits for an answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// The pods' range: what `--cluster-cidr` is to be set to.
pub const CLUSTER_CIDR: &str = "10.244.0.0/16,fd00:10:244::/48";

static LABS: AtomicUsize = AtomicUsize::new(0);

/// A node, its pods, and a client that is not part of the cluster.
#[derive(Debug)]
pub struct Lab {
    /// The node.
    pub node: Host,
    /// The client.
    pub client: Host,
    /// The pods.
    pub pods: Vec<Host>,
}

/// One network namespace with an address in each family.
#[derive(Debug)]
pub struct Host {
    /// What it answers to: `node`, `client`, `pod-1`.
    pub name: String,
    /// Its IPv4 address.
    pub ipv4: Ipv4Addr,
    /// Its IPv6 address.
    pub ipv6: Ipv6Addr,
    namespace: String,
}

/// What a pod said to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The name of the pod that answered.
    pub from: String,
    /// The client's address as the pod saw it.
    pub seen_as: IpAddr,
}

impl Lab {
    /// Makes the namespaces and links, with `pods` pods, each answering on `port` by TCP and UDP.
    pub fn new(pods: u8, port: u16) -> Result<Self> {
        let lab = LABS.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("ki{}-{lab}", std::process::id());
        let node = Host::new(&prefix, "node", [192, 168, 50, 1], "fd00:50::1")?;
        let client = Host::new(&prefix, "client", [192, 168, 50, 2], "fd00:50::2")?;
        node.run("sysctl", &["-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"])?;
        connect(&node, "eth0", &client, "eth0", ("192.168.50.1/24", "fd00:50::1/64"))?;
        client.default_route("192.168.50.1", "fd00:50::1")?;
        let mut lab = Self { node, client, pods: Vec::new() };
        for number in 1..=pods {
            lab.add_pod(&prefix, number, port)?;
        }
        Ok(lab)
    }

    fn add_pod(&mut self, prefix: &str, number: u8, port: u16) -> Result<()> {
        let ipv6 = format!("fd00:10:244:{number}::2");
        let pod = Host::new(prefix, &format!("pod-{number}"), [10, 244, number, 2], &ipv6)?;
        let gateway = (format!("10.244.{number}.1"), format!("fd00:10:244:{number}::1"));
        let near = (format!("{}/24", gateway.0), format!("{}/64", gateway.1));
        connect(&self.node, &format!("veth{number}"), &pod, "eth0", (&near.0, &near.1))?;
        pod.default_route(&gateway.0, &gateway.1)?;
        pod.serve(port)?;
        self.pods.push(pod);
        Ok(())
    }
}

/// Links two hosts; the second gets its own address, the first what is given.
fn connect(a: &Host, a_device: &str, b: &Host, b_device: &str, a_addresses: (&str, &str)) -> Result<()> {
    a.run("ip", &["link", "add", a_device, "type", "veth", "peer", b_device, "netns", &b.namespace])?;
    let b_addresses = (format!("{}/24", b.ipv4), format!("{}/64", b.ipv6));
    for (host, device, (ipv4, ipv6)) in
        [(a, a_device, a_addresses), (b, b_device, (&b_addresses.0, &b_addresses.1))]
    {
        host.run("ip", &["addr", "add", ipv4, "dev", device])?;
        // Without duplicate address detection the address can be used at once.
        host.run("ip", &["-6", "addr", "add", ipv6, "dev", device, "nodad"])?;
        host.run("ip", &["link", "set", device, "up"])?;
    }
    Ok(())
}

impl Host {
    fn new(prefix: &str, name: &str, ipv4: [u8; 4], ipv6: &str) -> Result<Self> {
        let host = Self {
            name: name.to_owned(),
            ipv4: ipv4.into(),
            ipv6: ipv6.parse()?,
            namespace: format!("{prefix}-{name}"),
        };
        run(Command::new("ip").args(["netns", "add", &host.namespace]))?;
        host.run("ip", &["link", "set", "lo", "up"])?;
        Ok(host)
    }

    fn default_route(&self, ipv4: &str, ipv6: &str) -> Result<()> {
        self.run("ip", &["route", "add", "default", "via", ipv4])?;
        self.run("ip", &["-6", "route", "add", "default", "via", ipv6])?;
        Ok(())
    }

    /// Its address of the same family as `like`.
    pub fn address(&self, like: IpAddr) -> IpAddr {
        match like {
            IpAddr::V4(_) => self.ipv4.into(),
            IpAddr::V6(_) => self.ipv6.into(),
        }
    }

    /// A command that runs on this host.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace, program]);
        command
    }

    /// Runs a program on this host and returns what it printed; an exit code other than 0 is an error
    /// that holds what it complained of.
    pub fn run(&self, program: &str, arguments: &[&str]) -> Result<String> {
        run(self.command(program).args(arguments))
    }

    /// Calls `work` in a thread that lives on this host.
    pub fn inside<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
        let namespace = File::open(format!("/run/netns/{}", self.namespace))?;
        let thread = thread::spawn(move || -> Result<T> {
            setns(namespace, CloneFlags::CLONE_NEWNET)?;
            Ok(work())
        });
        thread.join().map_err(|_| anyhow::anyhow!("a thread on {} panicked", self.name))?
    }

    /// Asks a TCP service who it is. Each call is a connection of its own.
    pub fn ask(&self, service: SocketAddr) -> Result<Answer> {
        self.inside(move || -> Result<Answer> {
            let (answer, stream) = open(service)?;
            // Closed by RST, the connection leaves the IPVS table after 10 s. By FIN it would stay in
            // TIME_WAIT for two minutes (tcp_timeouts in net/netfilter/ipvs/ip_vs_proto_tcp.c).
            setsockopt(stream.get_ref(), sockopt::Linger, &libc::linger { l_onoff: 1, l_linger: 0 })?;
            Ok(answer)
        })?
        .with_context(|| format!("{} asks {service} by TCP", self.name))
    }

    /// Opens a TCP connection that stays.
    pub fn connect(&self, service: SocketAddr) -> Result<Connection> {
        let (answer, stream) = self
            .inside(move || open(service))?
            .with_context(|| format!("{} connects to {service}", self.name))?;
        Ok(Connection { answer, stream })
    }

    /// Asks a UDP service who it is, from a port of its own.
    pub fn ask_udp(&self, service: SocketAddr) -> Result<Answer> {
        self.inside(move || -> Result<Answer> {
            let unspecified: IpAddr = match service {
                SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
                SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
            };
            let socket = UdpSocket::bind((unspecified, 0))?;
            socket.set_read_timeout(Some(PATIENCE))?;
            socket.connect(service)?;
            socket.send(b"who?")?;
            let mut buffer = [0; 128];
            let length = socket.recv(&mut buffer)?;
            parse(std::str::from_utf8(buffer.get(..length).unwrap_or_default())?)
        })?
        .with_context(|| format!("{} asks {service} by UDP", self.name))
    }

    /// Lets programs on this host reach a TCP service of the machine around it, an API server say, at
    /// the service's own address: connections are taken here and handed on there.
    pub fn reach(&self, service: SocketAddr) -> Result<()> {
        if !service.ip().is_loopback() {
            self.run("ip", &["addr", "add", &service.ip().to_string(), "dev", "lo"])?;
        }
        let listener = self.inside(move || TcpListener::bind(service))??;
        thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                if let Ok(far) = TcpStream::connect_timeout(&service, PATIENCE) {
                    hand_on(&near, &far);
                    hand_on(&far, &near);
                }
            }
        });
        Ok(())
    }

    /// Answers every TCP connection and UDP datagram on `port` with this host's name and the peer's
    /// address; then echoes what the TCP client sends.
    fn serve(&self, port: u16) -> Result<()> {
        let name = self.name.clone();
        let (tcp, udp) = self.inside(move || -> io::Result<_> {
            Ok((
                TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))?,
                UdpSocket::bind((Ipv6Addr::UNSPECIFIED, port))?,
            ))
        })??;
        let tcp_name = name.clone();
        thread::spawn(move || {
            for stream in tcp.incoming().map_while(Result::ok) {
                let name = tcp_name.clone();
                thread::spawn(move || greet_and_echo(stream, &name));
            }
        });
        thread::spawn(move || {
            let mut buffer = [0; 128];
            while let Ok((_, peer)) = udp.recv_from(&mut buffer) {
                // A client that has gone is no concern of the server.
                let _ = udp.send_to(greeting(&name, peer).as_bytes(), peer);
            }
        });
        Ok(())
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // Best effort: the guest that the tests run in is thrown away anyhow.
        let _ = run(Command::new("ip").args(["netns", "delete", &self.namespace]));
    }
}

/// A TCP connection to a pod.
#[derive(Debug)]
pub struct Connection {
    /// The pod at the other end.
    pub answer: Answer,
    stream: BufReader<TcpStream>,
}

impl Connection {
    /// Sends a line and expects it back.
    pub fn still_works(&mut self) -> Result<()> {
        self.stream.get_mut().write_all(b"are you there?\n")?;
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        ensure!(line == "are you there?\n", "the echo was {line:?}");
        Ok(())
    }
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

fn open(service: SocketAddr) -> Result<(Answer, BufReader<TcpStream>)> {
    let stream = TcpStream::connect_timeout(&service, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    stream.read_line(&mut line)?;
    Ok((parse(line.trim_end())?, stream))
}

fn greet_and_echo(mut stream: TcpStream, name: &str) -> Option<()> {
    let peer = stream.peer_addr().ok()?;
    stream.write_all(format!("{}\n", greeting(name, peer)).as_bytes()).ok()?;
    let mut buffer = [0; 512];
    loop {
        let length = stream.read(&mut buffer).ok().filter(|length| *length > 0)?;
        stream.write_all(buffer.get(..length)?).ok()?;
    }
}

fn greeting(name: &str, peer: SocketAddr) -> String {
    format!("{name} {}", peer.ip().to_canonical())
}

fn parse(line: &str) -> Result<Answer> {
    let (from, seen_as) = line.split_once(' ').with_context(|| format!("not a greeting: {line:?}"))?;
    Ok(Answer { from: from.to_owned(), seen_as: seen_as.parse()? })
}

fn run(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot run {command:?}"))?;
    ensure!(
        output.status.success(),
        "{command:?}: {}: {}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    Ok(String::from_utf8(output.stdout)?)
}
