//! The pods: ports of one host, behind each of which some workers take their time.

use std::{
    net::{IpAddr, SocketAddr, TcpListener},
    sync::Arc,
    time::Duration,
};

use anyhow::Result;
use testkit::lab::Host;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    runtime::{self, Runtime},
    select,
    sync::Semaphore,
    time,
};

/// What a pod that has no place for a request answers; any other answer is the number of the pod.
pub(super) const REFUSED: u8 = u8::MAX;

/// What a pod can do.
#[derive(Clone, Copy)]
pub(super) struct Capacity {
    /// How many requests it serves at once.
    pub(super) workers: u32,
    /// What each takes; it sleeps.
    pub(super) service: Duration,
    /// How many more requests wait. Others are refused.
    pub(super) waiting: u32,
}

/// Pods that run until this is dropped.
pub(super) struct Pods {
    address: IpAddr,
    first: u16,
    _runtime: Runtime,
}

/// One of them.
struct Pod {
    number: u8,
    service: Duration,
    workers: Semaphore,
    /// For the requests that are served and those that wait.
    places: Semaphore,
}

impl Capacity {
    pub(super) const fn new(workers: u32, service: Duration, waiting: u32) -> Self {
        Self { workers, service, waiting }
    }

    /// Requests per second.
    pub(super) fn rate(self) -> f64 {
        f64::from(self.workers) / self.service.as_secs_f64()
    }
}

impl Pods {
    /// Starts a pod at each port from `first` on.
    pub(super) fn start(host: &Host, first: u16, capacities: &[Capacity]) -> Result<Self> {
        let address = host.ipv4;
        let ports = first..first + u16::try_from(capacities.len())?;
        let listeners = host.inside(move || {
            ports.map(|port| TcpListener::bind((address, port))).collect::<Result<Vec<_>, _>>()
        })??;
        let runtime = runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        for ((number, listener), capacity) in (0..).zip(listeners).zip(capacities) {
            runtime.spawn(listen(listener, Pod::new(number, *capacity)));
        }
        Ok(Self { address: address.into(), first, _runtime: runtime })
    }

    /// Where the pod of this number listens.
    pub(super) fn address(&self, number: u8) -> SocketAddr {
        SocketAddr::new(self.address, self.first + u16::from(number))
    }
}

async fn listen(listener: TcpListener, pod: Pod) -> Result<()> {
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let pod = Arc::new(pod);
    loop {
        let (stream, _) = listener.accept().await?;
        let pod = Arc::clone(&pod);
        // A client that breaks off is not a failure.
        tokio::spawn(async move { pod.serve(stream).await });
    }
}

impl Pod {
    fn new(number: u8, capacity: Capacity) -> Self {
        let Capacity { workers, service, waiting } = capacity;
        let semaphore = |permits: u32| Semaphore::new(permits as usize);
        let (workers, places) = (semaphore(workers), semaphore(workers + waiting));
        Self { number, service, workers, places }
    }

    /// Answers, and leaves it to the client to close the connection, which it may hold.
    async fn serve(&self, mut stream: TcpStream) -> Result<()> {
        let answer = match self.places.try_acquire() {
            Err(_) => REFUSED,
            Ok(_place) => {
                let _worker = select! {
                    worker = self.workers.acquire() => worker?,
                    _ = stream.read_u8() => return Ok(()),
                };
                time::sleep(self.service).await;
                self.number
            }
        };
        stream.write_u8(answer).await?;
        // Until the client closes it.
        stream.read_u8().await?;
        Ok(())
    }
}
