//! Sends the packets of a table, and records the answers.

use std::{
    collections::{BTreeMap, BTreeSet},
    error::Error,
    fmt::Write,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::atomic::{AtomicU16, AtomicUsize, Ordering},
    thread,
    time::Duration,
};

use ipvs::{Family, Protocol, ServiceAddress};
use nix::errno::Errno;
use testkit::lab::{Answer, Lab, Manner};

use super::{
    network::Network,
    table::{By, Outcome, Row},
};

/// How many ask at the same time. A client whose packets are dropped waits for seconds, and so does one that is
/// refused: the answer to a first SYN comes while connect(2) holds the socket and is only noted (`tcp_v4_err` in
/// net/ipv4/tcp_ipv4.c), so the refusal waits for the second.
const AT_ONCE: usize = 150;

/// How long an answer is waited for: much longer than it takes, and than the second SYN takes to come.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long nothing must be heard where nothing is expected. Where SCTP is refused it is waited for as long:
/// the association makes a note of it and tries on.
const SILENCE: Duration = Duration::from_millis(2500);

/// How many of those that heard nothing are asked again, one after the other.
const MOST_ASKED_AGAIN: usize = 60;

/// A row, asked in one family by one protocol.
pub(super) struct Answered<'a> {
    asked: Asked<'a>,
    outcome: Outcome,
}

#[derive(Clone, Copy)]
struct Asked<'a> {
    row: &'a Row,
    family: Family,
    /// And the port; `None` is a ping.
    by: Option<(Protocol, u16)>,
}

impl Answered<'_> {
    pub(super) fn is_otherwise(&self) -> bool {
        self.outcome != self.asked.row.expected
    }
}

/// Asks what the rows ask: in turn where round robin is to be followed, everything else at the same time.
pub(super) fn ask<'a>(network: &Network, rows: &'a [Row]) -> Vec<Answered<'a>> {
    let (kernels, mut queues) = (Lab::protocols(), BTreeMap::<_, Vec<Asked>>::new());
    for (number, asked) in rows.iter().flat_map(|row| Asked::all(row, &kernels)).enumerate() {
        let alone = !matches!(asked.row.expected, Outcome::Answered(_));
        let queue = (network.address(&asked.row.to, asked.family), asked.by, alone.then_some(number));
        queues.entry(queue).or_default().push(asked);
    }
    let (queues, next) = (queues.into_values().collect::<Vec<_>>(), AtomicUsize::new(0));
    let work = || {
        let mut answered = Vec::new();
        while let Some(queue) = queues.get(next.fetch_add(1, Ordering::Relaxed)) {
            answered.extend(
                queue.iter().map(|asked| Answered { asked: *asked, outcome: asked.outcome(network) }),
            );
        }
        answered
    };
    let mut answered: Vec<_> = thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    // A machine that is asked too much at once loses packets and answers late. A rule that drops them does so again.
    let lost = |it: &&mut Answered| it.is_otherwise() && it.outcome == Outcome::Dropped;
    for it in answered.iter_mut().filter(lost).take(MOST_ASKED_AGAIN) {
        it.outcome = it.asked.outcome(network);
    }
    answered.sort_by_key(|it| (it.asked.row.line, it.asked.by, it.asked.family));
    answered
}

impl<'a> Asked<'a> {
    /// A row in each of its families by each of its protocols that this kernel has.
    fn all(row: &'a Row, kernels: &[Protocol]) -> impl Iterator<Item = Self> {
        let by: Vec<_> = match &row.by {
            By::Ping => vec![None],
            By::Port(protocols, port) => {
                let protocols = protocols.iter().filter(|protocol| kernels.contains(protocol));
                protocols.map(|protocol| Some((*protocol, *port))).collect()
            }
        };
        by.into_iter().flat_map(move |by| row.families.iter().map(move |&family| Self { row, family, by }))
    }

    fn outcome(self, network: &Network) -> Outcome {
        let ip = network.address(&self.row.to, self.family);
        let Some((protocol, port)) = self.by else {
            let pinged = network.host(&self.row.from).ping(ip);
            return pinged.map_or_else(|error| failure(&error), |()| Outcome::Echo);
        };
        // Round robin: one more than expected would come to light by being asked.
        let expected = if let Outcome::Answered(answers) = &self.row.expected { answers.len() } else { 0 };
        let mut answers = BTreeSet::new();
        for _ in 0..=expected {
            match self.once(network, ServiceAddress { protocol, ip, port }) {
                Ok(Answer { from, seen_as }) => {
                    let word = network.word(seen_as, &from);
                    answers.insert((from, word));
                }
                Err(error) => return failure(&error),
            }
        }
        Outcome::Answered(answers)
    }

    fn once(self, network: &Network, service: ServiceAddress) -> anyhow::Result<Answer> {
        let source: IpAddr = match (self.row.from.as_str(), self.family) {
            ("loopback", Family::V4) => Ipv4Addr::LOCALHOST.into(),
            ("loopback", Family::V6) => Ipv6Addr::LOCALHOST.into(),
            (_, Family::V4) => Ipv4Addr::UNSPECIFIED.into(),
            (_, Family::V6) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let patience = match (&self.row.expected, service.protocol) {
            (Outcome::Dropped, _) | (Outcome::Refused, Protocol::Sctp) => SILENCE,
            _ => PATIENCE,
        };
        let manner = Manner { source: Some(SocketAddr::new(source, port_of_its_own())), patience };
        network.host(&self.row.from).ask_in(manner, service)
    }
}

/// A port from which no client has asked. Two flows from one port to different VIPs that end at the same pod
/// are one and the same on their way back, and the later is dropped until conntrack forgets the earlier.
///
/// They are below all NodePorts: IPVS takes an answer to such a port, SYN and ACK, for a new connection to
/// the NodePort (`tcp_conn_schedule` in net/netfilter/ipvs/ip_vs_proto_tcp.c). And above those at which the daemon
/// listens on the node.
fn port_of_its_own() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(10_300);
    let port = NEXT.fetch_add(1, Ordering::Relaxed);
    assert!(port < 30_000, "every port was used");
    port
}

fn failure(error: &anyhow::Error) -> Outcome {
    match error.chain().find_map(errno) {
        Some(Errno::ECONNREFUSED) => Outcome::Refused,
        // connect(2) with a time limit, and recv(2).
        Some(Errno::EINPROGRESS | Errno::EAGAIN) => Outcome::Dropped,
        _ => Outcome::Other(format!("{error:#}")),
    }
}

fn errno(error: &(dyn Error + 'static)) -> Option<Errno> {
    let of_io = error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error).map(Errno::from_raw);
    of_io.or_else(|| error.downcast_ref::<Errno>().copied())
}

/// The rows that came out otherwise, each with what came of it.
pub(super) fn report(otherwise: &[Answered]) -> String {
    let mut rows = BTreeMap::<_, BTreeMap<_, Vec<String>>>::new();
    for Answered { asked: Asked { row, family, by }, outcome } in otherwise {
        let by = by.map_or_else(|| "ping".to_owned(), |(protocol, _)| protocol.to_string());
        let outcomes = rows.entry((row.line, &row.text)).or_default();
        outcomes.entry(outcome.to_string()).or_default().push(format!("{by} {family}"));
    }
    let mut text = String::new();
    for ((line, row), outcomes) in rows {
        let _ = writeln!(text, "{line:>4}  {row}");
        for (outcome, asked) in outcomes {
            let _ = writeln!(text, "          {outcome}: {}", asked.join(", "));
        }
    }
    text
}
