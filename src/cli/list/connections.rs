//! Connections.

use std::{
    fs::File,
    io::{self, BufReader, BufWriter, Write},
};

use anyhow::Context;
use ipvs::{
    ServiceAddress,
    proc_net::{CONNECTIONS_HEAD, Connection, for_each_connection},
};

use super::{
    super::{Format, output::one_of_many},
    Part,
};
use crate::node::requirements;

/// The kernel's text of all connections.
pub(in crate::cli) const CONNECTIONS: &str = "/proc/net/ip_vs_conn";

/// Prints each connection to a part of the table as it is read, since there can be a million.
pub(super) fn list(format: Format, part: Part<'_>) -> anyhow::Result<()> {
    // Opening makes the kernel load its module.
    requirements::open_ipvs()?;
    let text = File::open(CONNECTIONS).with_context(|| format!("cannot read {CONNECTIONS}"))?;
    let text = BufReader::new(text);
    let mut out = BufWriter::new(io::stdout().lock());
    let head = if format == Format::Text { CONNECTIONS_HEAD } else { "" };
    let printed = out.write_all(head.as_bytes()).and_then(|()| {
        for_each_connection(text, |connection| {
            if !leads_to(part, connection) {
                return Ok(());
            }
            out.write_all(one_of_many(format, connection, || format!("{connection}\n"))?.as_bytes())
        })
    });
    match printed.and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result.with_context(|| format!("listing {CONNECTIONS}")),
    }
}

/// Whether it is one to a virtual server in this part.
fn leads_to(part: Part<'_>, connection: &Connection) -> bool {
    let (ip, port) = (connection.virtual_server.ip(), connection.virtual_server.port());
    part.filter.is_none()
        || connection
            .protocol
            .parse()
            .is_ok_and(|protocol| part.has(ServiceAddress { protocol, ip, port }.into()))
}

#[cfg(test)]
mod tests {
    use super::{
        super::super::{documented::assert_printed, owners::Owners},
        *,
    };

    const KERNEL: &str = "\
Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData
TCP C0000207 C738 0A60000A 0050 fd00:0000:0000:0000:0000:0000:0000:0007 1F90 ESTABLISHED     899
UDP C0000207 C739 0A600014 0035 0AF40005 0035 UDP             299
";

    /// What is printed of these connections.
    fn printed(format: Format, part: Part<'_>) -> String {
        let mut lines = String::new();
        for_each_connection(KERNEL.as_bytes(), |connection| {
            if leads_to(part, connection) {
                lines += &one_of_many(format, connection, || format!("{connection}\n"))?;
            }
            Ok(())
        })
        .unwrap();
        lines
    }

    #[test]
    fn its_lines_of_json_are_documented() {
        let filter = "10.96.0.10:80".parse().unwrap();
        assert_printed("list -c", &printed(Format::Json, Part { filter: Some(&filter), owners: None }));
    }

    #[test]
    fn those_of_a_service_are_those_to_its_addresses() {
        let dns = ServiceAddress { protocol: ipvs::Protocol::Udp, ip: [10, 96, 0, 20].into(), port: 53 };
        let owners: Owners = [(dns, "kube-system/dns".parse().unwrap())].into_iter().collect();
        let shown = |filter: &str| {
            let filter = filter.parse().unwrap();
            printed(Format::Text, Part { filter: Some(&filter), owners: Some(&owners) })
        };
        let line = "UDP 04:59  UDP         192.0.2.7:51001    10.96.0.20:53      10.244.0.5:53\n";
        assert_eq!([shown("kube-system"), shown("kube-system/dns")], [line, line]);
        assert_eq!(shown("default"), "");
        assert_eq!(printed(Format::Text, Part { filter: None, owners: None }).lines().count(), 2);
    }
}
