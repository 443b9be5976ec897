//! One network namespace.

use std::{
    fs::File,
    io::Write,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    process::{Command, Stdio},
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use nix::sched::{CloneFlags, setns};

use super::server::Pace;

/// The table and the chain of a host that does not let everything in. A table may be added twice.
const FILTER: &str = "add table inet pod";
const CHAIN: &str = "pod input";
const HOOK: &str = "type filter hook input priority 0";

/// One network namespace with an address in each family.
#[derive(Debug)]
pub struct Host {
    /// Its name: `node`, `client`, `pod-1`.
    pub name: String,
    /// Its IPv4 address.
    pub ipv4: Ipv4Addr,
    /// Its IPv6 address.
    pub ipv6: Ipv6Addr,
    namespace: String,
    /// Of its servers.
    pub(super) pace: Arc<Pace>,
}

impl Host {
    pub(super) fn new(prefix: &str, name: &str, ipv4: [u8; 4], ipv6: &str) -> Result<Self> {
        let host = Self {
            name: name.to_owned(),
            ipv4: ipv4.into(),
            ipv6: ipv6.parse()?,
            namespace: format!("{prefix}-{name}"),
            pace: Arc::default(),
        };
        run(Command::new("ip").args(["netns", "add", &host.namespace]), "")?;
        Ok(host)
    }

    /// Links the node to another host, and becomes its default gateway: `device` here, `eth0` there.
    pub(super) fn link(&self, device: &str, other: &Self) -> Result<()> {
        let (gateway_v4, gateway_v6) = other.gateways();
        // Without duplicate address detection an IPv6 address can be used at once.
        self.ip(&format!(
            "link set lo up
             link add {device} type veth peer eth0 netns {}
             addr add {gateway_v4}/24 dev {device}
             addr add {gateway_v6}/64 dev {device} nodad
             link set {device} up",
            other.namespace
        ))?;
        other.ip(&format!(
            "link set lo up
             addr add {}/24 dev eth0
             addr add {}/64 dev eth0 nodad
             link set eth0 up
             route add default via {gateway_v4}
             route add ::/0 via {gateway_v6}",
            other.ipv4, other.ipv6
        ))
    }

    /// The node's addresses on its link to this host: the first of the host's networks.
    fn gateways(&self) -> (Ipv4Addr, Ipv6Addr) {
        let [a, b, c, _] = self.ipv4.octets();
        let [net_a, net_b, net_c, net_d, ..] = self.ipv6.segments();
        (Ipv4Addr::new(a, b, c, 1), Ipv6Addr::new(net_a, net_b, net_c, net_d, 0, 0, 0, 1))
    }

    /// Its address of the same family as `like`.
    pub fn address(&self, like: IpAddr) -> IpAddr {
        match like {
            IpAddr::V4(_) => self.ipv4.into(),
            IpAddr::V6(_) => self.ipv6.into(),
        }
    }

    /// The node's address on its link to this host, of the same family as `like`: the source that this host
    /// sees if the node sends or masquerades. For a pod on another node, that node is meant.
    pub fn gateway(&self, like: IpAddr) -> IpAddr {
        let (ipv4, ipv6) = self.gateways();
        match like {
            IpAddr::V4(_) => ipv4.into(),
            IpAddr::V6(_) => ipv6.into(),
        }
    }

    /// From now on its servers answer over connections only after this time.
    pub fn answer_after(&self, delay: Duration) {
        self.pace.set_delay(delay);
    }

    /// Stops its servers for this time: they accept and answer nothing, while its kernel goes on.
    pub fn stop_servers_for(&self, time: Duration) {
        self.pace.stop_for(time);
    }

    /// Drops everything that comes to it, as if it had lost its network, until [`Host::filters_nothing`].
    pub fn drops_everything(&self) -> Result<()> {
        self.run("nft", &[&format!("{FILTER}; add chain inet {CHAIN} {{ {HOOK}; policy drop; }}")]).map(drop)
    }

    /// Rejects all that comes to `port` by TCP with a reset, as if its program had ended.
    pub fn refuses(&self, port: u16) -> Result<()> {
        let rule = format!("add rule inet {CHAIN} tcp dport {port} reject with tcp reset");
        self.run("nft", &[&format!("{FILTER}; add chain inet {CHAIN} {{ {HOOK}; }}; {rule}")]).map(drop)
    }

    /// Ends both.
    pub fn filters_nothing(&self) -> Result<()> {
        self.run("nft", &[&format!("{FILTER}; delete table inet pod")]).map(drop)
    }

    /// A command that runs on this host.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace, program]);
        command
    }

    /// Runs a program on this host and returns its output; an exit code other than 0 is an error with what it
    /// printed to standard error.
    pub fn run(&self, program: &str, arguments: &[&str]) -> Result<String> {
        run(self.command(program).args(arguments), "")
    }

    /// Runs commands of `ip` on this host, one per line, in one process.
    pub fn ip(&self, commands: &str) -> Result<()> {
        run(Command::new("ip").args(["-n", &self.namespace, "-batch", "-"]), commands).map(drop)
    }

    /// Calls `work` in a thread in this host's namespace.
    pub fn inside<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
        let thread = self.spawn(work)?;
        thread.join().map_err(|_| anyhow::anyhow!("a thread on {} panicked", self.name))?
    }

    /// Starts a thread in this host's namespace; threads that it starts are there too.
    pub fn spawn<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<JoinHandle<Result<T>>> {
        let namespace = File::open(format!("/run/netns/{}", self.namespace))?;
        Ok(thread::spawn(move || {
            setns(namespace, CloneFlags::CLONE_NEWNET)?;
            Ok(work())
        }))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // Best effort: the guest that the tests run in is thrown away anyhow.
        let _ = run(Command::new("ip").args(["netns", "delete", &self.namespace]), "");
    }
}

fn run(command: &mut Command, input: &str) -> Result<String> {
    let running = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut running = running.with_context(|| format!("cannot run {command:?}"))?;
    if let Some(mut stdin) = running.stdin.take() {
        // A program that ends without having read everything prints the reason itself.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = running.wait_with_output()?;
    ensure!(
        output.status.success(),
        "{command:?}: {}: {}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    Ok(String::from_utf8(output.stdout)?)
}
