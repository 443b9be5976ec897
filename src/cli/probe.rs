//! `kube-ipvs probe`: connects to each endpoint and frontend of a Service from this node.

use std::{
    collections::HashMap,
    fmt::{self, Write as _},
    io::{self, ErrorKind},
    net::{IpAddr, SocketAddr},
    process::ExitCode,
    time::Duration,
};

use anyhow::Context;
use ipvs::{Ipvs as _, ObservedRealServer, Protocol, RealServerAddress, ServiceAddress};
use nix::errno::Errno;
use serde::Serialize;
use service::{DNS_PORT, EndpointReason, Explanation, ObjectName, one_line};
use tokio::{
    net::{TcpStream, UdpSocket},
    runtime::Builder,
    task::JoinSet,
    time::{Instant, timeout},
};

use super::{
    output::{print_as, say},
    question::AboutService,
};
use crate::node::requirements;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(1);

/// The limit of simultaneous attempts, so that no limit of open files is reached.
const AT_ONCE: usize = 200;

/// The result of an attempt.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "result")]
pub(super) enum Attempt {
    /// A connection was made, or a name server answered.
    Answers {
        /// After so many milliseconds.
        milliseconds: f64,
    },
    /// Nothing listens there, or a rule rejects.
    Refuses,
    /// Nothing came back in a second.
    Silent,
    /// The kernel cannot send there.
    Fails {
        /// Its words.
        error: String,
    },
    /// UDP other than a name server, and SCTP.
    NotTried,
}

/// The answer.
#[derive(Debug, Serialize)]
struct Report {
    service: ObjectName,
    frontends: Vec<Probed<ServiceAddress>>,
    endpoints: Vec<ProbedEndpoint>,
}

#[derive(Debug, Serialize)]
struct Probed<A> {
    address: A,
    #[serde(flatten)]
    attempt: Attempt,
}

#[derive(Debug, Serialize)]
struct ProbedEndpoint {
    protocol: Protocol,
    #[serde(flatten)]
    probed: Probed<RealServerAddress>,
    /// What IPVS has counted for it at the Service's addresses; `None` if the kernel cannot be read.
    kernel: Option<Counted>,
}

/// What IPVS has counted for an endpoint.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Counted {
    active_connections: u64,
    connections: u64,
    packets_in: u64,
    packets_out: u64,
}

/// Probes, and prints the results. Exits with 1 if a target does not answer.
pub(super) fn probe(asked: &AboutService) -> anyhow::Result<ExitCode> {
    let explanation = asked.ask.daemon.explain_served(&asked.name()?)?;
    let runtime = Builder::new_current_thread().enable_all().build().context("cannot start a runtime")?;
    let report = runtime.block_on(Report::make(&explanation));
    let attempts = report.frontends.iter().map(|it| &it.attempt);
    let attempts = attempts.chain(report.endpoints.iter().map(|it| &it.probed.attempt));
    let is_well = attempts.clone().all(Attempt::is_well) && !report.endpoints.is_empty();
    print_as(asked.ask.output.format, &report, || report.to_string())?;
    Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whether a frontend can be tried: of UDP only name servers can be asked without knowing the application.
pub(super) fn is_tried(at: &ServiceAddress) -> bool {
    at.protocol == Protocol::Tcp || at.protocol == Protocol::Udp && at.port == DNS_PORT
}

/// Connects to frontends, at the same time.
pub(super) async fn frontends(addresses: &[ServiceAddress]) -> HashMap<ServiceAddress, Attempt> {
    all(addresses.iter().map(|at| (*at, at.protocol, SocketAddr::new(at.ip, at.port), at.port == DNS_PORT)))
        .await
}

/// Tries each target: a key, the protocol, the address, and whether it is a name server.
async fn all<K: std::hash::Hash + Eq + Send + 'static>(
    places: impl Iterator<Item = (K, Protocol, SocketAddr, bool)>,
) -> HashMap<K, Attempt> {
    let mut attempts = places.map(|(key, protocol, at, is_dns)| async move {
        let attempt = match (protocol, is_dns) {
            (Protocol::Tcp, _) => attempt(TcpStream::connect(at)).await,
            (Protocol::Udp, true) => attempt(ask_name_server(at)).await,
            _ => Attempt::NotTried,
        };
        (key, attempt)
    });
    let mut results = HashMap::new();
    loop {
        let some: JoinSet<_> = attempts.by_ref().take(AT_ONCE).collect();
        if some.is_empty() {
            return results;
        }
        results.extend(some.join_all().await);
    }
}

async fn attempt<T>(answer: impl Future<Output = io::Result<T>>) -> Attempt {
    let begun = Instant::now();
    match timeout(PATIENCE, answer).await {
        Ok(Ok(_)) => Attempt::Answers { milliseconds: begun.elapsed().as_secs_f64() * 1000.0 },
        Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused => Attempt::Refuses,
        Ok(Err(error)) => {
            let words = error.raw_os_error().map(|errno| Errno::from_raw(errno).desc().to_owned());
            Attempt::Fails { error: words.unwrap_or_else(|| error.to_string()) }
        }
        Err(_) => Attempt::Silent,
    }
}

/// Asks for the status of a name server (RFC 1035, 4.1.1), which it answers by itself, if only by an error. For a name it
/// may wait for another server.
async fn ask_name_server(at: SocketAddr) -> io::Result<()> {
    const QUESTION: [u8; 17] = [0x6b, 0x69, 0x10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 1];
    let any: IpAddr = if at.is_ipv4() { [0; 4].into() } else { [0_u16; 8].into() };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(at).await?;
    socket.send(&QUESTION).await?;
    let mut answer = [0; 512];
    socket.recv(&mut answer).await.map(drop)
}

