//! `kube-ipvs trace`: follows real packets through the kernel, and says where they end.

mod evidence;
mod flow;
mod report;
mod way;

use std::{future::pending, net::IpAddr, process::ExitCode, time::Duration};

use anyhow::{Context, bail};
use host_rules::legacy_tables_in_use;
use ipvs::{Protocol, ServiceAddress};
use netfilter::trace::{Followed, Tracer, UNOWNED_SECONDS, chains, installed_rule};
use service::{AddressQuery, Explanation};
use tokio::{
    pin,
    runtime::Builder,
    select,
    time::{Instant, interval, sleep_until},
};

use super::{
    output::{self, print_as, say},
    probe,
    question::Daemon,
    subject::{InvalidSubject, Namespace, Subject},
};
use crate::{node::requirements, serve::control::Control as _};
use evidence::Evidence;
use flow::{Flow, Outcome};
use report::{Report, Reporter};
use way::Ways;

/// How long a packet that left this node may take to be answered before the trace ends.
const PATIENCE: Duration = Duration::from_secs(2);

/// The silence of the kernel after which the reports count as complete.
const QUIET: Duration = Duration::from_millis(300);

/// The flags of the command.
#[derive(clap::Args, Clone, Debug)]
pub(super) struct Trace {
    /// The Service, which the daemon knows; an address with its port and, unless it is TCP, its protocol; or the number
    /// of a NodePort, which the daemon knows too
    #[arg(value_name = "NAMESPACE/NAME|IP:PORT[/PROTOCOL]|PORT")]
    subject: Subject,
    #[command(flatten)]
    namespace: Namespace,
    /// Follow only what this client sends, and its answers
    #[arg(long, value_name = "IP")]
    from: Option<IpAddr>,
    /// Stop after this many connections
    #[arg(long, value_name = "COUNT", default_value = "3", value_parser = clap::value_parser!(u16).range(1..=100))]
    count: u16,
    /// Stop after this many seconds
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
    /// Send packets from this node, as `kube-ipvs probe` does
    #[arg(long, conflicts_with = "from")]
    probe: bool,
    #[command(flatten)]
    output: output::Args,
    #[command(flatten)]
    daemon: Daemon,
}

