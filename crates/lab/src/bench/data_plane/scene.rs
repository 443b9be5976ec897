//! A node that one variant has set up, with two pods and a client.

use std::{
    net::{IpAddr, SocketAddr},
    thread,
    time::{Duration, Instant, UNIX_EPOCH},
};

use anyhow::{Context as _, Result, ensure};
use ipvs::Family;
use testkit::{
    daemon::{eventually, eventually_within},
    kernel_baseline::Size,
    lab::{Host, Lab},
};

use super::{
    Effort, by_hand,
    cluster::{self, Cluster},
    figures::Variant,
    processor_clock::ProcessorClock,
    traffic,
    way::{Traffic, Way},
};
use crate::bench::{
    case::{Binding, Program},
    node::{Node, Process, between, programmed},
};

/// Where the pods of every lab listen; no traffic goes there.
const UNUSED: u16 = 8080;
/// How long a program may take until everything is in the kernel.
const PATIENCE: Duration = Duration::from_secs(300);

/// A node, and who set it up.
pub(super) struct Scene {
    pub(super) variant: Variant,
    lab: Lab,
}

impl Scene {
    /// Sets it up. What did so has ended.
    pub(super) fn new(variant: Variant, cluster: &Cluster) -> Result<Self> {
        let lab = Lab::new(2, UNUSED)?;
        // As in life; and VIPs as routes have the node's own address by it.
        lab.node.ip(&format!(
            "route add default via {}\nroute add ::/0 via {}",
            lab.client.ipv4, lab.client.ipv6
        ))?;
        let scene = Self { variant, lab };
        // In all namespaces together they would be most of what is measured.
        scene.estimate(false);
        traffic::start(scene.server()?)?;
        match variant {
            Variant::Straight => Ok(scene),
            Variant::ByHand | Variant::ByHandWithoutConntrack => {
                let served = cluster.served(addresses(&scene.lab.node), addresses(scene.server()?));
                by_hand::set_up(&scene.lab.node, served, variant == Variant::ByHand)?;
                scene.is_ready()?;
                Ok(scene)
            }
            Variant::Program(program) => scene.program(program, &[], cluster),
            Variant::Untracked => {
                let program = Program::KubeIpvs(Binding::Address);
                scene.program(program, &["--untracked-services=annotated"], cluster)
            }
        }
    }

    /// Lets a program set it up.
    fn program(self, program: Program, arguments: &[&str], cluster: &Cluster) -> Result<Self> {
        let objects = cluster.objects(addresses(&self.lab.node), addresses(self.server()?));
        let size = Size { services: cluster.services(), endpoints: 1 };
        let Self { variant, lab } = self;
        let node = Node::with(lab, size, objects)?;
        let running = node.start(program, arguments)?;
        eventually_within(PATIENCE, "both families are in the kernel", || {
            let complete = node.api.lists()?.complete;
            for family in ["IPv4", "IPv6"] {
                let ended = node.syncs_of(family)?.last_ended;
                ensure!(
                    ended > between(UNIX_EPOCH, complete)?,
                    "no sync of {family} has ended since the lists are complete"
                );
            }
            Ok(())
        })
        .with_context(|| running.last_words())?;
        if let Process::KubeIpvs(daemon) = &running.process {
            eventually("it finds nothing to do any more", || {
                let answer = daemon.ask(&node.lab.node, "resync")?;
                ensure!(answer.starts_with("resynced: 0 operations"), "{answer}");
                Ok(())
            })?;
        }
        let scene = Self { variant, lab: node.lab };
        scene.is_ready().with_context(|| running.last_words())?;
        scene.is_complete(program, cluster.services() as usize)?;
        Ok(scene)
    }

    /// Waits until each way leads to the server.
    fn is_ready(&self) -> Result<()> {
        for (way, family) in Way::in_both_families() {
            let to = self.destination(way, family)?;
            eventually(&format!("{way}: {to} answers"), || {
                self.origin(way)?.inside(move || traffic::try_out(to))?
            })?;
        }
        Ok(())
    }

    /// Fails unless the kernel has every Service in both families.
    fn is_complete(&self, program: Program, services: usize) -> Result<()> {
        let [ports, endpoints] = programmed(&self.lab.node, program)?;
        let found = ports.or(endpoints).unwrap_or_default();
        ensure!(found >= services * 2, "{found} for {services} Services in both families");
        Ok(())
    }

    /// Sends something on a way, and returns the seconds of the processor for each.
    pub(super) fn measure(
        &self,
        traffic: Traffic,
        (way, family): (Way, Family),
        operations: u32,
        clock: &ProcessorClock,
    ) -> Result<f64> {
        let (to, clock) = (self.destination(way, family)?, clock.clone());
        self.origin(way)?.inside(move || traffic::run(traffic, to, operations, &clock))?
    }

    /// The part of the processor that is used while nothing happens.
    pub(super) fn idle(effort: Effort, clock: &ProcessorClock) -> Result<f64> {
        let (begun, spent) = (Instant::now(), clock.now()?);
        thread::sleep(effort.idle());
        Ok((clock.now()? - spent) / begun.elapsed().as_secs_f64())
    }

    /// Switches the estimators of IPVS on or off. Returns whether the kernel can do that.
    pub(super) fn estimate(&self, on: bool) -> bool {
        let setting = format!("net.ipv4.vs.run_estimation={}", u8::from(on));
        self.lab.node.run("sysctl", &["-qw", &setting]).is_ok()
    }

    fn origin(&self, way: Way) -> Result<&Host> {
        match way {
            Way::PodToClusterIp => self.lab.pods.first().context("no pod that asks"),
            Way::NodeToClusterIp => Ok(&self.lab.node),
            Way::OutsideToNodePort | Way::OutsideToLoadBalancer => Ok(&self.lab.client),
        }
    }

    fn server(&self) -> Result<&Host> {
        self.lab.pods.last().context("no pod that answers")
    }

    fn destination(&self, way: Way, family: Family) -> Result<SocketAddr> {
        let vip = cluster::cluster_ip(0, family);
        if self.variant == Variant::Straight {
            return Ok(SocketAddr::new(self.server()?.address(vip), traffic::PORT));
        }
        Ok(match way {
            Way::PodToClusterIp | Way::NodeToClusterIp => SocketAddr::new(vip, cluster::PORT),
            Way::OutsideToNodePort => SocketAddr::new(self.lab.node.address(vip), cluster::NODE_PORT),
            Way::OutsideToLoadBalancer => SocketAddr::new(cluster::load_balancer(family), cluster::PORT),
        })
    }
}

fn addresses(host: &Host) -> [IpAddr; 2] {
    [host.ipv4.into(), host.ipv6.into()]
}
