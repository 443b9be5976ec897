//! `/proc/net/ip_vs` and `/proc/net/ip_vs_conn`.

use std::{
    fmt::Write as _,
    io::{self, BufReader},
    net::IpAddr,
    num::NonZeroU32,
};

use ipvs::{
    Forwarding,
    proc_net::{Connection, VirtualServerSummary, for_each_connection, virtual_servers},
};

/// A usual `CONFIG_HZ`.
const HERTZ: NonZeroU32 = NonZeroU32::MIN.saturating_add(249);

/// Reads the text in one piece and byte by byte, with the same result.
///
/// A table that was read is written as the kernel writes it, and read again as the same. So are connections.
pub fn fuzz(input: &[u8]) {
    fuzz_connections(input);
    let whole = summaries(input);
    let in_pieces = summaries(BufReader::with_capacity(1, input));
    assert_eq!(whole.as_ref().ok(), in_pieces.as_ref().ok());
    let Ok(servers) = whole else { return };
    let text = servers.iter().fold("IP Virtual Server version 1.2.1 (size=4096)\n".to_owned(), written);
    assert_eq!(summaries(text.as_bytes()).ok(), Some(servers), "{text}");
}

/// Connections that were read are written, each alone, and read again as the same.
fn fuzz_connections(input: &[u8]) {
    // Connections before a line that is not understood count.
    let mut all = Vec::new();
    let _ = for_each_connection(input, |connection| {
        all.push(connection.clone());
        Ok(())
    });
    for connection in all {
        let mut again = Vec::new();
        let text = format!("Pro\n{}\n", written_connection(&connection));
        let read = for_each_connection(text.as_bytes(), |connection| {
            again.push(connection.clone());
            Ok(())
        });
        assert_eq!((read.is_ok(), &again[..]), (true, &[connection][..]), "{text}");
    }
}

/// `ip_vs_conn_seq_show` in net/netfilter/ipvs/ip_vs_conn.c.
fn written_connection(
    Connection { protocol, state, expires, client, virtual_server, real_server, .. }: &Connection,
) -> String {
    let [client, virtual_server, real_server] = [client, virtual_server, real_server].map(|end| {
        let ip = match end.ip() {
            IpAddr::V4(ip) => format!("{:08X}", ip.to_bits()),
            IpAddr::V6(ip) => ip.to_string(),
        };
        format!("{ip} {:04X}", end.port())
    });
    format!("{protocol:<3} {client} {virtual_server} {real_server} {state:<11} {expires:7}")
}

fn summaries(text: impl io::BufRead) -> io::Result<Vec<VirtualServerSummary>> {
    virtual_servers(text, HERTZ).collect()
}

/// `ip_vs_info_seq_show` in net/netfilter/ipvs/ip_vs_ctl.c. Writing to a String cannot fail.
fn written(mut text: String, server: &VirtualServerSummary) -> String {
    let VirtualServerSummary { address, scheduler, one_packet, persistence, real_servers, .. } = server;
    let (protocol, endpoint) = (address.protocol.to_string(), endpoint(address.ip, address.port));
    let _ = write!(text, "{protocol}  {endpoint} {scheduler} {}", if *one_packet { "ops " } else { "" });
    if let Some(persistence) = persistence {
        // In 32 bits, as if it had a sign.
        let ticks = persistence.timeout.wrapping_mul(HERTZ.get()).cast_signed();
        let _ = write!(text, "persistent {ticks} {:08X}", persistence.mask);
    }
    text.push('\n');
    for server in real_servers {
        let forwarding = match server.forwarding {
            Forwarding::Local => "Local",
            Forwarding::Tunnel => "Tunnel",
            Forwarding::Route => "Route",
            _ => "Masq",
        };
        let endpoint = self::endpoint(server.address.ip, server.address.port);
        let _ =
            writeln!(text, "  -> {endpoint}      {forwarding:<7} {:<6} 0          0         ", server.weight);
    }
    text
}

fn endpoint(ip: IpAddr, port: u16) -> String {
    match ip {
        IpAddr::V4(ip) => format!("{:08X}:{port:04X}", ip.to_bits()),
        IpAddr::V6(ip) => format!("[{ip}]:{port:04X}"),
    }
}
