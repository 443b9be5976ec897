//! The least that the kernel needs for a number of Services: the same operations, encoded and sent
//! in one batch each, and nothing else.
//!
//! Every Service has one VIP and one TCP port. The functions work in the calling thread's network namespace,
//! whose `lo` must be up: until the first address there is no local table, and then every address counts as
//! broadcast, which IPVS refuses as a real server (`inet_addr_type` in net/ipv4/fib_frontend.c).

use std::{fmt, fs, hint::black_box, net::Ipv4Addr, time::Instant};

use anyhow::{Result, ensure};
use dummy_interface::{DummyInterface, KernelDummyInterface, VipBinding};
use ipvs::{
    Command, Family, Ipvs, KernelIpvs, Protocol, RealServer, Scheduler, ServiceAddress, VirtualServer,
};
use netfilter::{Element, KernelNetfilter, LocalTraffic, Netfilter, Operation, Policy};
use netlink::{Batch, Socket};
use serde::{Deserialize, Serialize};

/// The port of every Service.
pub const PORT: u16 = 80;
/// The port of every endpoint.
pub const TARGET_PORT: u16 = 8080;

/// How many Services, and endpoints of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Size {
    /// Services.
    pub services: u32,
    /// Endpoints of each.
    pub endpoints: u32,
}

impl Size {
    /// The numbers of a Service's endpoints among all endpoints.
    pub fn endpoints_of(self, service: u32) -> std::ops::Range<u32> {
        service * self.endpoints..(service + 1) * self.endpoints
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} × {}", self.services, self.endpoints)
    }
}

/// How long a complete read of the kernel takes, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    /// Virtual and real servers by netlink: one dump, and one for each virtual server.
    pub ipvs_by_netlink: f64,
    /// Virtual and real servers as text, `/proc/net/ip_vs`, not parsed.
    pub ipvs_as_text: f64,
    /// The VIPs, and our nf_tables tables.
    pub rest: f64,
}

impl Reading {
    /// The cheapest way to read everything.
    pub fn cheapest(self) -> f64 {
        self.ipvs_by_netlink.min(self.ipvs_as_text) + self.rest
    }
}

/// The VIP of the Service of this number.
pub fn vip(number: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 96, 0, 1)) + number)
}

/// The endpoint of this number.
pub fn pod(number: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 244, 0, 1)) + number)
}

/// The address and port of the Service of this number.
pub fn address(number: u32) -> ServiceAddress {
    ServiceAddress { protocol: Protocol::Tcp, ip: vip(number).into(), port: PORT }
}

/// The policy of the daemon with `--cluster-cidr`.
pub fn policy() -> Policy {
    let local_traffic = LocalTraffic::Source { ipv4: "10.244.0.0/16".parse().ok(), ipv6: None };
    Policy::new(local_traffic)
}

/// Writes everything: elements, virtual and real servers, VIPs. Returns the seconds, in which the requests are encoded
/// too.
pub fn write(size: Size, binding: VipBinding) -> Result<f64> {
    let mut ipvs = KernelIpvs::open()?;
    let mut generic = Socket::open(netlink::Protocol::Generic)?;
    let family = generic.generic_family("IPVS")?;

    let mut tables = KernelNetfilter::open(&policy())?;
    tables.apply(&[Operation::InstallTable(Family::V4)])?;
    let mut netfilter = Socket::open(netlink::Protocol::Netfilter)?;

    let mut dummy_interface = KernelDummyInterface::open(binding)?;
    dummy_interface.apply(&[dummy_interface::Operation::EnsureDevice])?;
    let mut route = Socket::open(netlink::Protocol::Route)?;

    // Loads what the kernel has as modules.
    ipvs.info()?;
    let (elements, commands) = (elements(size), commands(size));
    let start = Instant::now();
    netfilter.transact(&mut netfilter::wire::encode(&elements))?;
    let mut servers = Batch::default();
    ipvs::wire::encode(family, &commands, &mut servers);
    let refused = generic.pipeline(&mut servers)?;
    let unbound = route.pipeline(&mut raw_vips(size, binding)?)?;
    let took = start.elapsed().as_secs_f64();
    ensure!(refused.is_empty() && unbound.is_empty(), "the kernel refused some: {refused:?} {unbound:?}");
    Ok(took)
}

/// Reads everything, and compares nothing.
pub fn read(binding: VipBinding) -> Result<Reading> {
    let mut ipvs = KernelIpvs::open()?;
    let mut tables = KernelNetfilter::open(&policy())?;
    let mut dummy_interface = KernelDummyInterface::open(binding)?;
    let ipvs_by_netlink = timed(|| {
        for server in ipvs.virtual_servers()? {
            black_box(ipvs.real_servers(server.config.id)?);
        }
        Ok(())
    })?;
    let ipvs_as_text = timed(|| {
        black_box(fs::read("/proc/thread-self/net/ip_vs")?);
        Ok(())
    })?;
    let rest = timed(|| {
        black_box((dummy_interface.observe()?, tables.observe()?));
        Ok(())
    })?;
    Ok(Reading { ipvs_by_netlink, ipvs_as_text, rest })
}

/// The seconds that it takes.
fn timed(work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed().as_secs_f64())
}

fn commands(size: Size) -> Vec<Command> {
    let mut commands = Vec::new();
    for service in 0..size.services {
        let server = VirtualServer::new(address(service), Scheduler::RR);
        let id = server.id;
        commands.push(Command::AddVirtualServer(server));
        let real = |endpoint| RealServer::masquerade(pod(endpoint).into(), TARGET_PORT);
        let real_servers =
            size.endpoints_of(service).map(|endpoint| Command::AddRealServer(id, real(endpoint)));
        commands.extend(real_servers);
    }
    commands
}

fn elements(size: Size) -> Vec<Operation> {
    let of = |service| [Element::Vip(vip(service).into()), Element::ClusterIp(address(service))];
    (0..size.services).flat_map(of).map(Operation::AddElement).collect()
}

/// The bare requests for the VIPs: include/uapi/linux/{if_addr,rtnetlink}.h.
fn raw_vips(size: Size, binding: VipBinding) -> Result<Batch> {
    const CREATE_EXCLUSIVE: u16 = 0x600;
    let device = nix::net::if_::if_nametoindex(dummy_interface::DEVICE)?;
    let mut batch = Batch::default();
    for service in 0..size.services {
        let vip = vip(service).octets();
        if binding == VipBinding::Address {
            batch.add(20, CREATE_EXCLUSIVE, |e| {
                e.raw(&[&[2, 32, 0, 0][..], &device.to_ne_bytes()].concat());
                e.bytes(2, &vip);
            });
        } else {
            batch.add(24, CREATE_EXCLUSIVE, |e| {
                // AF_INET, /32, table local, protocol static, scope host, type local.
                e.raw(&[2, 32, 0, 0, 255, 4, 254, 2, 0, 0, 0, 0]);
                e.bytes(1, &vip);
                e.u32(4, 1);
            });
        }
    }
    Ok(batch)
}
