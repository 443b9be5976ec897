//! A node with an API server, and one of the programs on it.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result, bail, ensure};
use testkit::{
    daemon::{Daemon, eventually_within},
    kernel_baseline::Size,
    kube_proxy::{KubeProxy, Mode},
    lab::{Host, Lab},
    objects,
    process::last_lines,
};

use super::{
    api::{Api, Objects},
    case::Program,
};

/// Where all of them serve their metrics.
const METRICS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 10_249);
/// Short queues between the API server and the program: the program has read what the server has sent, except for these
/// bytes. Of lists that are compressed, as those for kube-ipvs, they hold much: what it still has to unpack, decode and
/// compute counts to what follows.
const SHORT_QUEUES: [&str; 2] = ["net.ipv4.tcp_wmem=4096 65536 65536", "net.ipv4.tcp_rmem=4096 65536 65536"];
/// How long a sync may take; if it takes longer it has no figure.
pub(super) const PATIENCE: Duration = Duration::from_secs(240);

/// One node of a cluster.
pub(super) struct Node {
    pub(super) lab: Lab,
    pub(super) api: Api,
    pub(super) size: Size,
    /// How long a sync may take.
    pub(super) patience: Duration,
}

/// A program that runs on the node.
pub(super) struct Running {
    pub(super) program: Program,
    pub(super) process: Process,
    pub(super) started: SystemTime,
}

pub(super) enum Process {
    KubeIpvs(Daemon),
    KubeProxy(KubeProxy),
}

/// What the metrics say of the syncs of a family, under the same names in both programs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Syncs {
    pub(super) count: f64,
    /// Seconds.
    pub(super) took: f64,
    /// Seconds since 1970.
    pub(super) last_ended: f64,
}

impl Node {
    pub(super) fn new(size: Size) -> Result<Self> {
        Self::expecting(size, 0)
    }

    /// A node where the API server also has the endpoints of this many Services to come.
    pub(super) fn expecting(size: Size, more: u32) -> Result<Self> {
        let lab = Lab::new(0, testkit::kernel_baseline::TARGET_PORT)?;
        for queue in SHORT_QUEUES {
            lab.node.run("sysctl", &["-qw", queue])?;
        }
        let mut objects = Objects::of_size(size, &[lab.node.ipv4.into()]);
        let to_come = size.services..size.services + more;
        objects.slices.extend(to_come.map(|number| objects::slice(size, number)));
        Self::with(lab, size, objects)
    }

    /// The node of a lab that is there, with these objects. Its queues are as long as usual.
    pub(super) fn with(lab: Lab, size: Size, objects: Objects) -> Result<Self> {
        let api = Api::serve(&lab.node, objects)?;
        Ok(Self { lab, api, size, patience: PATIENCE })
    }

    /// Starts a program, fed by the API server.
    pub(super) fn start(&self, program: Program, arguments: &[&str]) -> Result<Running> {
        let url = self.api.url();
        let arguments = [&["--master", &url], arguments].concat();
        let started = SystemTime::now();
        let node = &self.lab.node;
        let process = match program {
            Program::KubeIpvs(binding) => {
                Process::KubeIpvs(Daemon::start(node, &[&arguments[..], &[binding.flag()]].concat())?)
            }
            Program::KubeProxy(mode) => Process::KubeProxy(KubeProxy::start_in_mode(mode, node, &arguments)?),
        };
        Ok(Running { program, process, started })
    }

    /// Waits until the kernel has everything, and returns the syncs up to then.
    pub(super) fn synced(&self, running: &Running) -> Result<Syncs> {
        self.synced_after(running, 0.0)
    }

    /// Waits until the kernel has everything after a later sync than the one that ended then, in seconds since 1970.
    pub(super) fn synced_after(&self, running: &Running, mut looked_at: f64) -> Result<Syncs> {
        // A full check is expensive: only one after each sync.
        let synced = eventually_within(self.patience, "everything is in the kernel", || {
            let syncs = self.syncs()?;
            ensure!(syncs.last_ended > looked_at, "no sync has ended since the last look");
            looked_at = syncs.last_ended;
            self.is_complete(running.program)?;
            Ok(syncs)
        });
        synced.with_context(|| format!("{} said:\n{}", running.program, running.last_words()))
    }

