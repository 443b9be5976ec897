//! The recording: what kube-ipvs does when another program clears IPVS, a pod goes silent, or a rule drops packets.
//!
//! Clients connect throughout. All that is shown was typed and printed in the test kernel.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use guest::workspace;
use testkit::{
    daemon::{Daemon, binary, ipvsadm_shows},
    lab::{Host, Lab},
};

use super::{clients::Clients, recording::Recording};
use crate::stage::objects::POD_PORT;

const SERVICE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 96, 0, 10)), 80);

/// How long a command stands there until it is run.
const TYPED: Duration = Duration::from_millis(800);

/// How long what it printed stands there until the next.
const NEXT: Duration = Duration::from_millis(2200);

/// Makes the recording.
pub(super) fn record() -> Result<Recording> {
    let mut lab = Lab::new(2, POD_PORT)?;
    let other_node = lab.add_pod_on_another_node("eth1", "another-node", POD_PORT)?;
    let files = tempfile::tempdir()?;
    let manifests = files.path().join("manifests");
    fs::create_dir(&manifests)?;
    fs::copy(workspace::root().join("docs/examples/node.yaml"), manifests.join("node.yaml"))?;
    fs::write(manifests.join("web.yaml"), include_str!("tour.yaml"))?;
    let daemon = Daemon::with_manifests(&lab.node, &manifests, &[])?;
    ipvsadm_shows(&lab.node, "three endpoints", |table| table.matches("-> 10.244").count() == 3)?;
    write_program(files.path(), &daemon)?;

    let clients = Clients::default();
    thread::scope(|scope| {
        scope.spawn(|| clients.connect(&lab.client, SERVICE));
        let mut tour = Tour {
            lab: &lab,
            clients: &clients,
            programs: files.path().to_owned(),
            recording: Recording::default(),
        };
        // Who answers in a second is known after one.
        thread::sleep(Duration::from_secs(2));
        let finished = tour.cleared().and_then(|()| tour.silent(&other_node)).and_then(|()| tour.dropped());
        clients.stop();
        finished.map(|()| tour.recording)
    })
}

/// `kube-ipvs` as on a node: this daemon has its socket elsewhere.
fn write_program(directory: &Path, daemon: &Daemon) -> Result<()> {
    let (binary, socket) = (binary()?, daemon.socket().display().to_string());
    let path = directory.join("kube-ipvs");
    fs::write(&path, format!("#!/bin/sh\nexec {} \"$@\" --control-socket {socket}\n", binary.display()))?;
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(0o755))?)
}

/// A recording in the making.
struct Tour<'a> {
    lab: &'a Lab,
    clients: &'a Clients,
    programs: PathBuf,
    recording: Recording,
}

impl Tour<'_> {
    fn cleared(&mut self) -> Result<()> {
        self.recording.scene("1/3  Another program clears the node's IPVS table");
        self.types("ipvsadm -Ln | tail -n 4", "")?;
        thread::sleep(NEXT);
        self.types("ipvsadm -C; kube-ipvs diff", "")?;
        thread::sleep(NEXT);
        self.types("ipvsadm -Ln | tail -n 4", "")?;
        thread::sleep(NEXT);
        self.types("kube-ipvs history default/web | tail -n 1", "repaired")?;
        self.end();
        Ok(())
    }

    fn silent(&mut self, other_node: &Host) -> Result<()> {
        self.recording.scene("2/3  A pod goes silent; Kubernetes still lists it as ready");
        thread::sleep(TYPED);
        let pod = self.lab.pods.last().context("a pod on another node")?;
        let address = pod.ipv4.to_string();
        self.types_on(other_node, &format!("ip route add blackhole {address}"), "")?;
        let begun = Instant::now();
        ipvsadm_shows(&self.lab.node, "it gets no new connections", |table| {
            table.lines().any(|line| line.contains(&address) && line.contains("Masq    0 "))
        })?;
        let seconds = begun.elapsed().as_secs_f64();
        ensure!(seconds < 5.0, "it was ejected after {seconds} s only");
        self.recording.printed(&format!("# it gets no new connections after {seconds:.1} s"), "#");
        self.types("kube-ipvs explain default/web | grep :8080", "ejected")?;
        thread::sleep(NEXT);
        self.types("kube-ipvs history default/web | tail -n 1", "no new connections")?;
        self.end();
        other_node.run("ip", &["route", "del", "blackhole", &address])?;
        ipvsadm_shows(&self.lab.node, "all weights are the same", |table| {
            let weights = table.lines().filter(|line| line.contains("-> 10.244"));
            let weights: Vec<_> = weights.filter_map(|line| line.split_whitespace().nth(3)).collect();
            weights.windows(2).all(|two| two.first() == two.last())
        })?;
        Ok(())
    }

    fn dropped(&mut self) -> Result<()> {
        self.recording.scene("3/3  A firewall rule drops the answers of the pods");
        thread::sleep(TYPED);
        self.types("iptables -A FORWARD -s 10.244.0.0/16 -d 192.168.50.0/24 -j DROP", "")?;
        self.types("kube-ipvs trace default/web --count 1 | tail -n 4", "drop")?;
        thread::sleep(NEXT);
        self.types("iptables -D FORWARD 1", "")?;
        self.end();
        Ok(())
    }

    /// Types a command on the node.
    fn types(&mut self, command: &str, words: &str) -> Result<()> {
        let node = &self.lab.node;
        self.types_on(node, command, words)
    }

    /// Types a command, and records what it prints.
    fn types_on(&mut self, host: &Host, command: &str, words: &str) -> Result<()> {
        self.recording.typed(&format!("{}$ {command}", host.name));
        thread::sleep(TYPED);
        let path = std::env::var("PATH").unwrap_or_default();
        let mut shell = host.command("sh");
        shell.args(["-c", command]).env("PATH", format!("{}:{path}", self.programs.display()));
        let output = shell.output().with_context(|| command.to_owned())?;
        // A progress line comes before what it announces.
        for printed in [output.stderr, output.stdout] {
            self.recording.printed(&String::from_utf8_lossy(&printed), words);
        }
        Ok(())
    }

    fn end(&mut self) {
        let (clients, pods) = (self.clients, &self.lab.pods);
        self.recording.end(|moment| clients.last_second(pods, moment));
    }
}
