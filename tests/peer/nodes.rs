//! Two nodes of one name and the same addresses: kube-proxy on one, kube-ipvs on the other.
//!
//! Each is in network namespaces of its own, and IPVS is per namespace. Both proxies take themselves for
//! the one Node object there is, so whatever is local, near or a node's address to one is so to both.

use std::{cell::RefCell, net::SocketAddr};

use anyhow::{Context as _, Result, ensure};
use ipvs::{Id, KernelIpvs, Protocol, ServiceAddress};
use testkit::{
    control_plane::ControlPlane,
    daemon::{Daemon, eventually_within},
    kube_proxy::KubeProxy,
    lab::Lab,
};

use super::{
    PATIENCE, script,
    tables::{Difference, Tables},
};

/// Everything is compared anew at least once in this time. What is written within the minimum after a
/// sync is one sync: kube-proxy starts about a hundred programs in each.
const PERIODS: [&str; 2] = ["--ipvs-min-sync-period=300ms", "--ipvs-sync-period=3s"];

/// A virtual server that no Service asks for, in each family.
const STRANGER: [&str; 2] = ["203.0.113.254:9", "[2001:db8::fe]:9"];

/// The two nodes.
pub(crate) struct Nodes {
    kube_proxy: Node<KubeProxy>,
    kube_ipvs: Node<Daemon>,
    arguments: Vec<String>,
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
        let lab = Lab::new(0, 8080)?;
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
        arguments.extend(PERIODS.map(str::to_owned));
        arguments.extend_from_slice(flags);
        let mut nodes = Self { kube_proxy, kube_ipvs, arguments };
        nodes.write_object(server, &script::Node::default())?;
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
        let arguments: Vec<&str> = self.arguments.iter().map(String::as_str).collect();
        self.kube_proxy.proxy = Some(KubeProxy::start(&self.kube_proxy.lab.node, &arguments)?);
        self.kube_ipvs.proxy = Some(Daemon::start(&self.kube_ipvs.lab.node, &arguments)?);
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
        let kube_proxy = Tables::of(&self.kube_proxy.lab.node)?;
        let kube_ipvs = Tables::of(&self.kube_ipvs.lab.node)?;
        Ok([kube_proxy.without(background), kube_ipvs.without(background)])
    }

    /// Waits until both proxies have compared everything with the kernel anew: a virtual server that
    /// nobody asked for is gone.
    pub(crate) fn wait_for_full_syncs(&self) -> Result<()> {
        for stranger in STRANGER {
            self.run(&format!("ipvsadm -A -t {stranger} -s rr"))?;
        }
        self.both_show("a virtual server that nobody asked for is removed", |ipvs| {
            for stranger in STRANGER {
                let at: SocketAddr = stranger.parse()?;
                let address = ServiceAddress { protocol: Protocol::Tcp, ip: at.ip(), port: at.port() };
                let left = ipvs.virtual_server(Id::Address(address))?;
                ensure!(left.is_none(), "{stranger} is there");
            }
            Ok(())
        })
    }

    /// Waits until `check` is content with both nodes.
    pub(crate) fn both_show(
        &self,
        what: &str,
        check: impl Fn(&mut KernelIpvs) -> Result<()>,
    ) -> Result<()> {
        for (who, ipvs) in [("kube-proxy", &self.kube_proxy.ipvs), ("kube-ipvs", &self.kube_ipvs.ipvs)] {
            eventually_within(PATIENCE, what, || check(&mut ipvs.borrow_mut()))
                .with_context(|| format!("{who} is not ready"))?;
        }
        Ok(())
    }

    /// Waits until the nodes differ as declared, twice in a row; then returns their tables.
    pub(crate) fn differ_as(&self, declared: &Difference, background: &[&str]) -> Result<[Tables; 2]> {
        eventually_within(PATIENCE, "the tables are as declared", || {
            let [first, second] = [self.tables(background)?, self.tables(background)?];
            let [kube_proxy, kube_ipvs] = &second;
            let faults = Difference::between(kube_proxy, kube_ipvs).faults(declared);
            ensure!(faults.is_empty(), "the difference is another one\n{faults}");
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