    /// Reads the metrics of IPv4.
    pub(super) fn syncs(&self) -> Result<Syncs> {
        self.syncs_of("IPv4")
    }

    /// Reads the metrics of a family.
    pub(super) fn syncs_of(&self, family: &str) -> Result<Syncs> {
        let page = self.lab.node.get(METRICS, "/metrics")?.body;
        let family = format!("ip_family=\"{family}\"");
        let value = |name: &str| {
            let of_family = |line: &&str| line.starts_with(name) && line.contains(&family);
            let line = page.lines().find(of_family)?;
            line.rsplit(' ').next()?.parse::<f64>().ok()
        };
        Ok(Syncs {
            count: value("kubeproxy_sync_proxy_rules_duration_seconds_count").unwrap_or_default(),
            took: value("kubeproxy_sync_proxy_rules_duration_seconds_sum").unwrap_or_default(),
            last_ended: value("kubeproxy_sync_proxy_rules_last_timestamp_seconds").unwrap_or_default(),
        })
    }

    /// Fails unless the kernel has every Service and endpoint.
    fn is_complete(&self, program: Program) -> Result<()> {
        let Size { services, endpoints } = self.size;
        let wanted = [services as usize, (services * endpoints) as usize];
        let found = programmed(&self.lab.node, program)?;
        let is_so = found.iter().zip(wanted).all(|(found, wanted)| found.is_none_or(|found| found == wanted));
        ensure!(is_so, "of {wanted:?} Services and endpoints there are {found:?}");
        Ok(())
    }
}

/// How many TCP ports of Services and how many endpoints of these a program has programmed, in both families. None where
/// its rules do not show it.
pub(super) fn programmed(node: &Host, program: Program) -> Result<[Option<usize>; 2]> {
    Ok(match program {
        Program::KubeIpvs(_) | Program::KubeProxy(Mode::Ipvs) => {
            let table = node.inside(|| fs::read_to_string("/proc/thread-self/net/ip_vs"))??;
            let services = table.lines().filter(|line| line.starts_with("TCP ")).count();
            // The first is in the heading.
            [Some(services), Some(table.matches("  -> ").count().saturating_sub(1))]
        }
        Program::KubeProxy(Mode::Nftables) => {
            let list = |family| node.run("nft", &["list", "map", family, "kube-proxy", "service-ips"]);
            let elements = |map: String| map.matches(" goto service-").count();
            [Some(elements(list("ip")?) + list("ip6").map(elements).unwrap_or_default()), None]
        }
        Program::KubeProxy(Mode::Iptables) => {
            let rules = |program| node.run(program, &["-t", "nat"]);
            let rules = [rules("iptables-save")?, rules("ip6tables-save").unwrap_or_default()].concat();
            [None, Some(rules.matches("-j DNAT").count())]
        }
    })
}

impl Syncs {
    /// When the last one ended.
    pub(super) fn end(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs_f64(self.last_ended)
    }
}

impl Running {
    /// The program, if it is kube-ipvs.
    pub(super) fn kube_ipvs(&self) -> Result<&Daemon> {
        match &self.process {
            Process::KubeIpvs(daemon) => Ok(daemon),
            Process::KubeProxy(_) => bail!("kube-ipvs was asked for"),
        }
    }

    /// Kills it. What it programmed stays.
    pub(super) fn kill(self) -> Result<()> {
        match self.process {
            Process::KubeIpvs(daemon) => daemon.kill(),
            Process::KubeProxy(kube_proxy) => kube_proxy.kill(),
        }
    }

    pub(super) fn id(&self) -> u32 {
        match &self.process {
            Process::KubeIpvs(daemon) => daemon.id(),
            Process::KubeProxy(kube_proxy) => kube_proxy.id(),
        }
    }

    pub(super) fn last_words(&self) -> String {
        let log = match &self.process {
            Process::KubeIpvs(daemon) => daemon.log(),
            Process::KubeProxy(kube_proxy) => kube_proxy.log(),
        };
        last_lines(&log, 20)
    }
}

/// How much later, in seconds.
pub(super) fn between(earlier: SystemTime, later: SystemTime) -> Result<f64> {
    let passed = later.duration_since(earlier).context("the end comes before the beginning")?;
    Ok(passed.as_secs_f64())
}
