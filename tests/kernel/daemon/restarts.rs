//! The daemon is restarted, replaced, killed and configured anew on a node that is in use.

use std::{
    fs::{self, File},
    net::IpAddr,
    path::Path,
    process::{Child, Stdio},
    thread,
    time::Duration,
};

use anyhow::ensure;
use ipvs::{Ipvs as _, KernelIpvs, ObservedVirtualServer, ServiceAddress, VirtualServerId};
use serde_json::{Value, json};
use testkit::{
    daemon::{Daemon, eventually, eventually_within},
    lab::{CLUSTER_CIDR, Host, Tally},
};

use crate::support::{
    cluster::{self, Cluster, NO_PERIOD, Service},
    traffic::{self, Addresses},
};

/// How long traffic flows between two events.
pub(crate) const A_WHILE: Duration = Duration::from_secs(1);

pub(crate) const SERVICE: Addresses = Addresses {
    cluster_ips: [cluster::V4, cluster::V6],
    load_balancers: ["203.0.113.77", "2001:db8:77::1"],
    node_port: 30_777,
};

/// Writes the Service.
pub(crate) fn write_service(cluster: &Cluster) {
    let ports = ["TCP", "UDP"].map(|protocol| {
        json!({
            "name": protocol.to_lowercase(),
            "protocol": protocol,
            "port": 80,
            "nodePort": SERVICE.node_port,
        })
    });
    let ingress = SERVICE.load_balancers.map(|ip| json!({ "ip": ip }));
    let spec = json!({ "type": "LoadBalancer", "clusterIPs": SERVICE.cluster_ips, "ports": ports });
    let status = json!({ "status": { "loadBalancer": { "ingress": ingress } } });
    cluster.write(&Service::new("web", &spec).patch(&status).endpoints([1, 2]));
}

/// A program that reports changes of the kernel.
struct Monitor<'a> {
    node: &'a Host,
    child: Child,
    said: tempfile::NamedTempFile,
    /// Makes a change that it reports, and takes it back.
    passing: [&'static [&'static str]; 2],
    /// Its report of that change.
    sign: &'static str,
}

impl<'a> Monitor<'a> {
    /// Tells of nf_tables.
    fn nf_tables(node: &'a Host) -> Self {
        let passing: [&[&str]; 2] =
            [&["nft", "add", "table", "passing"], &["nft", "delete", "table", "passing"]];
        Self::start(node, &["nft", "monitor"], passing, "table ip passing")
    }

    /// Tells of links, addresses and routes.
    fn addresses(node: &'a Host) -> Self {
        let passing: [&[&str]; 2] = [
            // No address, for the daemon would serve NodePorts there.
            &["ip", "route", "add", "blackhole", "192.0.2.99"],
            &["ip", "route", "delete", "blackhole", "192.0.2.99"],
        ];
        Self::start(node, &["ip", "-oneline", "monitor", "link", "address", "route"], passing, "192.0.2.99")
    }

    fn start(
        node: &'a Host,
        program: &[&str],
        passing: [&'static [&'static str]; 2],
        sign: &'static str,
    ) -> Self {
        let said = tempfile::NamedTempFile::new().unwrap();
        let output = File::create(said.path()).unwrap();
        let mut command = node.command(program[0]);
        let child = command.args(&program[1..]).stdin(Stdio::null()).stdout(output).spawn().unwrap();
        let monitor = Self { node, child, said, passing, sign };
        monitor.reports();
        monitor
    }

    /// Waits until it reports changes.
    fn reports(&self) {
        let before = self.lines().len();
        eventually("the monitor reports", || {
            for change in self.passing {
                self.node.run(change[0], &change[1..])?;
            }
            ensure!(self.lines().len() > before, "nothing");
            Ok(())
        })
        .unwrap();
    }

    fn lines(&self) -> Vec<String> {
        fs::read_to_string(self.said.path()).unwrap().lines().map(str::to_owned).collect()
    }

    /// Ends it, and returns its reports, without those of the changes made to wait for it.
    fn finish(mut self) -> Vec<String> {
        self.reports();
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let foreign = |line: &String| !line.contains(self.sign) && !line.starts_with("# new generation");
        self.lines().into_iter().filter(foreign).collect()
    }
}

