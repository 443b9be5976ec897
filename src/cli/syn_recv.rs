//! Connections whose handshake is not over.

use std::{
    collections::HashMap,
    fs::File,
    io::{self, BufRead, BufReader},
    time::{Duration, Instant},
};

use ipvs::{Protocol, RealServerAddress, ServiceAddress, VirtualServerId, proc_net::for_each_connection};
use operator::explain;

use super::list::CONNECTIONS;

/// Connections in `SYN_RECV`: the client's SYN was passed on, and the handshake is not over. Many of them at a real
/// server are the best sign that it is dead, or that its answers do not come back through this node.
///
/// IPVS counts them as active (`tcp_state_active_table` in ip_vs_proto_tcp.c), and no counter tells them apart. Only
/// the text of all connections does, at a cost for each connection in any state. Since Linux 6.14 a million take two
/// seconds. Before, the kernel looks for its place from the beginning for each page, so that twice as many take four
/// times as long: 35,000 take a second, and 140,000 a minute (178883fd039d). So the reading has a time limit.
///
/// How many there are at each real server of each virtual server. The default: it is not known.
#[derive(Default)]
pub(in crate::cli) struct SynRecv(Option<HashMap<(ServiceAddress, RealServerAddress), u64>>);

impl SynRecv {
    /// Reads all connections. If that takes too long, or the kernel was built without the text, nothing is known.
    pub(in crate::cli) fn read(patience: Duration) -> Self {
        let counted = File::open(CONNECTIONS).and_then(|text| Self::count(BufReader::new(text), patience));
        counted.unwrap_or_default()
    }

    /// Counts the connections in a text like `/proc/net/ip_vs_conn`.
    pub(in crate::cli) fn count(text: impl BufRead, patience: Duration) -> io::Result<Self> {
        let (begun, mut counts) = (Instant::now(), HashMap::new());
        for_each_connection(text, |connection| {
            if begun.elapsed() >= patience {
                return Err(io::ErrorKind::TimedOut.into());
            }
            if *connection.state == *"SYN_RECV" {
                let (virtual_server, real_server) = (connection.virtual_server, connection.real_server);
                let (ip, port) = (virtual_server.ip(), virtual_server.port());
                let address = ServiceAddress { protocol: Protocol::Tcp, ip, port };
                let real_server = RealServerAddress { ip: real_server.ip(), port: real_server.port() };
                *counts.entry((address, real_server)).or_default() += 1;
            }
            Ok(())
        })?;
        Ok(Self(Some(counts)))
    }

    /// The real servers of a virtual server that have any; `None` if that is not known.
    pub(in crate::cli) fn at_virtual_server(
        &self,
        virtual_server: ServiceAddress,
    ) -> Option<Vec<explain::SynRecv>> {
        let of = self.0.as_ref()?.iter().filter(|((address, _), _)| *address == virtual_server);
        Some(
            of.map(|((_, address), count)| explain::SynRecv { address: *address, connections: *count })
                .collect(),
        )
    }

    /// So many at one real server, and none at the others.
    #[cfg(test)]
    pub(in crate::cli) fn known(of: ServiceAddress, real_server: RealServerAddress, count: u64) -> Self {
        Self(Some(HashMap::from([((of, real_server), count)])))
    }

    /// How many there are at a real server; `None` if that is not known.
    pub(in crate::cli) fn at(&self, of: VirtualServerId, real_server: RealServerAddress) -> Option<u64> {
        match of {
            // A connection has the address and port that the client asked: neither a mark nor every port.
            VirtualServerId::Mark { .. } | VirtualServerId::Address(ServiceAddress { port: 0, .. }) => None,
            VirtualServerId::Address(address) => {
                self.0.as_ref().map(|counts| counts.get(&(address, real_server)).copied().unwrap_or_default())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ipvs::Family;

    use super::*;

    /// `TCP 10.96.0.LAST:PORT`.
    fn vip(last: u8, port: u16) -> ServiceAddress {
        ServiceAddress { protocol: Protocol::Tcp, ip: [10, 96, 0, last].into(), port }
    }

    const CONNECTIONS: &str = "\
Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData
TCP C0000207 C738 0A60000A 0050 0AF40001 1F90 ESTABLISHED     899
TCP C0000207 C739 0A60000A 0050 0AF40002 1F90 SYN_RECV         58
TCP C0000207 C73A 0A60000A 0050 0AF40002 1F90 SYN_RECV         59
UDP C0000207 C73B 0A600014 0035 0AF40005 0035 UDP             299
";

    fn at(counted: &SynRecv, of: VirtualServerId, last: u8) -> Option<u64> {
        counted.at(of, RealServerAddress { ip: [10, 244, 0, last].into(), port: 8080 })
    }

    #[test]
    fn they_are_counted_at_the_real_server_of_the_virtual_server() {
        let counted = SynRecv::count(CONNECTIONS.as_bytes(), Duration::MAX).unwrap();
        assert_eq!([1, 2].map(|last| at(&counted, vip(10, 80).into(), last)), [Some(0), Some(2)]);
        assert_eq!(at(&counted, vip(11, 80).into(), 2), Some(0));
    }

    #[test]
    fn what_a_connection_does_not_show_is_not_known() {
        let counted = SynRecv::count(CONNECTIONS.as_bytes(), Duration::MAX).unwrap();
        let mark = VirtualServerId::Mark { family: Family::V4, mark: 7 };
        assert_eq!([mark, vip(10, 0).into()].map(|of| at(&counted, of, 2)), [None, None]);
    }

    #[test]
    fn what_takes_too_long_is_given_up() {
        let given_up = SynRecv::count(CONNECTIONS.as_bytes(), Duration::ZERO).err().unwrap();
        assert_eq!(given_up.kind(), io::ErrorKind::TimedOut);
        assert_eq!(at(&SynRecv::default(), vip(10, 80).into(), 2), None);
    }
}