/// Traces, and prints. Exits with 1 if a flow was not answered, or none was seen.
pub(super) fn trace(asked: &Trace) -> anyhow::Result<ExitCode> {
    requirements::net_admin()?;
    let followed = asked.followed()?;
    let runtime = Builder::new_current_thread().enable_all().build().context("cannot start a runtime")?;
    let report = runtime.block_on(follow(asked, &followed))?;
    let answered = !report.flows.is_empty() && report.flows.iter().all(|flow| flow.answered);
    print_as(asked.output.format, &report, || report.text())?;
    Ok(if answered { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Trace {
    /// The packets to follow.
    fn followed(&self) -> anyhow::Result<Followed> {
        let mut frontends = self.frontends()?;
        let client = self.from.map(|client| client.to_canonical());
        frontends.retain(|at| client.is_none_or(|client| client.is_ipv4() == at.ip.is_ipv4()));
        if frontends.is_empty() {
            bail!("no address to follow is of the family of --from");
        }
        if self.probe && !frontends.iter().any(probe::is_tried) {
            bail!("--probe supports only TCP and DNS");
        }
        Ok(Followed { frontends, client })
    }

    /// The addresses of the subject.
    fn frontends(&self) -> anyhow::Result<Vec<ServiceAddress>> {
        let service = match &self.subject {
            Subject::Address(AddressQuery { ip: Some(ip), port: Some(port), protocol }) => {
                let protocol = protocol.unwrap_or(Protocol::Tcp);
                return Ok(vec![ServiceAddress { protocol, ip: *ip, port: *port }]);
            }
            Subject::Address(query @ AddressQuery { ip: None, port: Some(port), .. }) => {
                return self.node_port(query, *port);
            }
            Subject::Address(_) => return Err(InvalidSubject::PortMissing.into()),
            Subject::Service(name) => name.in_namespace(&self.namespace)?,
        };
        let frontends: Vec<_> = self.daemon.explain_served(&service)?.served_addresses().collect();
        if frontends.is_empty() {
            bail!("no port of {service} is served on this node");
        }
        Ok(frontends)
    }

    /// The addresses at which this node serves a NodePort.
    fn node_port(&self, query: &AddressQuery, port: u16) -> anyhow::Result<Vec<ServiceAddress>> {
        let explanation = self.daemon.client().explain_address(query, None)?;
        let frontends: Vec<_> = explanation.served.iter().flat_map(Explanation::served_addresses).collect();
        if frontends.is_empty() {
            bail!("this node serves no NodePort {port}");
        }
        Ok(frontends)
    }
}

/// Follows packets, and reports where they end.
async fn follow(asked: &Trace, followed: &Followed) -> anyhow::Result<Report> {
    let evidence = Evidence::begin();
    let mut tracer = Tracer::start(followed)?;
    let mut ways = Ways::new(&chains()?);
    let mut notes = Vec::new();
    let mut seconds = asked.seconds;
    if !tracer.is_owner() && seconds > UNOWNED_SECONDS {
        seconds = UNOWNED_SECONDS;
        notes.push(format!("this kernel is older than 5.12: packets were followed for {seconds} s at most"));
    }
    say(format_args!("kube-ipvs: following {} for up to {seconds} s", what(followed)));
    let end = Instant::now() + Duration::from_secs(seconds.into());
    if !collect(asked, followed, &mut tracer, &mut ways, end).await? {
        notes.push("more packets were reported than could be read: some are missing".to_owned());
    }
    drop(tracer);
    // A rule that cannot be read is shown by its handle.
    let mut reporter = Reporter::new(&evidence, |rule| installed_rule(rule).ok().flatten());
    let flows: Vec<_> = conclusive(&ways, asked.count).iter().map(|flow| reporter.flow(flow)).collect();
    if flows.is_empty() {
        notes.push(format!(
            "no packet to {} came to this node in {seconds} s: it takes another path, or is lost earlier",
            what(followed)
        ));
    }
    let legacy = followed.families().into_iter().filter_map(|family| legacy_tables_in_use(family).ok());
    let legacy: Vec<_> =
        legacy.flat_map(|names| names.lines().map(str::to_owned).collect::<Vec<_>>()).collect();
    if !legacy.is_empty() {
        notes.push(format!(
            "tables of iptables-legacy are not traced: {}; iptables-legacy-save -c shows what they count",
            legacy.join(", ")
        ));
    }
    Ok(Report { flows, notes })
}

/// Collects packets until there are enough flows, the time is over, or a signal comes. Returns whether no packet is
/// missing.
async fn collect(
    asked: &Trace,
    followed: &Followed,
    tracer: &mut Tracer,
    ways: &mut Ways,
    end: Instant,
) -> anyhow::Result<bool> {
    let probes = async {
        if asked.probe {
            probe::frontends(&followed.frontends).await;
        }
        pending::<()>().await;
    };
    pin!(probes);
    let mut tick = interval(Duration::from_millis(100));
    let (mut last_report, mut enough_since) = (Instant::now(), None);
    let mut is_complete = true;
    while !ways.are_full() {
        select! {
            received = tracer.receive(|event| ways.take(event)) => {
                is_complete &= received?;
                last_report = Instant::now();
            }
            () = &mut probes => {}
            _ = tick.tick() => {
                let flows = conclusive(ways, asked.count);
                if flows.len() >= usize::from(asked.count) {
                    let since = *enough_since.get_or_insert_with(Instant::now);
                    let waits = |flow: &Flow<'_>| matches!(flow.outcome(), Outcome::NotAnswered { .. });
                    let is_quiet = last_report.elapsed() > QUIET && !flows.iter().any(waits);
                    if is_quiet || since.elapsed() > PATIENCE {
                        break;
                    }
                }
            }
            () = sleep_until(end) => break,
            _ = tokio::signal::ctrl_c() => break,
        }
    }
    Ok(is_complete && !ways.are_full())
}

/// The first flows with a meaningful outcome.
fn conclusive(ways: &Ways, count: u16) -> Vec<Flow<'_>> {
    let flows = Flow::all(ways.all()).into_iter().filter(Flow::is_conclusive);
    flows.take(count.into()).collect()
}

fn what(followed: &Followed) -> String {
    let mut what = match &followed.frontends[..] {
        [one] => one.to_string(),
        [first, rest @ ..] => format!("{first} and {} more addresses", rest.len()),
        [] => "nothing".to_owned(),
    };
    if let Some(client) = followed.client {
        what = format!("{what} from {client}");
    }
    what
}

#[cfg(test)]
mod tests;
