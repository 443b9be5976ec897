//! A port for a server that somebody else starts.

use std::net::{IpAddr, SocketAddr};

use anyhow::Context as _;
use socket2::{Domain, Socket, Type};

/// A TCP port of this network namespace, which nobody is given by chance as long as this lives: many servers are started
/// at once here. Only who sets `SO_REUSEPORT` can listen at it.
#[derive(Debug)]
pub(super) struct Port {
    address: SocketAddr,
    _bound: Socket,
}

impl Port {
    /// One that is free at this address.
    pub(super) fn any(ip: IpAddr) -> anyhow::Result<Self> {
        let any = SocketAddr::new(ip, 0);
        let bound = Socket::new(Domain::for_address(any), Type::STREAM, None)
            .and_then(|socket| {
                socket.set_reuse_port(true)?;
                socket.bind(&any.into())?;
                Ok(socket)
            })
            .with_context(|| format!("looking for a free port on {ip}"))?;
        let address = bound.local_addr()?.as_socket().context("its address is none of TCP")?;
        Ok(Self { address, _bound: bound })
    }

    /// Where the server is to listen.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::ErrorKind,
        net::{Ipv4Addr, TcpListener, TcpStream},
    };

    use super::*;

    #[test]
    fn who_does_not_share_the_port_does_not_get_it() {
        let port = Port::any(Ipv4Addr::LOCALHOST.into()).unwrap();
        assert_eq!(TcpListener::bind(port.address()).unwrap_err().kind(), ErrorKind::AddrInUse);
    }

    #[test]
    fn connections_go_to_the_server_that_shares_the_port() {
        let port = Port::any(Ipv4Addr::LOCALHOST.into()).unwrap();
        let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        listener.set_reuse_port(true).unwrap();
        listener.bind(&port.address().into()).unwrap();
        listener.listen(1).unwrap();
        for _ in 0..10 {
            TcpStream::connect(port.address()).unwrap();
            listener.accept().unwrap();
        }
    }
}