/// Starts a daemon and waits for its first sync.
fn start(cluster: &Cluster, arguments: &[&str]) -> Daemon {
    let daemon = Daemon::with_manifests(&cluster.lab.node, cluster.manifests.path(), arguments).unwrap();
    has_synced(&daemon, &cluster.lab.node);
    daemon
}

/// Waits for the first sync, and returns what it did.
pub(crate) fn has_synced(daemon: &Daemon, node: &Host) -> Value {
    let status = eventually("the daemon has synced", || {
        let status = daemon.status(node)?;
        ensure!(status["last_full_sync"].is_object(), "{status:#}");
        Ok(status)
    })
    .unwrap();
    let report = status["last_full_sync"]["report"].clone();
    assert_eq!(report["trigger"], "start", "{report:#}");
    assert_eq!(report["failed"], 0, "{report:#}");
    report
}

/// Tells it to end, as the kubelet does.
pub(crate) fn terminate(daemon: &Daemon, node: &Host) {
    node.run("kill", &["-TERM", &daemon.id().to_string()]).unwrap();
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_restart_under_load_loses_nothing_and_writes_nothing() {
    let cluster = Cluster::without_daemon(3);
    let node = &cluster.lab.node;
    let another_client = traffic::another_client(&cluster.lab);
    write_service(&cluster);
    let mut daemon = start(&cluster, &[NO_PERIOD]);
    let load = traffic::start(&traffic::targets(&cluster.lab, &another_client, SERVICE));
    let servers = node.run("ipvsadm", &["-Sn"]).unwrap();
    let monitors = [Monitor::nf_tables(node), Monitor::addresses(node)];
    for _ in 0..3 {
        thread::sleep(A_WHILE);
        terminate(&daemon, node);
        assert_eq!(daemon.ended().unwrap().0, Some(0));
        thread::sleep(A_WHILE);
        daemon = start(&cluster, &[NO_PERIOD]);
        let report = has_synced(&daemon, node);
        assert_eq!(report["done"], 0, "{report:#}");
    }
    thread::sleep(A_WHILE);
    let [nf_tables, addresses] = monitors.map(Monitor::finish);
    assert!(nf_tables.is_empty(), "nf_tables has changed: {nf_tables:#?}");
    assert!(addresses.is_empty(), "links, addresses or routes have changed: {addresses:#?}");
    assert_eq!(node.run("ipvsadm", &["-Sn"]).unwrap(), servers);
    traffic::is_whole(load);
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn the_next_version_is_started_before_the_last_one_ends_and_nothing_is_lost() {
    let cluster = Cluster::without_daemon(3);
    let node = &cluster.lab.node;
    let another_client = traffic::another_client(&cluster.lab);
    write_service(&cluster);
    let first = start(&cluster, &[NO_PERIOD]);
    let load = traffic::start(&traffic::targets(&cluster.lab, &another_client, SERVICE));
    thread::sleep(A_WHILE);
    let second = first.another(node, &["--manifests", &cluster.manifests.path().to_string_lossy()]).unwrap();
    eventually("the second one waits for its turn", || {
        ensure!(second.log().contains("waiting until it ends"), "{}", second.log());
        Ok(())
    })
    .unwrap();
    thread::sleep(A_WHILE);
    terminate(&first, node);
    eventually("the second one has its turn", || {
        ensure!(second.log().contains("kube-ipvs starts"), "{}", second.log());
        Ok(())
    })
    .unwrap();
    let report = has_synced(&second, node);
    assert_eq!(report["done"], 0, "{report:#}");
    thread::sleep(A_WHILE);
    traffic::is_whole(load);
}

/// How often the daemon is killed.
const KILLS: u32 = 20;

/// How many Services come and go, so that a sync takes a while.
const MANY: u32 = 500;

/// Services at `10.97.x.y` or, the next time, at `10.98.x.y`, each with an endpoint.
fn write_many(cluster: &Cluster, round: u32) {
    let network = 97 + round % 2;
    let items = (0..MANY).flat_map(|number| {
        let name = format!("many-{number}");
        let vip = format!("10.{network}.{}.{}", number / 256, number % 256);
        let service = json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": { "name": name, "namespace": "default" },
            "spec": { "clusterIP": vip, "clusterIPs": [vip], "ports": [{ "port": 80 }] },
        });
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": name,
                "namespace": "default",
                "labels": { "kubernetes.io/service-name": name },
            },
            "addressType": "IPv4",
            "ports": [{ "port": cluster::POD_PORT }],
            "endpoints": [{
                "addresses": [cluster.lab.pods[0].ipv4],
                "nodeName": "node",
                "conditions": { "ready": true },
            }],
        });
        [service, slice]
    });
    let items: Value = items.collect();
    cluster.write_manifest("many", &json!({ "apiVersion": "v1", "kind": "List", "items": items }));
}

