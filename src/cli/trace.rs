//! `kube-ipvs trace`: follows real packets through the kernel, and says where they end.

mod evidence;
mod flow;
mod report;
mod way;

use std::{
    net::{IpAddr, SocketAddr},
    process::ExitCode,
    str::FromStr,
    time::Duration,
};

use anyhow::{Context, bail};
use ipvs::{ServiceAddress, UnknownProtocol};
use netfilter::trace::{Followed, Tracer, UNOWNED_SECONDS, chains, installed_rule};
use service::{InvalidName, ObjectName};
use tokio::{
    runtime::Builder,
    select,
    time::{Instant, interval, sleep_until},
};

use super::{
    output::{self, print_as, say},
    probe,
    question::Daemon,
};
use crate::{node::requirements, serve::control::Control as _};
use evidence::{Evidence, legacy_tables};
use flow::{Flow, Outcome};
use report::{Report, Reporter};
use way::Ways;

/// How long a packet that left this node may take to be answered before the trace ends.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long nothing may be reported before what was seen is taken for the whole.
const QUIET: Duration = Duration::from_millis(300);

/// The flags of the command.
#[derive(clap::Args, Clone, Debug)]
pub(super) struct Trace {
    /// The Service, which the daemon knows, or an address with its port and, unless it is TCP, its protocol
    #[arg(value_name = "NAMESPACE/NAME|IP:PORT[/PROTOCOL]")]
    subject: Subject,
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

/// What is followed.
#[derive(Clone, Debug)]
enum Subject {
    Service(ObjectName),
    Address(ServiceAddress),
}

/// Why a text names nothing to follow.
#[derive(Debug, thiserror::Error)]
enum InvalidSubject {
    #[error(transparent)]
    Name(#[from] InvalidName),
    #[error(transparent)]
    Protocol(#[from] UnknownProtocol),
}

impl FromStr for Subject {
    type Err = InvalidSubject;

    fn from_str(text: &str) -> Result<Self, InvalidSubject> {
        let (at, protocol) = text.rsplit_once('/').unwrap_or((text, "tcp"));
        let Ok(at) = at.parse::<SocketAddr>() else { return Ok(Self::Service(text.parse()?)) };
        let protocol = protocol.to_uppercase().parse()?;
        Ok(Self::Address(ServiceAddress { protocol, ip: at.ip(), port: at.port() }))
    }
}

/// Traces, and prints. Exits with 1 if a flow was not answered, or none was seen.
pub(super) fn trace(asked: &Trace) -> anyhow::Result<ExitCode> {
    requirements::net_admin()?;
    let frontends = asked.frontends()?;
    let runtime = Builder::new_current_thread().enable_all().build().context("cannot start a runtime")?;
    let report = runtime.block_on(follow(asked, frontends))?;
    let answered = !report.flows.is_empty() && report.flows.iter().all(|flow| flow.answered);
    print_as(asked.output.format, &report, || report.text())?;
    Ok(if answered { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Trace {
    /// The addresses whose packets are followed.
    fn frontends(&self) -> anyhow::Result<Vec<ServiceAddress>> {
        let service = match &self.subject {
            Subject::Address(address) => return Ok(vec![*address]),
            Subject::Service(service) => service,
        };
        let explanation = self.daemon.client().explain(service)?;
        if let Some(why) = explanation.not_served {
            bail!("{service} is not served: {why}");
        }
        let addresses = explanation.parts.iter().flat_map(|part| &part.addresses);
        let frontends: Vec<_> = addresses.filter(|at| at.held_by.is_none()).map(|at| at.address).collect();
        if frontends.is_empty() {
            bail!("no port of {service} is served on this node");
        }
        Ok(frontends)
    }
}

/// Follows packets until there are enough of them, the time is over, or a signal comes.
async fn follow(asked: &Trace, frontends: Vec<ServiceAddress>) -> anyhow::Result<Report> {
    let client = asked.from.map(|client| client.to_canonical());
    let mut followed = Followed { frontends, client };
    followed.frontends.retain(|at| client.is_none_or(|client| client.is_ipv4() == at.ip.is_ipv4()));
    if followed.frontends.is_empty() {
        bail!("no address to follow is of the family of --from");
    }
    if asked.probe && !followed.frontends.iter().any(probe::is_tried) {
        bail!("--probe sends only TCP, and questions to name servers");
    }
    let evidence = Evidence::begin();
    let mut tracer = Tracer::start(&followed)?;
    let mut ways = Ways::new(&chains()?);
    let mut notes = Vec::new();
    let mut seconds = asked.seconds;
    if !tracer.is_owner() && seconds > UNOWNED_SECONDS {
        seconds = UNOWNED_SECONDS;
        notes.push(format!("this kernel is older than 5.12: packets were followed for {seconds} s at most"));
    }
    say(format_args!("kube-ipvs: following {} for up to {seconds} s", what(&followed)));
    let end = Instant::now() + Duration::from_secs(seconds.into());
    let probes = async {
        if asked.probe {
            probe::frontends(&followed.frontends).await;
        }
        std::future::pending::<()>().await;
    };
    tokio::pin!(probes);
    let mut tick = interval(Duration::from_millis(100));
    let (mut last_report, mut enough_since) = (Instant::now(), None);
    let mut is_complete = true;
    loop {
        select! {
            received = tracer.receive(|event| ways.take(event)) => {
                is_complete &= received? && !ways.are_full();
                last_report = Instant::now();
                if ways.are_full() {
                    break;
                }
            }
            () = &mut probes => {}
            _ = tick.tick() => {
                let flows = conclusive(&ways, asked.count);
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
    drop(tracer);
    if !is_complete {
        notes.push("more packets were reported than could be read: some are missing".to_owned());
    }
    // A rule that cannot be read is shown by its handle.
    let mut reporter = Reporter::new(&evidence, |rule| installed_rule(rule).ok().flatten());
    let flows: Vec<_> = conclusive(&ways, asked.count).iter().map(|flow| reporter.flow(flow)).collect();
    if flows.is_empty() {
        notes.push(format!(
            "no packet to {} came to this node in {seconds} s: it takes another path, or is lost earlier",
            what(&followed)
        ));
    }
    let legacy = legacy_tables(followed.frontends.iter().map(|at| at.ip));
    if !legacy.is_empty() {
        notes.push(format!(
            "tables of iptables-legacy are not traced: {}; iptables-legacy-save -c shows what they count",
            legacy.join(", ")
        ));
    }
    Ok(Report { flows, notes })
}

/// The first flows whose outcome says something.
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
