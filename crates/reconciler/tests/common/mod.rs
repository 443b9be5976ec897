//! A reconciler on the fake kernel, and the objects it is fed with.
#![allow(
    dead_code,
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "each test file uses a part of this; a test that cannot go on must stop"
)]

use std::{
    collections::BTreeSet,
    net::IpAddr,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use ipvs::{Family, Protocol, RealServerAddress, ServiceAddress};
use reconciler::{Handle, Periods, start};
use service::{
    Change, Endpoint, EndpointPort, EndpointSlice, ObjectName, Options, Service, ServicePort, State,
};
use testkit::FakeKernel;
use watcher::{Kernel, Ownership};

pub(crate) const LONG: Duration = Duration::from_secs(3600);

/// A running reconciler. It is stopped when dropped.
pub(crate) struct Running {
    pub(crate) kernel: FakeKernel,
    pub(crate) handle: Handle,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    /// Starts one that syncs on changes and when asked only.
    pub(crate) fn on(kernel: &FakeKernel) -> Self {
        Self::with(kernel, Periods { sync: LONG, min_sync: Duration::ZERO }, &[])
    }

    pub(crate) fn with(kernel: &FakeKernel, periods: Periods, exclude: &[&str]) -> Self {
        let (ipvs, netfilter, links) = kernel.seams();
        let options = Options::new("node");
        let ours = Ownership {
            families: BTreeSet::from(Family::BOTH),
            exclude: exclude.iter().map(|range| range.parse().unwrap()).collect(),
        };
        let (handle, thread) =
            start(State::new(options), Kernel { ipvs, netfilter, links }, ours, periods).unwrap();
        Self { kernel: kernel.clone(), handle, thread: Some(thread) }
    }

    pub(crate) fn tell(&self, change: Change) {
        self.handle.change(change).unwrap();
    }

    /// Tells both lists, and waits for the first sync.
    pub(crate) fn lists(&self, services: Vec<Service>, slices: Vec<EndpointSlice>) {
        self.tell(Change::ReplaceServices(services));
        self.tell(Change::ReplaceSlices(slices));
        self.settled();
    }

    /// Waits until everything that was told is in the kernel.
    pub(crate) fn settled(&self) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !self.handle.status().unwrap().synced {
            assert!(Instant::now() < deadline, "{:?}", self.handle.status());
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.handle.stop();
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the writer thread panicked");
        }
    }
}

pub(crate) fn service(name: &str, ip: &str, protocol: Protocol) -> Service {
    Service {
        created: Some(0),
        cluster_ips: vec![ip.parse().unwrap()],
        ports: vec![ServicePort { name: "".into(), protocol, port: 80, node_port: None }],
        ..Service::new(ObjectName::new("default", name))
    }
}

pub(crate) fn slice(service: &str, protocol: Protocol, addresses: &[&str]) -> EndpointSlice {
    EndpointSlice {
        name: ObjectName::new("default", format!("{service}-1")),
        service: ObjectName::new("default", service),
        family: Family::of(addresses.first().map_or(IpAddr::from([0, 0, 0, 0]), |a| a.parse().unwrap())),
        ports: vec![EndpointPort { name: "".into(), protocol, port: 8080 }],
        endpoints: addresses.iter().map(|address| endpoint(address)).collect(),
        problems: Vec::new(),
    }
}

pub(crate) fn endpoint(address: &str) -> Endpoint {
    Endpoint {
        address: address.parse().unwrap(),
        ready: true,
        serving: true,
        terminating: false,
        node: Some("node".into()),
        zone_hints: Box::default(),
        node_hints: Box::default(),
    }
}

pub(crate) fn at(ip: &str, protocol: Protocol) -> ServiceAddress {
    ServiceAddress { protocol, ip: ip.parse().unwrap(), port: 80 }
}

pub(crate) fn real(ip: &str) -> RealServerAddress {
    RealServerAddress { ip: ip.parse().unwrap(), port: 8080 }
}
