//! Virtual servers with their real servers.

use std::collections::HashMap;

use anyhow::bail;
use ipvs::{
    Info, Ipvs, ObservedRealServer, ObservedVirtualServer, VirtualServerId,
    text::{Columns, Listing},
};
use serde::Serialize;
use service::ObjectName;
use watcher::has_element;

use super::{
    super::{Format, output::print_as},
    Part,
};
use crate::node::requirements;

/// Prints a part of the table, with the Service of each virtual server if it is wanted.
pub(super) fn list(format: Format, part: Part<'_>, columns: Columns, services: bool) -> anyhow::Result<()> {
    let servers = Servers::read(part)?;
    if let (Some(filter), true) = (part.filter, servers.servers.is_empty()) {
        bail!("there is no virtual server {filter}");
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

/// Our tables, as far as they say whose a virtual server is.
pub(in crate::cli) fn our_tables() -> anyhow::Result<netfilter::Observed> {
    Ok(netfilter::Observed { elements: netfilter::elements()?, ..netfilter::Observed::default() })
}

/// Virtual servers with their real servers, as the kernel has them.
pub(in crate::cli) struct Servers {
    info: Info,
    servers: Vec<(ObservedVirtualServer, Vec<ObservedRealServer>)>,
}

impl Servers {
    /// Reads those of a part.
    pub(in crate::cli) fn read(part: Part<'_>) -> anyhow::Result<Self> {
        let mut kernel = requirements::open_ipvs()?;
        let info = kernel.info()?;
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
    pub(in crate::cli) fn text(&self, columns: Columns, labels: &HashMap<VirtualServerId, String>) -> String {
        Listing::new(self.info, &self.servers).columns(columns).labels(labels).to_string()
    }

    /// The same for programs, which also hear whose each virtual server is.
    pub(in crate::cli) fn table<'a>(&'a self, part: Part<'a>, our_tables: &netfilter::Observed) -> Table<'a> {
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

/// For programs.
#[derive(Serialize)]
pub(in crate::cli) struct Table<'a> {
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
    /// What is at the end of its line.
    fn label(&self) -> (VirtualServerId, String) {
        let service = self.service.map_or_else(|| "-".to_owned(), ToString::to_string);
        (self.virtual_server.config.id, service)
    }
}

#[cfg(test)]
mod tests {
    use ipvs::{Protocol, RealServer, Scheduler, ServiceAddress, Stats, VirtualServer};
    use netfilter::Element;

    use super::{
        super::super::{documented::assert_documented, owners::Owners},
        *,
    };

    /// Our tables with these elements.
    fn with<const COUNT: usize>(elements: [Element; COUNT]) -> netfilter::Observed {
        netfilter::Observed { elements: elements.into_iter().collect(), ..netfilter::Observed::default() }
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
        let owners: Owners = [(vip, "default/web".parse().unwrap())].into_iter().collect();
        let servers = vec![(virtual_server, vec![real_server])];
        let servers = Servers { info: Info::new((1, 2, 1), 4096), servers };
        let part = Part { filter: None, owners: Some(&owners) };
        assert_documented("list", &servers.table(part, &with([Element::ClusterIp(vip)])));
    }

    #[test]
    fn foreign_is_what_our_tables_know_nothing_of() {
        let at = |port| ServiceAddress { protocol: Protocol::Tcp, ip: [10, 96, 0, 10].into(), port };
        let mark = VirtualServerId::Mark { family: ipvs::Family::V4, mark: 7 };
        let servers = [at(80).into(), at(81).into(), at(82).into(), mark].map(|id: VirtualServerId| {
            (ObservedVirtualServer::new(VirtualServer::new(id, Scheduler::RR)), Vec::new())
        });
        let ours =
            with([Element::ClusterIp(at(80)), Element::ExternalLocal(at(81)), Element::Vip(at(82).ip)]);
        let servers = Servers { info: Info::new((1, 2, 1), 4096), servers: servers.into() };
        let table = servers.table(Part::ALL, &ours);
        let foreign: Vec<_> = table.virtual_servers.iter().map(|row| row.foreign).collect();
        assert_eq!(foreign, [false, false, true, true]);
    }
}
