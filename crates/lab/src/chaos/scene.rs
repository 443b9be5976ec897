//! A node under attack: the target of the faults, and the check whether it has healed.

mod cut_short;

use std::{
    fs,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use ipvs::{Ipvs as _, KernelIpvs, ServiceAddress, VirtualServerId};
use testkit::{
    daemon::{Daemon, eventually_within},
    kube_proxy::KubeProxy,
    lab::Host,
};

use super::{EJECTING, FIRST_EJECTED, PODS};

use crate::stage::{
    Stage,
    kernel_state::KernelState,
    objects::{self, Condition, Endpoint, Kind, Write},
};

/// Short enough for hundreds of faults; 30 s by default.
pub(super) const PERIOD: &str = "--ipvs-sync-period=5s";
/// How long anything may take until it is as it was. An endpoint that failed again and again is out for a minute at
/// most, and then on trial.
const PATIENCE: Duration = Duration::from_secs(90);
/// A Service without traffic whose one endpoint must follow the API server.
pub(super) const PROBE: &str = "probe";
/// The endpoints that it has in turn. Nothing answers there.
const PROBE_ENDPOINTS: std::ops::RangeInclusive<u8> = 101..=200;

/// The node, its daemon, and how its kernel ought to look.
pub(super) struct Scene<'a> {
    pub(super) stage: &'a Stage,
    pub(super) random: fastrand::Rng,
    /// How many daemons were killed in the middle of a sync.
    pub(super) cut_short: usize,
    arguments: Vec<&'static str>,
    daemon: Option<Daemon>,
    kernel: KernelIpvs,
    /// Where traffic flows, and where it does not.
    used: Vec<SocketAddr>,
    others: Vec<SocketAddr>,
    victim: SocketAddr,
    /// The Service that ejects, and the endpoint of it that fails.
    ejecting: SocketAddr,
    endpoint: u8,
    probe: SocketAddr,
    probe_endpoint: u8,
    /// But for the probe.
    healthy: KernelState,
    /// How much there is then, and how much was left of it.
    whole: (usize, usize),
    ruins: (usize, usize),
}

