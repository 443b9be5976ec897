//! IPVS as an administrator would set it up with ipvsadm: the least that does the work, and the floor of the comparison.

use std::fmt::Write as _;

use anyhow::{Result, ensure};
use ipvs::{Command, Ipvs as _, KernelIpvs, Protocol, RealServer, Scheduler, ServiceAddress, VirtualServer};
use testkit::lab::Host;

use super::cluster::Served;

/// Clients that are no pods are masqueraded: their answers must come back through this node.
const MASQUERADE: &str = "
    table ip by-hand {
        chain postrouting {
            type nat hook postrouting priority srcnat;
            ip saddr != 10.244.0.0/16 ip daddr 10.244.0.0/16 masquerade
        }
    }
    table ip6 by-hand {
        chain postrouting {
            type nat hook postrouting priority srcnat;
            ip6 saddr != fd00:10:244::/48 ip6 daddr fd00:10:244::/48 masquerade
        }
    }";

pub(super) fn set_up(node: &Host, served: Vec<Served>, conntrack: bool) -> Result<()> {
    node.run("sysctl", &["-qw", &format!("net.ipv4.vs.conntrack={}", u8::from(conntrack))])?;
    if conntrack {
        node.run("nft", &[MASQUERADE])?;
    }
    // The node has its own addresses already.
    let own = [node.ipv4.into(), node.ipv6.into()];
    let mut addresses = "link add by-hand type dummy\nlink set by-hand up\n".to_owned();
    for Served { ip, .. } in served.iter().filter(|served| !own.contains(&served.ip)) {
        let length = if ip.is_ipv4() { 32 } else { 128 };
        let nodad = if ip.is_ipv4() { "" } else { " nodad" };
        writeln!(addresses, "addr add {ip}/{length} dev by-hand{nodad}")?;
    }
    node.ip(&addresses)?;
    let refused = node.inside(move || anyhow::Ok(KernelIpvs::open()?.apply(&commands(&served))?))??;
    ensure!(refused.is_empty(), "the kernel refused some: {refused:?}");
    Ok(())
}

fn commands(served: &[Served]) -> Vec<Command> {
    let mut commands = Vec::new();
    for Served { ip, port, endpoint, endpoint_port, by_udp } in served {
        let protocols = [Protocol::Tcp, Protocol::Udp];
        for protocol in protocols.into_iter().take(if *by_udp { 2 } else { 1 }) {
            let address = ServiceAddress { protocol, ip: *ip, port: *port };
            let server = VirtualServer::new(address, Scheduler::RR);
            let id = server.id;
            commands.push(Command::AddVirtualServer(server));
            commands.push(Command::AddRealServer(id, RealServer::masquerade(*endpoint, *endpoint_port)));
        }
    }
    commands
}
