//! A lab with the daemon on its node, fed by a directory of manifests.
mod service;
mod table;

use std::{
    collections::BTreeSet,
    fs,
    net::{IpAddr, SocketAddr},
    thread,
};

use anyhow::ensure;
use ipvs::{Protocol, ServiceAddress};
use testkit::{
    daemon::{Daemon, eventually, ipvsadm_shows},
    lab::{Host, Lab},
};

pub(crate) use service::{Endpoint, Service, elsewhere, here, host_network};
pub(crate) use table::{Table, VirtualServer};

/// A VIP in each family.
pub(crate) const V4: &str = "10.96.0.10";
pub(crate) const V6: &str = "fd00:96::10";

/// Where the pods listen.
pub(crate) const POD_PORT: u16 = 8080;

/// The period does nothing as long as a test may take: what happens, happens at once.
pub(crate) const NO_PERIOD: &str = "--ipvs-sync-period=1h";

/// A port of an address.
pub(crate) fn at(ip: &str, port: u16) -> SocketAddr {
    SocketAddr::new(ip.parse().unwrap(), port)
}

/// A TCP port of an address.
pub(crate) fn tcp(ip: &str, port: u16) -> ServiceAddress {
    ServiceAddress { protocol: Protocol::Tcp, ip: ip.parse().unwrap(), port }
}

/// Makes sure that the host asks in vain, and gets an error. The node itself gets EPERM for what it sends by
/// UDP: its datagram is dropped in the output hook.
pub(crate) fn is_refused(host: &Host, service: ServiceAddress) {
    let answer = host.ask_at(service);
    let refused = answer.as_ref().is_err_and(|error| {
        let error = format!("{error:#}");
        error.contains("Connection refused") || error.contains("Operation not permitted")
    });
    assert!(refused, "{} asked {service}: {answer:?}", host.name);
}

/// Makes sure of it for each of the hosts at each of the addresses, at the same time: with all hosts on one
/// machine, the answer to a first SYN comes while connect(2) holds the socket and is only noted, so the
/// refusal waits for the second, a second later (`tcp_v4_err` in net/ipv4/tcp_ipv4.c).
pub(crate) fn are_refused(hosts: &[&Host], services: &[ServiceAddress]) {
    for_each(hosts, services, is_refused);
}

/// Makes sure that no host gets an answer at any of the addresses.
pub(crate) fn are_dropped(hosts: &[&Host], services: &[ServiceAddress]) {
    for_each(hosts, services, |host, service| {
        let answer = host.ask_at(service);
        let dropped = answer.as_ref().is_err_and(|error| {
            let error = format!("{error:#}");
            // connect(2) with a time limit, and recv(2).
            error.contains("Operation now in progress") || error.contains("Resource temporarily unavailable")
        });
        assert!(dropped, "{} asked {service}: {answer:?}", host.name);
    });
}

/// A page of the metrics server of the node's daemon, which listens on the loopback alone.
pub(crate) fn page(node: &Host, path: &str) -> anyhow::Result<String> {
    let page = node.get("127.0.0.1:10249".parse()?, path)?;
    ensure!(page.status == 200, "{path}: {page:?}");
    Ok(page.body)
}

/// At the same time.
fn for_each(hosts: &[&Host], services: &[ServiceAddress], check: fn(&Host, ServiceAddress)) {
    thread::scope(|scope| {
        for (host, service) in hosts.iter().flat_map(|host| services.iter().map(move |it| (*host, *it))) {
            scope.spawn(move || check(host, service));
        }
    });
}

pub(crate) struct Cluster {
    pub(crate) lab: Lab,
    pub(crate) manifests: tempfile::TempDir,
    daemon: Option<Daemon>,
}

impl Cluster {
    /// Makes the lab and starts the daemon on it.
    pub(crate) fn start(pods: u8, arguments: &[&str]) -> Self {
        let mut cluster = Self::without_daemon(pods);
        cluster.restart(arguments);
        cluster
    }

    /// Makes the lab.
    pub(crate) fn without_daemon(pods: u8) -> Self {
        let lab = Lab::new(pods, POD_PORT).unwrap();
        Self { lab, manifests: tempfile::tempdir().unwrap(), daemon: None }
    }

    /// Kills the daemon, if it runs, and starts it anew. It makes no pause between syncs: tests wait for
    /// what a sync does.
    pub(crate) fn restart(&mut self, arguments: &[&str]) {
        if let Some(daemon) = self.daemon.take() {
            daemon.kill().unwrap();
        }
        let arguments = [&["--ipvs-min-sync-period=0s"], arguments].concat();
        let daemon = Daemon::with_manifests(&self.lab.node, self.manifests.path(), &arguments).unwrap();
        eventually("the daemon answers", || daemon.ask(&self.lab.node, "status")).unwrap();
        self.daemon = Some(daemon);
    }

    /// Kills the daemon. What it programmed stays.
    pub(crate) fn stop(&mut self) {
        self.daemon.take().unwrap().kill().unwrap();
    }

    pub(crate) fn daemon(&self) -> &Daemon {
        self.daemon.as_ref().unwrap()
    }

    /// Makes sure that the kernel is as it should be: a sync of everything writes nothing.
    pub(crate) fn resync_writes_nothing(&self) {
        let said = self.daemon().ask(&self.lab.node, "resync").unwrap();
        assert!(said.starts_with("resynced: 0 operations"), "{said}");
    }

    /// Writes the Service and its slices.
    pub(crate) fn write(&self, service: &Service) {
        self.write_manifest(service.name(), &service.manifest(&self.lab));
    }

    /// Writes a file of manifests at one stroke.
    pub(crate) fn write_manifest(&self, name: &str, manifest: &serde_json::Value) {
        let file = self.manifests.path().join(name);
        fs::write(&file, manifest.to_string()).unwrap();
        fs::rename(&file, file.with_extension("json")).unwrap();
    }