/// How many virtual servers are where the Services are in this round.
fn of_round(kernel: &mut KernelIpvs, round: u32) -> usize {
    let network = u8::try_from(97 + round % 2).unwrap();
    let is_there = |server: &ObservedVirtualServer| match server.config.id {
        VirtualServerId::Address(ServiceAddress { ip: IpAddr::V4(ip), .. }) => ip.octets()[1] == network,
        _ => false,
    };
    kernel.virtual_servers().unwrap().iter().filter(|server| is_there(server)).count()
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_daemon_killed_during_syncs_loses_nothing_and_the_next_one_finishes() {
    let cluster = Cluster::without_daemon(3);
    let node = &cluster.lab.node;
    let mut kernel = node.inside(KernelIpvs::open).unwrap().unwrap();
    let another_client = traffic::another_client(&cluster.lab);
    write_service(&cluster);
    write_many(&cluster, 0);
    drop(start(&cluster, &[NO_PERIOD]));
    let load = traffic::start(&traffic::targets(&cluster.lab, &another_client, SERVICE));

    let mut in_the_middle = 0;
    for round in 1..=KILLS {
        write_many(&cluster, round);
        let daemon = Daemon::with_manifests(node, cluster.manifests.path(), &[NO_PERIOD]).unwrap();
        // In software emulation it takes its time to read so many Services.
        eventually_within(Duration::from_secs(120), "the sync has begun", || {
            ensure!(of_round(&mut kernel, round) > 0, "nothing has changed yet");
            Ok(())
        })
        .unwrap();
        thread::sleep(Duration::from_millis((round * 7 % KILLS).into()));
        daemon.kill().unwrap();
        // What is not wanted any more goes last of all.
        in_the_middle += u32::from(of_round(&mut kernel, round + 1) > 0);
    }
    println!("{in_the_middle} of {KILLS} were killed in the middle of a sync");
    assert!(in_the_middle > 0);

    let _last = start(&cluster, &[NO_PERIOD]);
    let there = [0, 1].map(|round| of_round(&mut kernel, KILLS + round));
    assert_eq!(there, [MANY as usize, 0]);
    traffic::is_whole(load);
}

/// A configuration file with these settings of ipvs mode.
fn configuration(scheduler: &str, strict_arp: bool) -> String {
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "ipvs",
        "clusterCIDR": CLUSTER_CIDR,
        "hostnameOverride": "node",
        "ipvs": { "scheduler": scheduler, "strictARP": strict_arp, "syncPeriod": "1h" },
    })
    .to_string()
}

