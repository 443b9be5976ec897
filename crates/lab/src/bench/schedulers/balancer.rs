//! A node's own choice: its table of IPVS, or chance.

use std::{
    io::Read as _,
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use fastrand::Rng;
use ipvs::{Command, Ipvs as _, KernelIpvs, Protocol, RealServer, Scheduler, ServiceAddress, VirtualServer};
use tokio::{
    io::AsyncReadExt as _,
    net, runtime,
    task::JoinSet,
    time::{sleep_until, timeout},
};

use super::pods::REFUSED;

/// A request without an answer is given up after this time.
const PATIENCE: Duration = Duration::from_millis(1_600);
/// Where every node serves.
const VIP: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 96, 0, 1));

/// What chooses.
#[derive(Clone, Copy)]
pub(super) enum Chooser {
    /// Each pod is as probable, as in nftables mode (`numgen random`). The client itself draws it, and asks it directly.
    Chance,
    /// IPVS.
    Scheduler(Scheduler),
}

/// The choice of one node.
pub(super) struct Balancer {
    chooser: Chooser,
    vip: ServiceAddress,
    /// The pods that it chooses from, by address.
    pods: Vec<SocketAddr>,
    rng: Rng,
}

/// An answered request: the pod's number and how long it took. `None` if it was refused or not answered in time.
pub(super) type Reply = Option<(u8, f64)>;

impl Balancer {
    /// Writes the table of this thread's network namespace. The first pod in the kernel's list is another on each node,
    /// as with kube-ipvs.
    pub(super) fn new(chooser: Chooser, port: u16, mut pods: Vec<SocketAddr>, mut rng: Rng) -> Result<Self> {
        let vip = ServiceAddress { protocol: Protocol::Tcp, ip: VIP, port };
        let first = rng.usize(..pods.len());
        pods.rotate_left(first);
        if let Chooser::Scheduler(scheduler) = chooser {
            let add = |pod: &SocketAddr| Command::AddRealServer(vip.into(), real_server(*pod));
            let server = Command::AddVirtualServer(VirtualServer::new(vip, scheduler));
            apply(&[server].into_iter().chain(pods.iter().map(add)).collect::<Vec<_>>())?;
        }
        Ok(Self { chooser, vip, pods, rng })
    }

    /// Where the next connection is opened.
    fn target(&mut self) -> SocketAddr {
        match self.chooser {
            Chooser::Chance => self.rng.choice(&self.pods).copied().unwrap_or(SocketAddr::new(VIP, 0)),
            Chooser::Scheduler(_) => SocketAddr::new(self.vip.ip, self.vip.port),
        }
    }

    /// Opens a connection that stays. Returns it with the number of its pod.
    pub(super) fn open(&mut self) -> Result<(u8, TcpStream)> {
        let mut stream = TcpStream::connect(self.target())?;
        let mut answer = [0];
        stream.read_exact(&mut answer)?;
        let [number] = answer;
        Ok((number, stream))
    }

    /// Puts one pod in the place of another, which drains, as kube-ipvs does.
    pub(super) fn replace(&mut self, old: SocketAddr, new: SocketAddr) -> Result<()> {
        self.pods.retain(|pod| *pod != old);
        self.pods.push(new);
        match self.chooser {
            Chooser::Chance => Ok(()),
            Chooser::Scheduler(_) => apply(&[
                Command::AddRealServer(self.vip.into(), real_server(new)),
                Command::EditRealServer(self.vip.into(), real_server(old).weight(0)),
            ]),
        }
    }

    /// Makes a request at each of these times, whatever has become of those before.
    pub(super) fn request(mut self, begin: Instant, times: &[Duration]) -> Result<Vec<Reply>> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(runtime.block_on(async {
            let mut requests = JoinSet::new();
            for time in times {
                sleep_until((begin + *time).into()).await;
                let target = self.target();
                requests.spawn(async move {
                    let begun = Instant::now();
                    let number = timeout(PATIENCE, ask(target)).await.ok()?.ok()?;
                    (number != REFUSED).then(|| (number, begun.elapsed().as_secs_f64()))
                });
            }
            requests.join_all().await
        }))
    }
}

async fn ask(target: SocketAddr) -> Result<u8> {
    Ok(net::TcpStream::connect(target).await?.read_u8().await?)
}

fn real_server(pod: SocketAddr) -> RealServer {
    RealServer::masquerade(pod.ip(), pod.port())
}

fn apply(commands: &[Command]) -> Result<()> {
    let refused = KernelIpvs::open()?.apply(commands)?;
    ensure!(refused.is_empty(), "the kernel refused some: {refused:?}");
    Ok(())
}
