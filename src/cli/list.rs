//! `kube-ipvs list`.

use std::{
    fs::File,
    io::{self, BufReader, BufWriter, Write},
    process::ExitCode,
};

use anyhow::Context;
use ipvs::{
    Info, Ipvs, ObservedRealServer, ObservedVirtualServer, VirtualServerId,
    proc_net::{CONNECTIONS_HEAD, for_each_connection},
    text::{Columns, Listing},
};
use serde::Serialize;
use watcher::is_foreign;

use super::{
    Format,
    output::{self, print, print_json},
};
use crate::node::requirements;

/// The kernel's text of all connections.
const CONNECTIONS: &str = "/proc/net/ip_vs_conn";

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
    let mut kernel = requirements::open_ipvs()?;
    let info = kernel.info()?;
    let mut servers = Vec::new();
    for virtual_server in kernel.virtual_servers()? {
        let real_servers = kernel.real_servers(virtual_server.config.id)?;
        servers.push((virtual_server, real_servers));
    }
    match format {
        Format::Text => print(&Listing::new(info, &servers).columns(columns).to_string())?,
        Format::Json => {
            let our_tables =
                netfilter::Observed { elements: netfilter::elements()?, ..netfilter::Observed::default() };
            print_json(&json(info, &servers, &our_tables))?;
        }
    }
    Ok(())
}

/// Prints each connection as it is read, since there can be a million.
fn list_connections(format: Format) -> anyhow::Result<()> {
    // Opening makes the kernel load its module.
    requirements::open_ipvs()?;
    let text = File::open(CONNECTIONS).with_context(|| format!("cannot read {CONNECTIONS}"))?;
    let text = BufReader::new(text);
    let mut out = BufWriter::new(io::stdout().lock());
    let printed = match format {
        Format::Text => out
            .write_all(CONNECTIONS_HEAD.as_bytes())
            .and_then(|()| for_each_connection(text, |connection| writeln!(out, "{connection}"))),
        Format::Json => for_each_connection(text, |connection| {
            serde_json::to_writer(&mut out, connection)?;
            out.write_all(b"\n")
        }),
    };
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
    foreign: bool,
    real_servers: &'a [ObservedRealServer],
}

fn json<'a>(
    info: Info,
    servers: &'a [(ObservedVirtualServer, Vec<ObservedRealServer>)],
    our_tables: &netfilter::Observed,
) -> Table<'a> {
    let foreign = |id| match id {
        VirtualServerId::Address(address) => is_foreign(&address, our_tables),
        VirtualServerId::Mark { .. } => true,
    };
    let row = |(virtual_server, real_servers): &'a (ObservedVirtualServer, Vec<_>)| Row {
        virtual_server,
        foreign: foreign(virtual_server.config.id),
        real_servers,
    };
    Table { info, virtual_servers: servers.iter().map(row).collect() }
}

#[cfg(test)]
mod tests {
    use ipvs::{Family, Protocol, RealServer, Scheduler, ServiceAddress, Stats, VirtualServer};
    use netfilter::Element;

    use super::{
        super::documented::{assert_documented, pretty},
        *,
    };

    /// Our tables with these elements.
    fn with<const COUNT: usize>(elements: [Element; COUNT]) -> netfilter::Observed {
        netfilter::Observed { elements: elements.into(), ..netfilter::Observed::default() }
    }

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
        let servers = [(virtual_server, vec![real_server])];
        assert_documented("list", &pretty(&json(info, &servers, &with([Element::ClusterIp(vip)]))));
    }

    #[test]
    fn foreign_is_what_our_tables_know_nothing_of() {
        let at = |port| ServiceAddress { protocol: Protocol::Tcp, ip: [10, 96, 0, 10].into(), port };
        let mark = VirtualServerId::Mark { family: Family::V4, mark: 7 };
        let servers = [at(80).into(), at(81).into(), at(82).into(), mark].map(|id: VirtualServerId| {
            (ObservedVirtualServer::new(VirtualServer::new(id, Scheduler::RR)), Vec::new())
        });
        let ours =
            with([Element::ClusterIp(at(80)), Element::ExternalLocal(at(81)), Element::Vip(at(82).ip)]);
        let table = json(Info::new((1, 2, 1), 4096), &servers, &ours);
        let foreign: Vec<_> = table.virtual_servers.iter().map(|row| row.foreign).collect();
        assert_eq!(foreign, [false, false, true, true]);
    }

    #[test]
    fn its_lines_of_json_for_connections_are_documented() {
        let kernel = "\
Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData
TCP C0000207 C738 0A60000A 0050 fd00:0000:0000:0000:0000:0000:0000:0007 1F90 ESTABLISHED     899
";
        let mut lines = String::new();
        for_each_connection(kernel.as_bytes(), |connection| {
            lines += &serde_json::to_string(connection)?;
            lines += "\n";
            Ok(())
        })
        .unwrap();
        assert_documented("list -c", &lines);
    }
}