/// Changes the configuration file, for which the daemon ends, and starts the one that the kubelet would start.
fn configured_anew(cluster: &Cluster, daemon: Daemon, file: &Path, configuration: &str) -> Daemon {
    fs::write(file, configuration).unwrap();
    let (code, said) = daemon.ended().unwrap();
    assert_eq!(code, Some(1), "{said}");
    start(cluster, &[&format!("--config={}", file.display())])
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn another_configuration_takes_effect_and_loses_nothing() {
    let cluster = Cluster::without_daemon(3);
    let node = &cluster.lab.node;
    let config = tempfile::NamedTempFile::new().unwrap();
    fs::write(config.path(), configuration("rr", false)).unwrap();
    let another_client = traffic::another_client(&cluster.lab);
    write_service(&cluster);
    let daemon = start(&cluster, &[&format!("--config={}", config.path().display())]);
    let arp_ignore = || node.run("cat", &["/proc/sys/net/ipv4/conf/all/arp_ignore"]).unwrap();
    assert_eq!(arp_ignore().trim(), "0");
    let load = traffic::start(&traffic::targets(&cluster.lab, &another_client, SERVICE));
    thread::sleep(A_WHILE);

    let _daemon = configured_anew(&cluster, daemon, config.path(), &configuration("rr", true));
    assert_eq!(arp_ignore().trim(), "1");
    thread::sleep(A_WHILE);
    traffic::is_whole(load);
}

/// One that waits for its turn tries nothing: it shows when it has the turn.
#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_scheduler_that_the_kernel_lacks_is_a_warning_until_the_file_names_another() {
    let cluster = Cluster::without_daemon(0);
    let node = &cluster.lab.node;
    let config = tempfile::NamedTempFile::new().unwrap();
    fs::write(config.path(), configuration("rr", false)).unwrap();
    let flag = format!("--config={}", config.path().display());
    let daemon = start(&cluster, &[&flag]);
    let manifests = cluster.manifests.path().display().to_string();
    let second = daemon.another(node, &[&flag, "--manifests", &manifests]).unwrap();
    eventually("the second one waits", || {
        ensure!(second.log().contains("another kube-ipvs runs on this node"), "{}", second.log());
        Ok(())
    })
    .unwrap();

    fs::write(config.path(), configuration("nonesuch", false)).unwrap();
    eventually("the node does not suit", || {
        let status = daemon.ask(node, "status")?;
        ensure!(status.contains("ip_vs_nonesuch") && status.contains("continuing with"), "{status}");
        Ok(())
    })
    .unwrap();
    let (_, said) = second.ended().unwrap();
    assert!(said.contains("the configuration has changed; exiting"), "{said}");

    let _daemon = configured_anew(&cluster, daemon, config.path(), &configuration("lc", false));
}

/// While the kernel changes a scheduler there is none (`ip_vs_edit_service` takes the old one away and waits for a
/// grace period): a connection that begins just then is refused, with any program that makes the change.
#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn another_scheduler_is_written_in_place_and_open_connections_stay() {
    let cluster = Cluster::without_daemon(3);
    let config = tempfile::NamedTempFile::new().unwrap();
    fs::write(config.path(), configuration("rr", false)).unwrap();
    let another_client = traffic::another_client(&cluster.lab);
    write_service(&cluster);
    let daemon = start(&cluster, &[&format!("--config={}", config.path().display())]);
    let load = traffic::start(&traffic::targets(&cluster.lab, &another_client, SERVICE));
    thread::sleep(A_WHILE);

    let _daemon = configured_anew(&cluster, daemon, config.path(), &configuration("lc", false));
    cluster.shows("every virtual server has the new scheduler", |table| {
        table.values().all(|server| server.how == "lc")
    });
    thread::sleep(A_WHILE);
    for Tally { target, long_lived, .. } in traffic::finish(load) {
        assert_eq!(long_lived.failed, 0, "long-lived connections: {target}");
    }
}
