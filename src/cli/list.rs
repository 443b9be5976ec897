//! `kube-ipvs list`.

use std::{
    fs::File,
    io::{self, BufReader, BufWriter, Write},
    process::ExitCode,
};

use anyhow::Context;
use ipvs::{
    Info, Ipvs, ObservedRealServer, ObservedVirtualServer,
    proc_net::{CONNECTIONS_HEAD, for_each_connection},
    text::{Columns, Listing},
};
use serde::Serialize;

use super::{
    Format,
    output::{self, one_of_many, print_as},
};
use crate::node::preflight;

/// The kernel's text of all connections.
pub(super) const CONNECTIONS: &str = "/proc/net/ip_vs_conn";

/// What is listed. `-o json` has configuration, counters and rates at once.
#[derive(clap::Args, Clone, Copy, Debug)]
#[group(multiple = false)]
pub(super) struct What {
    /// Show counters, as ipvsadm does
    #[arg(long)]
    stats: bool,
    /// Show what comes in a second, as ipvsadm does
    #[arg(long)]
    rate: bool,
    /// List the connections, as ipvsadm does
    #[arg(short = 'c', long)]
    connections: bool,
}

/// The flags of the command.
#[derive(clap::Args, Clone, Copy, Debug)]
pub(super) struct List {
    #[command(flatten)]
    output: output::Args,
    #[command(flatten)]
    what: What,
}

/// Prints all of IPVS in this network namespace, including virtual servers of others.
pub(super) fn list(List { output, what }: List) -> anyhow::Result<ExitCode> {
    if what.connections {
        list_connections(output.format)?;
        return Ok(ExitCode::SUCCESS);
    }
    let columns = match what {
        What { stats: true, .. } => Columns::Counters,
        What { rate: true, .. } => Columns::Rates,
        What { .. } => Columns::Configuration,
    };
    list_servers(output.format, columns)?;
    Ok(ExitCode::SUCCESS)
}

fn list_servers(format: Format, columns: Columns) -> anyhow::Result<()> {
    let mut kernel = preflight::open_ipvs()?;
    let info = kernel.info()?;
    let mut servers = Vec::new();
    for virtual_server in kernel.virtual_servers()? {
        let real_servers = kernel.real_servers(virtual_server.config.id)?;
        servers.push((virtual_server, real_servers));
    }
    print_as(format, &json(info, &servers), || Listing::new(info, &servers).columns(columns).to_string())?;
    Ok(())
}

/// Prints each connection as it is read, since there can be a million.
fn list_connections(format: Format) -> anyhow::Result<()> {
    // Opening makes the kernel load its module.
    preflight::open_ipvs()?;
    let text = File::open(CONNECTIONS).with_context(|| format!("cannot read {CONNECTIONS}"))?;
    let text = BufReader::new(text);
    let mut out = BufWriter::new(io::stdout().lock());
    let head = if format == Format::Text { CONNECTIONS_HEAD } else { "" };
    let printed = out.write_all(head.as_bytes()).and_then(|()| {
        for_each_connection(text, |connection| {
            out.write_all(one_of_many(format, connection, || format!("{connection}\n"))?.as_bytes())
        })
    });
    match printed.and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result.with_context(|| format!("listing {CONNECTIONS}")),
    }
}

#[derive(Serialize)]
struct Table<'a> {
    info: Info,
    virtual_servers: Vec<Row<'a>>,
}

#[derive(Serialize)]
struct Row<'a> {
    #[serde(flatten)]
    virtual_server: &'a ObservedVirtualServer,
    real_servers: &'a [ObservedRealServer],
}

fn json(info: Info, servers: &[(ObservedVirtualServer, Vec<ObservedRealServer>)]) -> Table<'_> {
    let rows = servers.iter().map(|(virtual_server, real_servers)| Row { virtual_server, real_servers });
    Table { info, virtual_servers: rows.collect() }
}

#[cfg(test)]
mod tests {
    use ipvs::{Protocol, RealServer, Scheduler, ServiceAddress, Stats, VirtualServer};

    use super::{
        super::documented::{assert_documented, assert_printed},
        *,
    };

    #[test]
    fn its_json_is_documented() {
        let vip = ServiceAddress { protocol: Protocol::Tcp, ip: [10, 96, 0, 10].into(), port: 80 };
        let mut stats = Stats::default();
        (stats.connections, stats.packets_in, stats.bytes_in) = (7, 42, 4200);
        let real_server = RealServer::masquerade([10, 244, 1, 7].into(), 8080);
        let mut real_server = ObservedRealServer::new(real_server).connections(2, 1).stats(stats);
        real_server.persistent_connections = 1;
        let virtual_server = VirtualServer::new(vip, Scheduler::RR).persistent(10_800);
        let virtual_server = ObservedVirtualServer::new(virtual_server).stats(stats);
        let info = Info::new((1, 2, 1), 4096);
        assert_documented("list", &json(info, &[(virtual_server, vec![real_server])]));
    }

    #[test]
    fn its_lines_of_json_for_connections_are_documented() {
        let kernel = "\
Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData
TCP C0000207 C738 0A60000A 0050 fd00:0000:0000:0000:0000:0000:0000:0007 1F90 ESTABLISHED     899
";
        let mut lines = String::new();
        for_each_connection(kernel.as_bytes(), |connection| {
            lines += &one_of_many(Format::Json, connection, String::new)?;
            Ok(())
        })
        .unwrap();
        assert_printed("list -c", &lines);
    }
}
