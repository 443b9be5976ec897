//! `kube-ipvs list`: virtual servers with their real servers, or connections, as ipvsadm prints them.

mod filter;

use std::{
    collections::HashMap,
    fs::File,
    io::{self, BufReader, BufWriter, Write},
    process::ExitCode,
};

use anyhow::{Context, bail};
use ipvs::{
    Info, Ipvs, ObservedRealServer, ObservedVirtualServer, ServiceAddress, VirtualServerId,
    proc_net::{CONNECTIONS_HEAD, Connection, for_each_connection},
    text::{Columns, Listing},
};
use serde::Serialize;
use service::{ObjectName, one_line};
use watcher::has_element;

use super::{
    Format,
    output::{self, one_of_many, print_as},
    question::Daemon,
};
use crate::node::requirements;
use filter::Filter;
pub(super) use filter::{Owners, Part};

/// The table to list. `-o json` has configuration, counters and rates at once.
#[derive(clap::Args, Clone, Copy, Debug)]
#[group(multiple = false)]
pub(super) struct What {
    /// Show counters, as ipvsadm does
    #[arg(long)]
    stats: bool,
    /// Show rates per second, as ipvsadm does
    #[arg(long)]
    rate: bool,
    /// List the connections, as ipvsadm does
    #[arg(short = 'c', long)]
    connections: bool,
}

/// The flags of the command.
#[derive(clap::Args, Clone, Debug)]
pub(super) struct List {
    /// Only the virtual servers of a namespace (NAMESPACE), of a Service (NAMESPACE/NAME), or at an address (IP,
    /// IP:PORT); names need the daemon
    #[arg(value_name = "WHICH")]
    filter: Option<Filter>,
    #[command(flatten)]
    output: output::Args,
    #[command(flatten)]
    what: What,
    /// Show the Service of each virtual server at the end of its line; - if the daemon knows none
    #[arg(long, conflicts_with = "connections")]
    services: bool,
    /// Accepted for compatibility with ipvsadm; no effect: numbers are always printed
    #[arg(short = 'n', long)]
    numeric: bool,
    #[command(flatten)]
    daemon: Daemon,
}

/// Prints all of IPVS in this network namespace, including virtual servers of others, or a part of it.
pub(super) fn list(asked: &List) -> anyhow::Result<ExitCode> {
    let List { filter, output, what, services, .. } = asked;
    let owners = asked.owners()?;
    let part = Part { filter: filter.as_ref(), owners: owners.as_ref() };
    let columns = match what {
        What { connections: true, .. } => {
            list_connections(output.format, part)?;
            return Ok(ExitCode::SUCCESS);
        }
        What { stats: true, .. } => Columns::Counters,
        What { rate: true, .. } => Columns::Rates,
        What { .. } => Columns::Configuration,
    };
    asked.list_servers(part, columns, *services && owners.is_some())?;
    Ok(ExitCode::SUCCESS)
}

impl List {
    /// The owners of virtual servers, if they are shown or choose what is. Nothing can be chosen by name without a
    /// daemon; everything else is listed.
    fn owners(&self) -> anyhow::Result<Option<Owners>> {
        if self.filter.as_ref().is_some_and(Filter::is_by_name) {
            return Ok(Some(Owners::ask(&self.daemon)?));
        }
        let for_programs = self.output.format != Format::Text && !self.what.connections;
        if !(self.services || for_programs) {
            return Ok(None);
        }
        let owners = Owners::ask(&self.daemon).inspect_err(|error| {
            if self.services {
                output::say(format_args!("kube-ipvs: Services are not shown: {}", one_line(error)));
            }
        });
        Ok(owners.ok())
    }

    /// Prints a part of the table, with the Service of each virtual server if asked to.
    fn list_servers(&self, part: Part<'_>, columns: Columns, services: bool) -> anyhow::Result<()> {
        let format = self.output.format;
        let servers = Servers::read(part)?;
        if let (Some(filter), true) = (part.filter, servers.servers.is_empty()) {
            bail!("there is no virtual server {filter}{}", self.missing(filter, part.owners));
        }
        // Text does not say what is foreign.
        let our_tables = if format == Format::Text { netfilter::Observed::default() } else { our_tables()? };
        let table = servers.table(part, &our_tables);
        print_as(format, &table, || {
            let labels = table.virtual_servers.iter().filter(|_| services).map(Row::label).collect();
            servers.text(columns, &labels)
        })?;
        Ok(())
    }

