//! A node: a User Mode Linux guest, and commands on it.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use guest::programs;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde::{Deserialize, Serialize};

use crate::{
    kubectl::patiently,
    network,
    state::{self, Cluster},
};

/// How much memory a node has, in MiB.
const MEMORY: u32 = 4096;

/// A node of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Node {
    /// Its name, in the cluster and as its host name.
    pub(crate) name: String,
    /// From 1; its addresses and its interface have it in them.
    pub(crate) number: u8,
}

impl Node {
    /// Its address.
    pub(crate) fn ipv4(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 200, 0, 10 + self.number)
    }

    /// Its other address.
    pub(crate) fn ipv6(&self) -> Ipv6Addr {
        Ipv6Addr::new(0xfd00, 0x200, 0, 0, 0, 0, 0, 0x10 + u16::from(self.number))
    }

    /// Its address of the same family as a subnet.
    pub(crate) fn address_for(&self, subnet: &str) -> IpAddr {
        if subnet.contains(':') { self.ipv6().into() } else { self.ipv4().into() }
    }

    /// The router's end of its link.
    pub(crate) fn interface(&self) -> String {
        format!("node-{}", self.number)
    }

    /// Where its disk and what it prints to its console are.
    pub(crate) fn directory(&self) -> PathBuf {
        state::directory().join(&self.name)
    }

    /// Switches it on. Its disk stays what it was, or begins as the disk that all begin as.
    pub(crate) fn boot(&self, cluster: &Cluster) -> Result<()> {
        ensure!(!self.is_on(), "{} is on already", self.name);
        let directory = self.directory();
        fs::create_dir_all(&directory).with_context(state::named(&directory))?;
        let console = directory.join("console");
        let console = fs::File::options()
            .create(true)
            .append(true)
            .open(&console)
            .with_context(state::named(&console))?;
        let Self { name, number, .. } = self;
        let (ipv4, ipv6) = (self.ipv4(), self.ipv6());
        // In a process namespace of its own: whoever ends its first process ends all of the guest.
        let mut linux = network::on_router("setsid");
        linux
            .args(["unshare", "--pid", "--fork", "--kill-child", "taskset", "--cpu-list"])
            .arg(guest::processor(usize::from(*number))?.to_string())
            .arg(guest::user_mode_linux(None)?)
            .args(["seccomp=on", "root=/dev/ubda", "rw", "quiet", "con=null", "con0=null,fd:1", "con1=null"])
            .arg(format!("mem={MEMORY}M"))
            // Its own files, which would otherwise stay in the home of whoever starts it.
            .arg(format!("uml_dir={}", directory.join("uml").display()))
            .arg(format!("ubd0={},{}", directory.join("disk").display(), cluster.disk.join("disk").display()))
            .arg(format!(
                "vec0:transport=tap,ifname={},depth=128,gro=1,mac=02:00:0a:c8:00:{number:02x}",
                self.interface()
            ))
            .arg("init=/usr/lib/systemd/systemd")
            .arg(host_name_argument(name))
            // systemd-network-generator(8) makes a network of them.
            .arg(format!("ip={ipv4}::10.200.0.1:255.255.255.0:{name}:vec0:off"))
            .arg(format!("ip=[{ipv6}]::[fd00:200::1]:64:{name}:vec0:off"));
        let child = linux
            .stdin(Stdio::null())
            .stdout(console.try_clone()?)
            .stderr(console)
            .spawn()
            .context("starting User Mode Linux")?;
        self.process().started(&child)
    }

    /// Waits until commands can be run on it.
    pub(crate) fn wait_until_up(&self, cluster: &Cluster) -> Result<()> {
        patiently(Duration::from_secs(120), || {
            ensure!(
                self.is_on(),
                "{} went off while it booted; see {}",
                self.name,
                self.directory().join("console").display()
            );
            self.run(cluster, "true").map(drop)
        })
    }

    /// Runs a shell script on it; what the script prints.
    pub(crate) fn run(&self, cluster: &Cluster, script: &str) -> Result<String> {
        let mut ssh = self.ssh_by(network::on_router_within_limit("ssh"), cluster);
        let output = ssh.arg(script).stdin(Stdio::null()).output().context("starting ssh")?;
        let complaint = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "on {}: {script}: {}", self.name, complaint.trim_end());
        String::from_utf8(output.stdout).with_context(|| format!("on {}: {script}", self.name))
    }

    /// Writes a file on it.
    pub(crate) fn write(&self, cluster: &Cluster, path: &str, text: &str) -> Result<()> {
        let mut ssh = self.ssh(cluster);
        ssh.arg(format!("mkdir -p $(dirname {path}) && cat >{path}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::null());
        let mut child = ssh.spawn().context("starting ssh")?;
        let stdin = child.stdin.take().context("a child without stdin")?;
        std::io::Write::write_all(&mut { stdin }, text.as_bytes())
            .with_context(|| format!("writing {path}"))?;
        let status = child.wait().context("waiting for ssh")?;
        ensure!(status.success(), "on {}: writing {path} failed", self.name);
        Ok(())
    }

    /// ssh to it, as root; the command is still to be added.
    pub(crate) fn ssh(&self, cluster: &Cluster) -> Command {
        self.ssh_by(network::on_router("ssh"), cluster)
    }

    fn ssh_by(&self, mut ssh: Command, cluster: &Cluster) -> Command {
        ssh.args(Self::ssh_options(cluster)).arg(self.ssh_name());
        ssh
    }

    /// What ssh and scp need to come in.
    pub(crate) fn ssh_options(cluster: &Cluster) -> Vec<String> {
        let key = cluster.disk.join("key").display().to_string();
        // Nothing else can be at this address.
        let unknown = ["StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR"];
        let patience = ["ConnectTimeout=5", "ServerAliveInterval=15"];
        let settings = unknown.into_iter().chain(patience).flat_map(|setting| ["-o", setting]);
        ["-i", &key].into_iter().chain(settings).map(str::to_owned).collect()
    }

    /// The node as ssh and scp are given it, with its user.
    pub(crate) fn ssh_name(&self) -> String {
        format!("root@{}", self.ipv4())
    }

    /// Whether its guest runs.
    pub(crate) fn is_on(&self) -> bool {
        self.process().is_running()
    }

    /// Switches it off, as an operator does. (User Mode Linux cannot reboot: it would find its interface in use.)
    pub(crate) fn shut_down(&self, cluster: &Cluster) -> Result<()> {
        // The connection ends with it.
        drop(self.run(cluster, "systemctl poweroff"));
        patiently(Duration::from_secs(90), || {
            ensure!(!self.is_on(), "{} does not shut down", self.name);
            Ok(())
        })
    }

    /// Ends its guest at once, as if the power had failed.
    pub(crate) fn cut_power(&self) -> Result<()> {
        self.process().kill()
    }

    /// The processor time that its guest has used since it was switched on, with all that runs in it.
    pub(crate) fn processor_time(&self) -> Result<Duration> {
        self.process().processor_time()
    }

    /// Forgets its disk and what it printed.
    pub(crate) fn forget(&self) -> Result<()> {
        let directory = self.directory();
        fs::remove_dir_all(&directory).with_context(state::named(&directory))
    }

    fn process(&self) -> NodeProcess {
        NodeProcess::in_directory(&self.directory())
    }
}

/// What the command line of a node has in it, and no other process': its host name for systemd.
fn host_name_argument(name: &str) -> String {
    format!("systemd.hostname={name}")
}

/// The process that a node is on this machine.
pub(crate) struct NodeProcess {
    /// Has its number.
    pid_file: PathBuf,
    /// What its command line has in it: another process may have got its number since.
    argument: String,
}

impl NodeProcess {
    /// The one that a node's directory tells of.
    pub(crate) fn in_directory(directory: &Path) -> Self {
        let name = directory.file_name().unwrap_or_default().to_string_lossy();
        Self { pid_file: directory.join("pid"), argument: host_name_argument(&name) }
    }

    fn started(&self, child: &Child) -> Result<()> {
        fs::write(&self.pid_file, child.id().to_string()).with_context(state::named(&self.pid_file))
    }

    /// One that has ended may still be listed, until whoever started it asks for its exit code; it has no command line.
    fn is_running(&self) -> bool {
        let words = self.pid().and_then(|pid| fs::read(format!("/proc/{pid}/cmdline")).ok());
        words.is_some_and(|words| words.split(|byte| *byte == 0).any(|word| word == self.argument.as_bytes()))
    }

    /// Ends it, if it runs.
    pub(crate) fn kill(&self) -> Result<()> {
        let Some(pid) = self.pid().filter(|_| self.is_running()) else { return Ok(()) };
        kill(pid, Signal::SIGKILL).with_context(|| format!("ending process {pid}"))?;
        patiently(Duration::from_secs(10), || {
            ensure!(!self.is_running(), "process {pid} does not end");
            Ok(())
        })
    }

    /// What all processes of its process namespace have used, those that have ended among them.
    fn processor_time(&self) -> Result<Duration> {
        let pid = self.pid().filter(|_| self.is_running()).context("the node is off")?;
        let namespace = fs::read_link(format!("/proc/{pid}/ns/pid_for_children"))?;
        let is_inside =
            |process: &PathBuf| fs::read_link(process.join("ns/pid")).is_ok_and(|it| it == namespace);
        let processes = fs::read_dir("/proc")?.filter_map(|entry| Some(entry.ok()?.path())).filter(is_inside);
        // One may have ended meanwhile.
        let stats = processes.filter_map(|process| fs::read_to_string(process.join("stat")).ok());
        Ok(stats.filter_map(|stat| programs::processor_times(&stat)).flatten().sum())
    }

    fn pid(&self) -> Option<Pid> {
        fs::read_to_string(&self.pid_file).ok()?.parse().ok().map(Pid::from_raw)
    }
}
