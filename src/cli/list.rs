//! `kube-ipvs list`.

use std::process::ExitCode;

use ipvs::{Info, Ipvs, ObservedRealServer, ObservedVirtualServer, text::Listing};
use serde::Serialize;

use super::{
    Format,
    output::{print, print_json},
};
use crate::preflight;

/// Prints this network namespace's virtual servers, whoever made them.
pub(super) fn list(format: Format) -> anyhow::Result<ExitCode> {
    let mut kernel = preflight::open_ipvs()?;
    let info = kernel.info()?;
    let mut servers = Vec::new();
    for virtual_server in kernel.virtual_servers()? {
        let real_servers = kernel.real_servers(virtual_server.config.id)?;
        servers.push((virtual_server, real_servers));
    }
    match format {
        Format::Text => print(&Listing { info, servers: &servers }.to_string())?,
        Format::Json => print_json(&json(info, &servers))?,
    }
    Ok(ExitCode::SUCCESS)
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
