//! A node: a User Mode Linux guest, and commands on it.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use guest::{
    files,
    programs::{feed, printed},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde::{Deserialize, Serialize};

use crate::{kubectl::patiently, network, state};

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
    pub(crate) fn boot(&self) -> Result<()> {
        ensure!(!self.is_on(), "{} is on already", self.name);
        let directory = self.directory();
        fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
        let console = fs::File::options().create(true).append(true).open(directory.join("console"));
        let console = console.context("opening a console")?;
        let Self { name, number } = self;
        let (ipv4, ipv6) = (self.ipv4(), self.ipv6());
        // In a process namespace of its own: all of the guest ends with its first process.
        let mut linux = network::on_router("setsid");
        linux
            .args(["unshare", "--pid", "--fork", "--kill-child", "taskset", "--cpu-list"])
            .arg(guest::processor(usize::from(*number))?.to_string())
            .arg(guest::user_mode_linux(None)?)
            .args(["seccomp=on", "root=/dev/ubda", "rw", "quiet", "con=null", "con0=null,fd:1", "con1=null"])
            .arg(format!("mem={MEMORY}M"))
            // Its own files, which would otherwise stay in the user's home.
            .arg(format!("uml_dir={}", directory.join("uml").display()))
            .arg(format!(
                "ubd0={},{}",
                directory.join("disk").display(),
                state::base().join("disk").display()
            ))
            .arg(format!(
                "vec0:transport=tap,ifname={},depth=128,gro=1,mac=02:00:0a:c8:00:{number:02x}",
                self.interface()
            ))
            .arg("init=/usr/lib/systemd/systemd")
            .arg(self.host_name_argument())
            // systemd-network-generator(8) makes a network of them.
            .arg(format!("ip={ipv4}::10.200.0.1:255.255.255.0:{name}:vec0:off"))
            .arg(format!("ip=[{ipv6}]::[fd00:200::1]:64:{name}:vec0:off"));
        let child = linux
            .stdin(Stdio::null())
            .stdout(console.try_clone()?)
            .stderr(console)
            .spawn()
            .context("starting User Mode Linux")?;
        files::write(&self.pid_file(), child.id().to_string())
    }

    /// Waits until commands can be run on it.
    pub(crate) fn wait_until_up(&self) -> Result<()> {
        patiently(Duration::from_secs(120), || {
            ensure!(
                self.is_on(),
                "{} went off while it booted; see {}",
                self.name,
                self.directory().join("console").display()
            );
            self.run("true").map(drop)
        })
    }

    /// Runs a shell script on it; what the script prints.
    pub(crate) fn run(&self, script: &str) -> Result<String> {
        let mut ssh = self.ssh_by(network::on_router_within_limit("ssh"));
        let printed = printed(ssh.arg(script).stderr(Stdio::piped()));
        printed.with_context(|| format!("on {}: {script}", self.name))
    }

    /// Writes a file on it.
    pub(crate) fn write(&self, path: &str, text: &str) -> Result<()> {
        let mut ssh = self.ssh();
        ssh.arg(format!("mkdir -p $(dirname {path}) && cat >{path}"));
        feed(&mut ssh, text.as_bytes()).with_context(|| format!("on {}: writing {path}", self.name))?;
        Ok(())
    }

    /// Gives a shell script on it a file of this machine.
    pub(crate) fn send(&self, file: &Path, script: &str) -> Result<()> {
        let bytes = fs::File::open(file).with_context(|| file.display().to_string())?;
        let status = self.ssh().arg(script).stdin(bytes).stdout(Stdio::null()).status();
        ensure!(status.context("starting ssh")?.success(), "{} did not take {}", self.name, file.display());
        Ok(())
    }

    /// ssh to it, as root; the command is still to be added.
    pub(crate) fn ssh(&self) -> Command {
        self.ssh_by(network::on_router("ssh"))
    }

    fn ssh_by(&self, mut ssh: Command) -> Command {
        ssh.args(Self::ssh_options()).arg(self.ssh_name());
        ssh
    }

    /// What ssh and scp need to come in.
    pub(crate) fn ssh_options() -> Vec<String> {
        let key = state::base().join("key").display().to_string();
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
        self.process().is_some()
    }

    /// Switches it off, as an operator does. (User Mode Linux cannot reboot: it would find its interface in use.)
    pub(crate) fn shut_down(&self) -> Result<()> {
        // The connection ends with it.
        drop(self.run("systemctl poweroff"));
        patiently(Duration::from_secs(90), || {
            ensure!(!self.is_on(), "{} does not shut down", self.name);
            Ok(())
        })
    }

    /// Ends its guest at once, if it runs, as if the power had failed.
    pub(crate) fn cut_power(&self) -> Result<()> {
        let Some(process) = self.process() else { return Ok(()) };
        kill(process, Signal::SIGKILL).with_context(|| format!("ending process {process}"))?;
        patiently(Duration::from_secs(10), || {
            ensure!(!self.is_on(), "process {process} does not end");
            Ok(())
        })
    }

    /// Forgets its disk and what it printed.
    pub(crate) fn forget(&self) -> Result<()> {
        let directory = self.directory();
        fs::remove_dir_all(&directory).with_context(|| directory.display().to_string())
    }

    /// The process that its guest is on this machine, if it runs.
    fn process(&self) -> Option<Pid> {
        let number: i32 = fs::read_to_string(self.pid_file()).ok()?.parse().ok()?;
        // Another process may have got its number since. One that has ended may still be listed, until its parent asks
        // for its exit code; it has no command line.
        let words = fs::read(format!("/proc/{number}/cmdline")).ok()?;
        let argument = self.host_name_argument();
        let is_ours = words.split(|byte| *byte == 0).any(|word| word == argument.as_bytes());
        is_ours.then(|| Pid::from_raw(number))
    }

    /// Has the number of that process.
    fn pid_file(&self) -> PathBuf {
        self.directory().join("pid")
    }

    /// What the command line of a node has in it, and no other process': its host name for systemd.
    fn host_name_argument(&self) -> String {
        format!("systemd.hostname={}", self.name)
    }
}