impl<'a> Scene<'a> {
    /// Starts the daemon. What it then programs is how the kernel ought to look from now on.
    pub(super) fn new(
        stage: &'a Stage,
        random: fastrand::Rng,
        used: Vec<SocketAddr>,
        others: Vec<SocketAddr>,
        arguments: &[&'static str],
    ) -> Result<Self> {
        let probe = stage.cluster_ip(PROBE)?;
        let arguments = [&[PERIOD], arguments].concat();
        let daemon = stage.daemon(&arguments)?;
        stage.has_synced(&daemon)?;
        let victim = *used.first().context("nothing to attack")?;
        let mut scene = Self {
            healthy: KernelState::read(&stage.lab.node)?,
            kernel: stage.lab.node.inside(KernelIpvs::open)??,
            daemon: Some(daemon),
            probe_endpoint: *PROBE_ENDPOINTS.start(),
            cut_short: 0,
            whole: (0, 0),
            ruins: (0, 0),
            stage,
            random,
            arguments,
            used,
            others,
            victim,
            ejecting: stage.cluster_ip(EJECTING)?,
            endpoint: FIRST_EJECTED,
            probe,
        };
        scene.change_probe()?;
        scene.probe_follows()?;
        scene.healthy = scene.state()?;
        scene.whole = scene.extent()?;
        Ok(scene)
    }

    /// Ends the daemon; what it has programmed stays.
    pub(super) fn finish(mut self) -> Result<()> {
        self.kill()
    }

    /// Picks the victim of the next fault: as often a Service with traffic as one without.
    pub(super) fn pick_victim(&mut self) {
        let from = if self.random.bool() { &self.used } else { &self.others };
        self.victim = self.random.choice(from).copied().unwrap_or(self.victim);
    }

    pub(super) fn victim(&self) -> SocketAddr {
        self.victim
    }

    /// Picks the endpoint that fails next.
    pub(super) fn pick_endpoint(&mut self) {
        self.endpoint = self.random.u8(FIRST_EJECTED..PODS);
    }

    pub(super) fn endpoint(&self) -> Result<&Host> {
        self.stage.lab.pods.get(usize::from(self.endpoint) - 1).context("no such pod")
    }

    /// Its weight at the Service that ejects.
    pub(super) fn weight_of_endpoint(&mut self) -> Result<u32> {
        let ip = IpAddr::from(objects::ipv4(self.endpoint));
        let servers = self.kernel.real_servers(id(self.ejecting))?;
        let server = servers.iter().find(|server| server.config.address.ip == ip);
        Ok(server.with_context(|| format!("{ip} is not a real server: {servers:#?}"))?.config.weight)
    }

    /// Connects to the Service that ejects, and breaks the connection off once it is answered.
    pub(super) fn connect(&self) -> Result<()> {
        self.stage.lab.client.connect(self.ejecting)?.reset().map(drop)
    }

    /// A random duration between these numbers of seconds.
    pub(super) fn seconds(&mut self, least: f64, most: f64) -> Duration {
        Duration::from_secs_f64(least + self.random.f64() * (most - least))
    }

    /// Waits until the kernel is as it should be, including the last change at the API server.
    pub(super) fn heals(&mut self) -> Result<()> {
        eventually_within(PATIENCE, "the kernel is as before", || {
            let now = self.state()?;
            let differences = self.healthy.differences(&now);
            ensure!(differences.is_empty(), "{differences:#?}");
            self.probe_is_up_to_date()
        })
    }

    /// Everything that is programmed, except for the probe.
    fn state(&self) -> Result<KernelState> {
        Ok(KernelState::read(&self.stage.lab.node)?.without(&self.probe.to_string()))
    }

    /// Waits until the kernel has the last change of the probe.
    pub(super) fn probe_follows(&mut self) -> Result<()> {
        eventually_within(PATIENCE, "the probe follows", || self.probe_is_up_to_date())
    }

    fn probe_is_up_to_date(&mut self) -> Result<()> {
        let servers = self.kernel.real_servers(id(self.probe))?;
        let wanted = IpAddr::from(objects::ipv4(self.probe_endpoint));
        let has = servers.iter().any(|server| server.config.address.ip == wanted && server.config.weight > 0);
        ensure!(has, "the probe has not {wanted}: {servers:#?}");
        Ok(())
    }

    /// Gives the probe another endpoint, as soon as the API server takes it.
    pub(super) fn change_probe(&mut self) -> Result<()> {
        let next = self.probe_endpoint + 1;
        self.probe_endpoint = if PROBE_ENDPOINTS.contains(&next) { next } else { *PROBE_ENDPOINTS.start() };
        let endpoint = Endpoint { number: self.probe_endpoint, condition: Condition::Ready };
        let write = Write::Replace(Kind::Slice, objects::slice(&format!("{PROBE}-v4"), PROBE, &[endpoint]));
        eventually_within(PATIENCE, "the API server takes a change", || self.write(&write))
    }

    /// Writes something to the API server.
    pub(super) fn write(&self, write: &Write) -> Result<()> {
        self.stage.server.block_on(write.send(&self.stage.server.admin_client()))
    }

    pub(super) fn daemon(&self) -> Result<&Daemon> {
        self.daemon.as_ref().context("no daemon runs")
    }

    /// Fails if the daemon has ended by itself.
    pub(super) fn daemon_lives(&self) -> Result<()> {
        let daemon = self.daemon()?;
        let stat = fs::read_to_string(format!("/proc/{}/stat", daemon.id())).unwrap_or_default();
        ensure!(!stat.is_empty() && !stat.contains(") Z "), "the daemon has ended:\n{}", daemon.log());
        Ok(())
    }

    /// The path of the daemon's log, and its current length.
    pub(super) fn log(&self) -> Result<(PathBuf, usize)> {
        let daemon = self.daemon()?;
        Ok((daemon.log_file(), daemon.log().len()))
    }

    /// How often the daemon has logged a repair.
    pub(super) fn repairs(&self) -> Result<usize> {
        Ok(self.daemon()?.log().matches(super::catalogue::REPAIRED).count())
    }

    pub(super) fn kill(&mut self) -> Result<()> {
        self.daemon.take().context("no daemon runs")?.kill()
    }

    pub(super) fn start(&mut self) -> Result<()> {
        self.daemon = Some(self.stage.daemon(&self.arguments)?);
        Ok(())
    }

    /// Starts a second daemon, with the same control socket.
    pub(super) fn another(&self) -> Result<Daemon> {
        let kubeconfig = self.stage.server.proxy_kubeconfig();
        let arguments = ["--kubeconfig", &kubeconfig.to_string_lossy()];
        self.daemon()?.another(&self.stage.lab.node, &arguments)
    }

    /// Starts a kube-proxy that wants another scheduler.
    pub(super) fn kube_proxy(&self) -> Result<KubeProxy> {
        let kubeconfig = self.stage.server.proxy_kubeconfig();
        let ports = ["--metrics-bind-address=127.0.0.1:10349", "--healthz-bind-address=127.0.0.1:10356"];
        let fights = ["--ipvs-scheduler=wlc", "--ipvs-sync-period=1s", "--ipvs-min-sync-period=0s"];
        let kubeconfig = ["--kubeconfig", &kubeconfig.to_string_lossy()];
        KubeProxy::start(&self.stage.lab.node, &[&kubeconfig[..], &ports, &fights].concat())
    }

    /// Starts a new daemon, which repairs everything.
    pub(super) fn recover(&mut self) -> Result<()> {
        drop(self.daemon.take());
        self.start()?;
        self.heals().context("not even a new daemon makes it right")
    }

    pub(super) fn ipvsadm(&self, arguments: &str) -> Result<()> {
        let arguments: Vec<_> = arguments.split_whitespace().collect();
        self.stage.lab.node.run("ipvsadm", &arguments).map(drop)
    }

    pub(super) fn ip(&self, commands: &str) -> Result<()> {
        self.stage.lab.node.ip(commands)
    }

    pub(super) fn nft(&self, command: &str) -> Result<()> {
        self.stage.lab.node.run("nft", &[command]).map(drop)
    }

    /// Stops a process, and lets it continue after some seconds.
    pub(super) fn stop_for_seconds(&mut self, process: u32) -> Result<()> {
        let seconds = self.seconds(1.0, 4.0);
        let signal = |name| self.stage.lab.node.run("kill", &[name, &process.to_string()]);
        signal("-STOP")?;
        thread::sleep(seconds);
        signal("-CONT").map(drop)
    }

    /// Keeps the node from the API server: connections break, new ones are refused.
    pub(super) fn cut_off(&self) -> Result<()> {
        let server = self.stage.server.address()?;
        let connection = format!("ip saddr {0} ip daddr {0}", server.ip());
        self.nft("add table ip outage")?;
        self.nft("add chain ip outage out { type filter hook output priority -300; }")?;
        ["sport", "dport"].into_iter().try_for_each(|end| {
            let rule = format!("{connection} tcp {end} {} reject with tcp reset", server.port());
            self.nft(&format!("add rule ip outage out {rule}"))
        })
    }

    /// Ends that.
    pub(super) fn reconnect(&self) -> Result<()> {
        self.nft("delete table ip outage")
    }
}

/// As IPVS has it.
fn id(vip: SocketAddr) -> VirtualServerId {
    VirtualServerId::Address(ServiceAddress { protocol: ipvs::Protocol::Tcp, ip: vip.ip(), port: vip.port() })
}