impl Attempt {
    fn is_well(&self) -> bool {
        matches!(self, Self::Answers { .. } | Self::NotTried)
    }
}

impl Report {
    async fn make(explanation: &Explanation) -> Self {
        let served: Vec<_> = explanation.served_addresses().collect();
        let used: Vec<_> = explanation
            .parts
            .iter()
            .flat_map(|part| {
                let is_dns = part.addresses.iter().any(|at| at.address.port == DNS_PORT);
                let used = part.endpoints.iter().filter(|endpoint| endpoint.reason == EndpointReason::Used);
                used.map(move |endpoint| ((part.protocol, endpoint.address), is_dns))
            })
            .collect();
        let mut through = frontends(&served).await;
        let places = used.iter().map(|(key @ (protocol, at), is_dns)| {
            (*key, *protocol, SocketAddr::new(at.ip, at.port), *is_dns)
        });
        let direct = all(places).await;
        let counted = counted(&served).inspect_err(|error| {
            say(format_args!("kube-ipvs: IPVS cannot be read: {}", one_line(error.as_ref())));
        });
        let counted = counted.ok();
        let mut endpoints: Vec<_> = direct
            .into_iter()
            .map(|(key @ (protocol, address), attempt)| {
                let kernel = counted.as_ref().map(|counted| counted.get(&key).copied().unwrap_or_default());
                ProbedEndpoint { protocol, probed: Probed { address, attempt }, kernel }
            })
            .collect();
        endpoints.sort_by_key(|it| (it.protocol, it.probed.address));
        let frontends = served
            .into_iter()
            .filter_map(|address| through.remove(&address).map(|attempt| Probed { address, attempt }));
        Self { service: explanation.service.clone(), frontends: frontends.collect(), endpoints }
    }
}

/// What IPVS has counted for each endpoint at these addresses.
fn counted(addresses: &[ServiceAddress]) -> anyhow::Result<HashMap<(Protocol, RealServerAddress), Counted>> {
    let mut kernel = requirements::open_ipvs()?;
    let mut counted: HashMap<_, Counted> = HashMap::new();
    for address in addresses {
        for ObservedRealServer { config, active_connections, stats, .. } in
            kernel.real_servers((*address).into())?
        {
            let sum = counted.entry((address.protocol, config.address)).or_default();
            sum.active_connections += u64::from(active_connections);
            sum.connections += stats.connections;
            sum.packets_in += stats.packets_in;
            sum.packets_out += stats.packets_out;
        }
    }
    Ok(counted)
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Answers { milliseconds } => write!(f, "answers in {milliseconds:.1} ms"),
            Self::Refuses => f.write_str("refuses: nothing listens there, or a rule rejects"),
            Self::Silent => f.write_str("silent for 1 s"),
            Self::Fails { error } => write!(f, "fails: {error}"),
            Self::NotTried => f.write_str("not tried: only TCP and name servers can be probed"),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}, probed from this node", self.service)?;
        let frontends = self.frontends.iter().map(|it| (it.address.to_string(), it.attempt.to_string()));
        let endpoints = self.endpoints.iter().map(|it| {
            let mut words = it.probed.attempt.to_string();
            if let Some(Counted { active_connections, connections, packets_in, packets_out }) = it.kernel {
                let _ = write!(
                    words,
                    "; IPVS: {connections} connections, {active_connections} active, {packets_in} packets to it, \
                     {packets_out} from it"
                );
            }
            (format!("{} {}", it.protocol, it.probed.address), words)
        });
        let frontends: Vec<_> = frontends.collect();
        let endpoints: Vec<_> = endpoints.collect();
        let width = frontends.iter().chain(&endpoints).map(|(at, _)| at.len()).max().unwrap_or_default();
        writeln!(f, "\nendpoints, directly")?;
        for (at, words) in &endpoints {
            writeln!(f, "  {at:width$}  {words}")?;
        }
        if endpoints.is_empty() {
            writeln!(f, "  none is used on this node")?;
        }
        writeln!(f, "\naddresses of the Service")?;
        for (at, words) in &frontends {
            writeln!(f, "  {at:width$}  {words}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{super::documented_tests::assert_documented, *};

    #[test]
    fn its_json_is_documented() {
        let endpoint = |last, attempt, kernel| ProbedEndpoint {
            protocol: Protocol::Tcp,
            probed: Probed {
                address: RealServerAddress { ip: [10, 244, 1, last].into(), port: 8080 },
                attempt,
            },
            kernel,
        };
        let counted = Counted { active_connections: 1, connections: 7, packets_in: 40, packets_out: 33 };
        let error = "No route to host".to_owned();
        let report = Report {
            service: "default/web".parse().unwrap(),
            frontends: vec![Probed {
                address: ServiceAddress { protocol: Protocol::Tcp, ip: [10, 96, 0, 10].into(), port: 80 },
                attempt: Attempt::Answers { milliseconds: 0.4 },
            }],
            endpoints: vec![
                endpoint(2, Attempt::Answers { milliseconds: 0.3 }, Some(counted)),
                endpoint(3, Attempt::Silent, None),
                endpoint(4, Attempt::Fails { error }, None),
            ],
        };
        assert_documented("probe", &report);
    }
}
