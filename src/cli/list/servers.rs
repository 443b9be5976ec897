//! Virtual servers with their real servers.

use std::collections::HashMap;

use anyhow::bail;
use ipvs::{
    Info, Ipvs, ObservedRealServer, ObservedVirtualServer, VirtualServerId,
    text::{Columns, Listing},
};
use serde::Serialize;
use service::ObjectName;

use super::{
    super::{Format, output::print_as},
    Part,
};
use crate::node::preflight;

/// Prints a part of the table, with the Service of each virtual server if it is wanted.
pub(super) fn list(format: Format, part: Part<'_>, columns: Columns, services: bool) -> anyhow::Result<()> {
    let mut kernel = preflight::open_ipvs()?;
    let info = kernel.info()?;
    let mut servers = Vec::new();
    for virtual_server in kernel.virtual_servers()? {
        let id = virtual_server.config.id;
        if part.has(id) {
            servers.push((virtual_server, kernel.real_servers(id)?));
        }
    }
    if let (Some(filter), true) = (part.filter, servers.is_empty()) {
        bail!("there is no virtual server {filter}");
    }
    let table = Table::new(info, &servers, part);
    print_as(format, &table, || {
        let labels: HashMap<_, _> =
            table.virtual_servers.iter().filter(|_| services).map(Row::label).collect();
        Listing::new(info, &servers).columns(columns).labels(&labels).to_string()
    })?;
    Ok(())
}

#[derive(Serialize)]
struct Table<'a> {
    info: Info,
    virtual_servers: Vec<Row<'a>>,
}

#[derive(Serialize)]
struct Row<'a> {
    service: Option<&'a ObjectName>,
    #[serde(flatten)]
    virtual_server: &'a ObservedVirtualServer,
    real_servers: &'a [ObservedRealServer],
}

impl<'a> Table<'a> {
    fn new(
        info: Info,
        servers: &'a [(ObservedVirtualServer, Vec<ObservedRealServer>)],
        part: Part<'a>,
    ) -> Self {
        let row = |(virtual_server, real_servers): &'a (ObservedVirtualServer, Vec<_>)| Row {
            service: part.owner(virtual_server.config.id),
            virtual_server,
            real_servers,
        };
        Self { info, virtual_servers: servers.iter().map(row).collect() }
    }
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

    use super::{
        super::super::{documented::assert_documented, owners::Owners},
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
        let owners: Owners = [(vip, "default/web".parse().unwrap())].into_iter().collect();
        let servers = [(virtual_server, vec![real_server])];
        let part = Part { filter: None, owners: Some(&owners) };
        assert_documented("list", &Table::new(Info::new((1, 2, 1), 4096), &servers, part));
    }
}