    /// The Service that wants a virtual server that the kernel lacks, if a daemon knows one.
    fn missing(&self, filter: &Filter, owners: Option<&Owners>) -> String {
        let asked = owners.is_none().then(|| Owners::ask(&self.daemon).ok()).flatten();
        let wanted = owners.or(asked.as_ref()).and_then(|owners| owners.first_of(filter));
        wanted.map_or_else(String::new, |service| {
            format!(", but {service} wants one: `kube-ipvs diff` prints what the kernel lacks")
        })
    }
}

/// Our tables, as far as they show who owns a virtual server.
pub(super) fn our_tables() -> anyhow::Result<netfilter::Observed> {
    Ok(netfilter::Observed { elements: netfilter::elements()?, ..netfilter::Observed::default() })
}

/// Virtual servers with their real servers, as the kernel has them.
pub(super) struct Servers {
    info: Info,
    servers: Vec<(ObservedVirtualServer, Vec<ObservedRealServer>)>,
}

impl Servers {
    /// Reads the virtual servers of a part.
    pub(super) fn read(part: Part<'_>) -> anyhow::Result<Self> {
        let (mut kernel, info) = requirements::open_ipvs_with_info()?;
        let mut servers = Vec::new();
        for virtual_server in kernel.virtual_servers()? {
            let id = virtual_server.config.id;
            if part.has(id) {
                servers.push((virtual_server, kernel.real_servers(id)?));
            }
        }
        Ok(Self { info, servers })
    }

    /// The text that ipvsadm prints, with something at the end of some lines.
    pub(super) fn text(&self, columns: Columns, labels: &HashMap<VirtualServerId, String>) -> String {
        Listing::new(self.info, &self.servers).columns(columns).labels(labels).to_string()
    }

    /// The virtual servers for programs, with the Service of each.
    pub(super) fn table<'a>(&'a self, part: Part<'a>, our_tables: &netfilter::Observed) -> Table<'a> {
        let foreign = |id| match id {
            VirtualServerId::Address(address) => !has_element(&address, our_tables),
            VirtualServerId::Mark { .. } => true,
        };
        let row = |(virtual_server, real_servers): &'a (ObservedVirtualServer, Vec<_>)| Row {
            service: part.owner(virtual_server.config.id),
            virtual_server,
            foreign: foreign(virtual_server.config.id),
            real_servers,
        };
        Table { info: self.info, virtual_servers: self.servers.iter().map(row).collect() }
    }
}

/// The list for programs.
#[derive(Serialize)]
pub(super) struct Table<'a> {
    info: Info,
    virtual_servers: Vec<Row<'a>>,
}

#[derive(Serialize)]
struct Row<'a> {
    service: Option<&'a ObjectName>,
    #[serde(flatten)]
    virtual_server: &'a ObservedVirtualServer,
    foreign: bool,
    real_servers: &'a [ObservedRealServer],
}

impl Row<'_> {
    /// The end of its line.
    fn label(&self) -> (VirtualServerId, String) {
        let service = self.service.map_or_else(|| "-".to_owned(), ToString::to_string);
        (self.virtual_server.config.id, service)
    }
}

/// The kernel's text of all connections.
pub(super) const CONNECTIONS: &str = "/proc/net/ip_vs_conn";

/// Prints each connection to a part of the table as it is read, since there can be a million.
fn list_connections(format: Format, part: Part<'_>) -> anyhow::Result<()> {
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

/// Whether a connection goes to a virtual server in this part.
fn leads_to(part: Part<'_>, connection: &Connection) -> bool {
    let (ip, port) = (connection.virtual_server.ip(), connection.virtual_server.port());
    part.filter.is_none()
        || connection
            .protocol
            .parse()
            .is_ok_and(|protocol| part.has(ServiceAddress { protocol, ip, port }.into()))
}

#[cfg(test)]
mod tests;
