//! The connections in `/proc/net/ip_vs_conn`.
//!
//! The format is that of `ip_vs_conn_seq_show` in net/netfilter/ipvs/ip_vs_conn.c. Where the file is not
//! there the kernel was built without it:
//!
//! ```text
//! Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData
//! TCP 0A000001 80D4 0A000001 0050 7F000001 1F90 ESTABLISHED     896
//! TCP fd00:0000:0000:0000:0000:0000:0000:0001 9E6E …
//! ```

use std::{
    fmt,
    io::{self, BufRead},
    net::{IpAddr, SocketAddr},
    str,
};

use serde::Serialize;

use super::{Lines, decimal, hexadecimal, invalid, word};
use crate::text::Endpoint;

/// The two lines above connections, as `ipvsadm -Lnc` prints them.
pub const CONNECTIONS_HEAD: &str = "IPVS connection entries\n\
    pro expire state       source             virtual            destination\n";

/// A connection, or the template by which a client with session affinity keeps its real server: that one has
/// the client's port 0.
///
/// It prints as one line of `ipvsadm -Lnc`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Connection {
    /// Its protocol, by the kernel's name.
    pub protocol: Box<str>,
    /// Its state, by the kernel's name.
    pub state: Box<str>,
    /// Seconds until the kernel forgets the connection, if no packet comes.
    pub expires: u32,
    /// The client.
    pub client: SocketAddr,
    /// The virtual server. Of one that balances a firewall mark, a template has the mark in place of an
    /// address.
    pub virtual_server: SocketAddr,
    /// The real server.
    pub real_server: SocketAddr,
}

/// Reads a text like `/proc/net/ip_vs_conn`, and visits every connection in it. The order is arbitrary. While
/// connections come and go, one may be missing or be visited twice.
///
/// A line that is not understood is an error ([`io::ErrorKind::InvalidData`]).
///
/// ```
/// let text = "\
/// Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData
/// TCP 0A000001 80D4 0A600001 0050 0A010004 1F90 ESTABLISHED     896
/// ";
/// ipvs::proc_net::for_each_connection(text.as_bytes(), |connection| {
///     assert_eq!(
///         connection.to_string(),
///         "TCP 14:56  ESTABLISHED 10.0.0.1:32980     10.96.0.1:80       10.1.0.4:8080"
///     );
///     Ok(())
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn for_each_connection(
    text: impl BufRead,
    mut visit: impl FnMut(&Connection) -> io::Result<()>,
) -> io::Result<()> {
    let mut lines = Lines::new(text);
    lines.next()?;
    while let Some(line) = lines.next()? {
        visit(&connection(line).ok_or_else(invalid)?)?;
    }
    Ok(())
}

fn connection(line: &[u8]) -> Option<Connection> {
    let (protocol, rest) = name(line)?;
    let (client, rest) = endpoint(rest)?;
    let (virtual_server, rest) = endpoint(rest)?;
    let (real_server, rest) = endpoint(rest)?;
    let (state, rest) = name(rest)?;
    // After it may come the persistence engine with its data.
    let (expires, _) = word(rest)?;
    Some(Connection { protocol, state, expires: decimal(expires)?, client, virtual_server, real_server })
}

fn name(text: &[u8]) -> Option<(Box<str>, &[u8])> {
    let (name, rest) = word(text)?;
    Some((str::from_utf8(name).ok()?.into(), rest))
}

/// `0A000001 0050`, or an IPv6 address written out.
fn endpoint(text: &[u8]) -> Option<(SocketAddr, &[u8])> {
    let (ip, rest) = word(text)?;
    let (port, rest) = word(rest)?;
    let ip = match hexadecimal(ip).filter(|_| ip.len() == 8) {
        Some(bits) => IpAddr::V4(bits.into()),
        None => IpAddr::V6(str::from_utf8(ip).ok()?.parse().ok()?),
    };
    let port = hexadecimal(port).filter(|_| port.len() == 4)?;
    Some((SocketAddr::new(ip, u16::try_from(port).ok()?), rest))
}

impl fmt::Display for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { protocol, state, expires, client, virtual_server, real_server } = self;
        let expires = format!("{:02}:{:02}", expires / 60, expires % 60);
        let [client, virtual_server, real_server] =
            [client, virtual_server, real_server].map(|of| Endpoint(of.ip(), of.port()).to_string());
        write!(f, "{protocol:<3} {expires:<6} {state:<11} {client:<18} {virtual_server:<18} {real_server}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD_OF_THE_KERNEL: &str =
        "Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData\n";

    fn read(lines: &str) -> io::Result<Vec<String>> {
        let mut all = Vec::new();
        for_each_connection(format!("{HEAD_OF_THE_KERNEL}{lines}").as_bytes(), |connection| {
            all.push(connection.to_string());
            Ok(())
        })?;
        Ok(all)
    }

    #[test]
    fn connections_and_templates_print_as_ipvsadm_prints_them() {
        let lines = "\
TCP 0A000001 80D4 0A000001 0050 7F000001 1F90 ESTABLISHED     896
TCP 0A000001 0000 0A000001 0050 7F000001 1F90 ASSURED         296
TCP fd00:0000:0000:0000:0000:0000:0000:0001 9E6E fd00:0000:0000:0000:0000:0000:0000:0001 0050 0000:0000:0000:0000:0000:0000:0000:0001 1F90 CLOSE             6
UDP 0A000001 EC3E 0A000001 0035 7F000001 14B4 UDP             296 sip call-id
";
        let expected = [
            "TCP 14:56  ESTABLISHED 10.0.0.1:32980     10.0.0.1:80        127.0.0.1:8080",
            "TCP 04:56  ASSURED     10.0.0.1:0         10.0.0.1:80        127.0.0.1:8080",
            "TCP 00:06  CLOSE       [fd00::1]:40558    [fd00::1]:80       [::1]:8080",
            "UDP 04:56  UDP         10.0.0.1:60478     10.0.0.1:53        127.0.0.1:5300",
        ];
        assert_eq!(read(lines).unwrap(), expected);
        assert!(read("").unwrap().is_empty());
    }

    #[test]
    fn a_line_that_is_not_understood_is_an_error() {
        for odd in ["TCP 0A000001", "TCP 0A00000 0050 7F000001 1F90 7F000001 1F90 NONE 1", "TCP\n", "no end"]
        {
            assert_eq!(read(odd).unwrap_err().kind(), io::ErrorKind::InvalidData, "{odd}");
        }
    }
}
