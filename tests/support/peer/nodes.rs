//! Two nodes of one name and the same addresses: kube-proxy on one, kube-ipvs on the other.
//!
//! Each is in network namespaces of its own, and IPVS is per namespace. Both proxies take themselves for
//! the one Node object there is, so whatever is local, near or a node's address to one is so to both.

use std::{
    cell::RefCell,
    net::{IpAddr, Ipv4Addr},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use ipvs::{Command, Ipvs as _, KernelIpvs, Protocol, Scheduler, ServiceAddress, VirtualServer};
use testkit::{
    control_plane::ControlPlane,
    daemon::{Daemon, eventually_within},
    kube_proxy::KubeProxy,
    lab::Lab,
    patience::is_emulated,
};

use super::{
    PATIENCE, SETTLED_WITHIN, script,
    tables::{Difference, Tables},
};

/// kube-proxy needs no period: each sync is a full one, and the marker leads to one after each step.
const KUBE_PROXY_PERIOD: &str = "--ipvs-sync-period=1h";

/// kube-ipvs: everything is compared with the kernel anew at least once in this time.
const KUBE_IPVS_PERIOD: &str = "--ipvs-sync-period=2s";

/// A virtual server that no Service asks for.
const STRANGER: ServiceAddress =
    ServiceAddress { protocol: Protocol::Tcp, ip: IpAddr::V4(Ipv4Addr::new(203, 0, 113, 254)), port: 9 };

/// The two nodes.
pub(crate) struct Nodes {
    kube_proxy: Node<KubeProxy>,
    kube_ipvs: Node<Daemon>,
    /// What both are started with.
    arguments: Vec<String>,
    /// The minimum between two syncs of kube-proxy: as long as a comparison and the writing of a step
    /// take here, so that most steps need one sync and not two.
    pause: Duration,
}

/// A node, and its proxy while that runs.
struct Node<P> {
    lab: Lab,
    /// For waiting: asks the kernel without starting a program.
    ipvs: RefCell<KernelIpvs>,
    proxy: Option<P>,
}

impl<P> Node<P> {
    fn new(server: &ControlPlane) -> Result<Self> {
        let lab = Lab::new(1, 8080)?;
        lab.node.reach(server.address()?)?;
        let ipvs = RefCell::new(lab.node.inside(KernelIpvs::open)??);
        Ok(Self { lab, ipvs, proxy: None })
    }
}

impl Nodes {
    /// Makes the nodes and starts the proxies with these flags.
    pub(crate) fn new(server: &ControlPlane, flags: &[String]) -> Result<Self> {
        let (kube_proxy, kube_ipvs) = (Node::new(server)?, Node::new(server)?);
        let kubeconfig = server.proxy_kubeconfig();
        let mut arguments = vec!["--kubeconfig".to_owned(), kubeconfig.to_string_lossy().into_owned()];
        arguments.extend_from_slice(flags);
        let mut nodes = Self { kube_proxy, kube_ipvs, arguments, pause: Duration::ZERO };
        nodes.write_object(server, &script::Node::default())?;
        let started = Instant::now();
        nodes.tables(&[])?;
        nodes.pause = started.elapsed() * 6;
        nodes.start()?;
        Ok(nodes)
    }

    /// Writes the Node object.
    pub(crate) fn write_object(&self, server: &ControlPlane, node: &script::Node) -> Result<()> {
        let own = &self.kube_proxy.lab.node;
        let own = vec![own.ipv4.into(), own.ipv6.into()];
        server.create_node("node", node.addresses.as_ref().unwrap_or(&own), node.zone.as_deref(), &[])
    }

    /// Starts both proxies.
    pub(crate) fn start(&mut self) -> Result<()> {
        let both = || self.arguments.iter().map(String::as_str);
        let pause = format!("--ipvs-min-sync-period={}ms", self.pause.as_millis());
        let kube_proxy: Vec<&str> = both().chain([pause.as_str(), KUBE_PROXY_PERIOD]).collect();
        let kube_ipvs: Vec<&str> = both().chain(["--ipvs-min-sync-period=0s", KUBE_IPVS_PERIOD]).collect();
        let start = if is_emulated() { KubeProxy::start_without_filter } else { KubeProxy::start };
        self.kube_proxy.proxy = Some(start(&self.kube_proxy.lab.node, &kube_proxy)?);
        self.kube_ipvs.proxy = Some(Daemon::start(&self.kube_ipvs.lab.node, &kube_ipvs)?);
        Ok(())
    }

    /// Kills both.
    pub(crate) fn stop(&mut self) -> Result<()> {
        self.kube_proxy.proxy.take().context("kube-proxy does not run")?.kill()?;
        self.kube_ipvs.proxy.take().context("kube-ipvs does not run")?.kill()
    }

    /// Runs a shell command on both.
    pub(crate) fn run(&self, command: &str) -> Result<()> {
        self.kube_proxy.lab.node.run("sh", &["-c", command])?;
        self.kube_ipvs.lab.node.run("sh", &["-c", command])?;
        Ok(())
    }

    /// The tables of kube-proxy's node and of kube-ipvs's, without what is about `background`.
    pub(crate) fn tables(&self, background: &[&str]) -> Result<[Tables; 2]> {
        let kube_proxy = Tables::from_kernel(&self.kube_proxy.lab.node)?;
        let kube_ipvs = Tables::from_kernel(&self.kube_ipvs.lab.node)?;
        Ok([kube_proxy.without(background), kube_ipvs.without(background)])
    }

    /// Waits until kube-ipvs has compared everything with the kernel anew: a virtual server that no Service
    /// asked for is gone. For kube-proxy any sync does that.
    pub(crate) fn wait_for_full_sync(&self) -> Result<()> {
        let mut kernel = self.kube_ipvs.ipvs.borrow_mut();
        let stranger = VirtualServer::new(STRANGER, Scheduler::RR);
        let failed = kernel.apply(&[Command::AddVirtualServer(stranger)])?;
        ensure!(failed.is_empty(), "a virtual server cannot be added: {failed:?}");
        eventually_within(PATIENCE, "a virtual server that no Service asked for is removed", || {
            ensure!(kernel.virtual_server(STRANGER.into())?.is_none(), "it is there");
            Ok(())
        })
    }

    /// Waits until `check` is content with both nodes.
    pub(crate) fn both_show(&self, what: &str, check: impl Fn(&mut KernelIpvs) -> Result<()>) -> Result<()> {
        for (who, ipvs) in [("kube-proxy", &self.kube_proxy.ipvs), ("kube-ipvs", &self.kube_ipvs.ipvs)] {
            eventually_within(PATIENCE, what, || check(&mut ipvs.borrow_mut()))
                .with_context(|| format!("{who} is not ready"))?;
        }
        Ok(())
    }

    /// Waits until the nodes differ as declared, twice in a row; then returns their tables.
    pub(crate) fn differ_as(&self, declared: &Difference, background: &[&str]) -> Result<[Tables; 2]> {
        eventually_within(SETTLED_WITHIN, "the tables are as declared", || {
            let [first, second] = [self.tables(background)?, self.tables(background)?];
            let [kube_proxy, kube_ipvs] = &second;
            let faults = Difference::between(kube_proxy, kube_ipvs).faults(declared);
            ensure!(faults.is_empty(), "the difference is another one\n  {}", faults.join("\n  "));
            ensure!(first == second, "the tables still change");
            Ok(second)
        })
    }

    /// The end of both logs.
    pub(crate) fn last_words(&self) -> String {
        let kube_proxy = self.kube_proxy.proxy.as_ref().map(KubeProxy::log).unwrap_or_default();
        let kube_ipvs = self.kube_ipvs.proxy.as_ref().map(Daemon::log).unwrap_or_default();
        let end = |who: &str, log: &str| {
            let lines: Vec<&str> = log.lines().collect();
            let last = lines[lines.len().saturating_sub(10)..].join("\n    ");
            format!("  {who} said last:\n    {last}\n")
        };
        end("kube-proxy", &kube_proxy) + &end("kube-ipvs", &kube_ipvs)
    }
}
