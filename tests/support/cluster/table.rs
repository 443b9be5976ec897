//! What `ipvsadm -Ln` shows, read.

use std::{collections::BTreeMap, net::SocketAddr};

use ipvs::ServiceAddress;

/// The virtual servers that have an address.
pub(crate) type Table = BTreeMap<ServiceAddress, VirtualServer>;

/// A virtual server.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct VirtualServer {
    /// The scheduler, its flags and persistence: `rr persistent 600`.
    pub(crate) how: String,
    /// The real servers.
    pub(crate) real_servers: BTreeMap<SocketAddr, RealServer>,
}

/// A real server.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RealServer {
    pub(crate) weight: u32,
    /// Its connections, active or not.
    pub(crate) connections: u32,
}

impl VirtualServer {
    /// The weight of each real server that takes new connections.
    pub(crate) fn weights(&self) -> BTreeMap<SocketAddr, u32> {
        let servers = self.real_servers.iter().filter(|(_, server)| server.weight > 0);
        servers.map(|(address, server)| (*address, server.weight)).collect()
    }
}

pub(super) fn parse(text: &str) -> Table {
    let mut servers = Vec::<(ServiceAddress, VirtualServer)>::new();
    for line in text.lines() {
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["->", address, "Masq", weight, active, inactive] => {
                let number = |text: &str| text.parse::<u32>().unwrap();
                let connections = number(active) + number(inactive);
                let server = RealServer { weight: number(weight), connections };
                servers.last_mut().unwrap().1.real_servers.insert(address.parse().unwrap(), server);
            }
            [protocol @ ("TCP" | "UDP" | "SCTP"), address, ref how @ ..] => {
                let address: SocketAddr = address.parse().unwrap();
                let (protocol, ip, port) = (protocol.parse().unwrap(), address.ip(), address.port());
                let server = VirtualServer { how: how.join(" "), ..VirtualServer::default() };
                servers.push((ServiceAddress { protocol, ip, port }, server));
            }
            // The headings.
            _ => {}
        }
    }
    servers.into_iter().collect()
}
