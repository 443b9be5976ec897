//! Where health and metrics are served: an address with a port, as Go writes it.

use std::net::{IpAddr, SocketAddr};

use crate::config::Problem;

/// Adds the port to an address without one. What is no address stays as it is, to be refused later.
pub(in crate::config) fn with_port(address: &str, port: i32) -> String {
    match address.parse() {
        Ok(IpAddr::V4(address)) => format!("{address}:{port}"),
        Ok(IpAddr::V6(address)) => format!("[{address}]:{port}"),
        Err(_) => address.to_owned(),
    }
}

/// The address, or that nothing is served, which only the flags can say.
pub(in crate::config) fn address(text: &str) -> Result<Option<SocketAddr>, Problem> {
    if text.is_empty() {
        return Ok(None);
    }
    let address = text.parse().ok().filter(|address: &SocketAddr| address.port() > 0);
    address.map(Some).ok_or_else(|| Problem::Listen(text.to_owned()))
}