    /// Writes the Service and its slices, and waits until each ClusterIP leads to each endpoint.
    pub(crate) fn apply(&self, service: &Service) {
        self.write(service);
        let (addresses, pods) = (service.cluster_addresses(), service.pods());
        self.serves_all(&addresses.into_iter().map(|address| (address, &pods[..])).collect::<Vec<_>>());
    }

    pub(crate) fn delete(&self, service: &Service) {
        fs::remove_file(self.manifests.path().join(service.name()).with_extension("json")).unwrap();
    }

    /// Waits until an address leads to exactly these pods, by number from 1, all at weight 1.
    pub(crate) fn serves(&self, address: ServiceAddress, pods: &[usize]) {
        self.serves_all(&[(address, pods)]);
    }

    /// The same for several addresses.
    pub(crate) fn serves_all(&self, wanted: &[(ServiceAddress, &[usize])]) {
        eventually("each address leads to its pods", || {
            let (table, local) = (self.table()?, self.local()?);
            for (address, pods) in wanted {
                let found = table.get(address).map(VirtualServer::weights);
                let pods = pods.iter().map(|pod| (self.pod_address(*pod, address.ip), 1)).collect();
                ensure!(found.as_ref() == Some(&pods), "{address} leads to {found:?}, not to {pods:?}");
                ensure!(local.contains(&address.ip), "{} is not an address of the node", address.ip);
            }
            Ok(())
        })
        .unwrap();
    }

    /// Waits until a pod, by number, is a real server of this weight at an address; `None`: it is none.
    pub(crate) fn weighs(&self, address: ServiceAddress, pod: usize, weight: Option<u32>) {
        eventually(&format!("pod {pod} with the weight {weight:?}"), || {
            let found = self.weight(address, pod)?;
            ensure!(found == weight, "{found:?}");
            Ok(())
        })
        .unwrap();
    }

    /// The weight of a pod, by number, at an address.
    pub(crate) fn weight(&self, address: ServiceAddress, pod: usize) -> anyhow::Result<Option<u32>> {
        let pod = self.pod_address(pod, address.ip);
        let table = self.table()?;
        let server = table.get(&address).and_then(|server| server.real_servers.get(&pod));
        Ok(server.map(|server| server.weight))
    }

    /// What the node takes for addresses of its own, in whatever way they are bound.
    fn local(&self) -> anyhow::Result<BTreeSet<IpAddr>> {
        let mut addresses = BTreeSet::new();
        for family in ["-4", "-6"] {
            let routes = self.lab.node.run("ip", &[family, "route", "show", "table", "local"])?;
            let destinations = routes.lines().filter_map(|line| line.split_whitespace().nth(1));
            addresses.extend(destinations.filter_map(|destination| destination.parse::<IpAddr>().ok()));
        }
        Ok(addresses)
    }

    /// Waits until an address is, or is not, on kube-ipvs0.
    pub(crate) fn is_bound(&self, vip: IpAddr, bound: bool) {
        eventually(&format!("{vip} is bound to kube-ipvs0: {bound}"), || {
            let addresses = self.bound()?;
            ensure!(addresses.contains(&vip) == bound, "{addresses:?}");
            Ok(())
        })
        .unwrap();
    }

    /// The addresses on kube-ipvs0.
    pub(crate) fn bound(&self) -> anyhow::Result<BTreeSet<IpAddr>> {
        let shown = self.lab.node.run("ip", &["-o", "addr", "show", "dev", "kube-ipvs0"])?;
        let mut addresses = BTreeSet::new();
        for line in shown.lines() {
            let prefix: ipnet::IpNet = line.split_whitespace().nth(3).unwrap_or_default().parse()?;
            addresses.insert(prefix.addr());
        }
        Ok(addresses)
    }

    /// Waits until `ipvsadm -Ln` satisfies `check`.
    pub(crate) fn ipvsadm(&self, what: &str, check: impl Fn(&str) -> bool) -> String {
        ipvsadm_shows(&self.lab.node, what, check).unwrap()
    }

    /// The same, read.
    pub(crate) fn shows(&self, what: &str, check: impl Fn(&Table) -> bool) {
        self.ipvsadm(what, |text| check(&table::parse(text)));
    }

    fn table(&self) -> anyhow::Result<Table> {
        Ok(table::parse(&self.lab.node.run("ipvsadm", &["-Ln"])?))
    }

    /// Where a pod listens, by number from 1.
    pub(crate) fn pod_address(&self, pod: usize, like: IpAddr) -> SocketAddr {
        SocketAddr::new(self.lab.pods[pod - 1].address(like), POD_PORT)
    }

    /// Lets a pod, by number from 1, treat what comes to its port by this protocol as nft says: `drop`, as if its node
    /// had lost power, or `reject with tcp reset`, as if nothing listened.
    pub(crate) fn answers_by(&self, pod: usize, protocol: &str, verdict: &str) {
        let rule = format!("add rule inet f i {protocol} dport {POD_PORT} {verdict}");
        let chain = "add chain inet f i { type filter hook input priority 0; }";
        for command in ["add table inet f", chain, &rule] {
            self.lab.pods[pod - 1].run("nft", &[command]).unwrap();
        }
    }

    /// Lets a pod answer again.
    pub(crate) fn answers_again(&self, pod: usize) {
        self.lab.pods[pod - 1].run("nft", &["flush", "ruleset"]).unwrap();
    }

    /// The names of pods by number, from 1.
    pub(crate) fn names(&self, pods: &[usize]) -> BTreeSet<String> {
        pods.iter().map(|number| self.lab.pods[number - 1].name.clone()).collect()
    }
}
