//! Balances a TCP address and port over others, by least connections. Needs CAP_NET_ADMIN.
//!
//! `cargo run --example balance 10.96.0.10:80 10.1.0.4:8080 10.1.0.5:8080`

use std::{env, error::Error, net::SocketAddr, process::ExitCode};

use ipvs::{Command, Ipvs, KernelIpvs, Protocol, RealServer, Scheduler, ServiceAddress, VirtualServer};

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let addresses: Vec<SocketAddr> =
        env::args().skip(1).map(|text| text.parse()).collect::<Result<_, _>>()?;
    let [vip, real_servers @ ..] = addresses.as_slice() else {
        return Err("usage: balance VIP:PORT REAL_SERVER:PORT...".into());
    };

    let vip = ServiceAddress { protocol: Protocol::Tcp, ip: vip.ip(), port: vip.port() };
    let mut commands = vec![Command::AddVirtualServer(VirtualServer::new(vip, Scheduler::LC))];
    commands.extend(real_servers.iter().map(|server| {
        Command::AddRealServer(vip.into(), RealServer::masquerade(server.ip(), server.port()))
    }));

    let failed = KernelIpvs::open()?.apply(&commands)?;
    for failure in &failed {
        eprintln!("{failure}");
    }
    Ok(if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
