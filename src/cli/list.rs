//! `kube-ipvs list`.

mod connections;
mod filter;
mod servers;

use std::process::ExitCode;

use ipvs::text::Columns;
use service::one_line;

use self::filter::Filter;
use super::{Format, output, owners::Owners, question::Daemon};

pub(super) use {connections::CONNECTIONS, filter::Part, servers::Servers, servers::our_tables};

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
#[derive(clap::Args, Clone, Debug)]
pub(super) struct List {
    /// Only those of a namespace's Services (NAMESPACE), of a Service (NAMESPACE/NAME), or at an address (IP, IP:PORT);
    /// the daemon knows the names
    #[arg(value_name = "WHICH")]
    filter: Option<Filter>,
    #[command(flatten)]
    output: output::Args,
    #[command(flatten)]
    what: What,
    /// Show the Service of each virtual server at the end of its line, as the daemon knows it; - if there is none
    #[arg(long, conflicts_with = "connections")]
    services: bool,
    /// Print numbers, as ipvsadm does with it; here they are printed without it too
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
            connections::list(output.format, part)?;
            return Ok(ExitCode::SUCCESS);
        }
        What { stats: true, .. } => Columns::Counters,
        What { rate: true, .. } => Columns::Rates,
        What { .. } => Columns::Configuration,
    };
    servers::list(output.format, part, columns, *services && owners.is_some())?;
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
}
