//! Asks other nodes whether they unpack what is sent to their pods.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    mem,
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use http::{Request, header::HOST};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::{body::Bytes, client::conn::http1};
use hyper_util::rt::TokioIo;
use ipvs::Family;
use netfilter::PacketCounter;
use service::{Change, Unpacking, UnpackingPeers};
use tokio::{
    net::TcpStream,
    select,
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep_until, timeout},
};
use tracing::{debug, info};

use super::{Arrivals, DirectReturn, PeersToAsk};
use crate::serve::health::DirectReturnAnswer;

/// How often each node is asked at most. One that is replaced by another program says so.
const PERIOD: Duration = Duration::from_secs(10);
/// All nodes ask all others: with more of them the period is longer, so that none answers more than fifty
/// times a second.
const PERIOD_PER_PEER: Duration = Duration::from_millis(20);
/// How long an answer holds while the node does not answer again: its kernel goes on when its daemon is
/// replaced.
const HOLDS: Duration = Duration::from_secs(3 * 60);

type Answers = BTreeMap<Arc<str>, DirectReturnAnswer>;

/// Asks all nodes that have endpoints, again and again, and keeps what is known of them.
pub(super) struct Peers<'a, F> {
    parts: &'a DirectReturn<'a, F>,
    begun: Instant,
    /// What each node said last, and when.
    known: BTreeMap<Arc<str>, (Unpacking, Instant)>,
    /// What was sent last.
    sent: UnpackingPeers,
    arrivals: Arrivals,
}

impl<'a, F: Fn(Change)> Peers<'a, F> {
    /// The start, at which nothing is known of any node.
    pub(super) fn new(parts: &'a DirectReturn<'a, F>) -> Self {
        let (begun, known) = (Instant::now(), BTreeMap::new());
        Self { parts, begun, known, sent: UnpackingPeers::new(), arrivals: Arrivals::default() }
    }

    /// Asks all nodes in rounds, and between them those of which nothing is known.
    pub(super) async fn follow(mut self, mut wanted: watch::Receiver<PeersToAsk>) -> Infallible {
        let mut forced_before = wanted.borrow().forced_syncs;
        let mut next_round = Instant::now();
        let mut kernel_holds = true;
        loop {
            let PeersToAsk { peers, forced_syncs, .. } = wanted.borrow_and_update().clone();
            if mem::replace(&mut forced_before, forced_syncs) != forced_syncs {
                self.arrivals = Arrivals::default();
                self.parts.filtered.clear();
                next_round = Instant::now();
            }
            if next_round <= Instant::now() {
                next_round = Instant::now() + period(peers.len());
                let answers = self.ask(&peers, |_| true).await;
                self.forget_silent(holds(peers.len()));
                for family in Family::BOTH {
                    self.record_arrivals(family, &answers);
                }
            } else {
                let known: BTreeSet<_> = self.known.keys().cloned().collect();
                self.ask(&peers, |name| !known.contains(name)).await;
            }
            self.send_what_is_new();
            // What the kernel had from an earlier daemon holds no longer than the answers which that had.
            if kernel_holds && self.begun.elapsed() >= holds(peers.len()) {
                (self.parts.send)(Change::TunnelledBefore(BTreeMap::new()));
                kernel_holds = false;
            }
            select! {
                () = sleep_until(next_round) => {}
                _ = wanted.changed() => {}
            }
        }
    }

    /// Asks some of the nodes, and keeps what they say. Begins with the node behind this one, so that not all ask the
    /// same one first.
    async fn ask(
        &mut self,
        peers: &BTreeMap<Arc<str>, Vec<IpAddr>>,
        is_asked: impl Fn(&str) -> bool,
    ) -> Answers {
        let behind = peers.iter().filter(|(name, _)| &***name > self.parts.node_name);
        let before = peers.iter().filter(|(name, _)| &***name <= self.parts.node_name);
        let asked = behind.chain(before).filter(|(name, _)| is_asked(name));
        let answers = match self.parts.health_port {
            Some(port) => ask_each(asked, port).await,
            None => Answers::new(),
        };
        self.known.retain(|name, _| peers.contains_key(name));
        for (name, DirectReturnAnswer { unpacks, gue, .. }) in &answers {
            let now = Unpacking { families: unpacks.clone().unwrap_or_default(), gue: *gue };
            let before = self.known.insert(name.clone(), (now.clone(), Instant::now()));
            if before.map(|(before, _)| before).unwrap_or_default() != now {
                log(name, &now);
            }
        }
        answers
    }

    fn forget_silent(&mut self, holds: Duration) {
        self.known.retain(|name, (unpacking, answered)| {
            let is_silent = answered.elapsed() >= holds;
            if is_silent && !unpacking.families.is_empty() {
                info!(node = &**name, "the node no longer answers: traffic to its pods is masqueraded");
            }
            !is_silent
        });
    }

    /// Compares what this node has sent through tunnels of a family with what has arrived, if every node has
    /// answered that it sends to.
    fn record_arrivals(&mut self, family: Family, answers: &Answers) {
        let unpacking = self.known.iter().filter(|(_, (it, _))| it.families.contains(&family));
        let received = unpacking.map(|(name, _)| {
            let received = answers.get(name)?.received.get(&family)?;
            Some((name.clone(), *received))
        });
        if let Some(received) = received.collect::<Option<BTreeMap<_, _>>>().filter(|all| !all.is_empty())
            && self.arrivals.record(
                family,
                self.parts.packets.count(family, PacketCounter::TunnelSent),
                received,
            )
        {
            self.parts.filtered.add(family);
        }
    }

    /// Sends which nodes are reached through tunnels, if that is new.
    fn send_what_is_new(&mut self) {
        let open = |Unpacking { families, gue }: &Unpacking| Unpacking {
            families: families.iter().copied().filter(|it| !self.parts.filtered.contains(*it)).collect(),
            gue: *gue,
        };
        let reached: UnpackingPeers =
            self.known.iter().map(|(name, (unpacking, _))| (name.clone(), open(unpacking))).collect();
        if reached != self.sent {
            (self.parts.send)(Change::UnpackingPeers(reached.clone()));
            self.sent = reached;
        }
    }
}

fn period(peers: usize) -> Duration {
    PERIOD.max(PERIOD_PER_PEER.saturating_mul(u32::try_from(peers).unwrap_or(u32::MAX)))
}

/// How long an answer holds: at least three rounds.
fn holds(peers: usize) -> Duration {
    HOLDS.max(period(peers) * 3)
}

fn log(node: &str, Unpacking { families, gue }: &Unpacking) {
    let families: Vec<_> = families.iter().map(Family::to_string).collect();
    if families.is_empty() {
        info!(node, "the node no longer unpacks tunnels: traffic to its pods is masqueraded");
    } else {
        info!(
            node,
            families = families.join(", "),
            gue,
            "the node unpacks tunnels: traffic to its pods is answered directly"
        );
    }
}

/// How long a node may take.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long an answer may be, in bytes.
const LONGEST_ANSWER: usize = 64 * 1024;

/// How many nodes are asked at a time.
const AT_A_TIME: usize = 32;

/// The answers of those nodes that have answered, and have decided.
async fn ask_each(
    mut peers: impl Iterator<Item = (&Arc<str>, &Vec<IpAddr>)>,
    port: u16,
) -> BTreeMap<Arc<str>, DirectReturnAnswer> {
    let mut answers = BTreeMap::new();
    let mut asked = JoinSet::new();
    loop {
        while asked.len() < AT_A_TIME
            && let Some((name, ips)) = peers.next()
        {
            let (name, ips) = (name.clone(), ips.clone());
            asked.spawn(async move { (name, ask(&ips, port).await) });
        }
        match asked.join_next().await {
            Some(Ok((name, Some(answer)))) if answer.unpacks.is_some() => _ = answers.insert(name, answer),
            Some(_) => {}
            None => return answers,
        }
    }
}

/// What a node with these addresses answers; `None` if no program answers.
async fn ask(ips: &[IpAddr], port: u16) -> Option<DirectReturnAnswer> {
    for ip in ips {
        match timeout(PATIENCE, get(*ip, port)).await {
            Ok(Ok(body)) => return Some(DirectReturnAnswer::read(&body)),
            Ok(Err(error)) => debug!("{ip} port {port} does not answer: {error:#}"),
            Err(_) => debug!("{ip} port {port} does not answer within {} s", PATIENCE.as_secs()),
        }
    }
    None
}

async fn get(ip: IpAddr, port: u16) -> anyhow::Result<Bytes> {
    let stream = TcpStream::connect((ip, port)).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // It ends with the answer, or with this future.
    let connection = tokio::spawn(connection);
    let request = Request::get("/healthz").header(HOST, ip.to_string()).body(Empty::<Bytes>::new())?;
    let answer = sender.send_request(request).await?;
    let body = Limited::new(answer.into_body(), LONGEST_ANSWER).collect().await;
    connection.abort();
    Ok(body.map_err(|error| anyhow::anyhow!(error))?.to_bytes())
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };

    use super::*;

    /// What is understood of a node that answers this.
    async fn understood(answer: &str) -> Option<DirectReturnAnswer> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let answer = format!("HTTP/1.1 503 No\r\nContent-Length: {}\r\n\r\n{answer}", answer.len());
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 1024];
            _ = stream.read(&mut request).await;
            stream.write_all(answer.as_bytes()).await.unwrap();
        });
        ask(&[address.ip()], address.port()).await
    }

    #[tokio::test]
    async fn a_node_that_says_so_unpacks_healthy_or_not() {
        let answer = r#"{"healthy":false,"unpacks":["IPv4"],"gue":true,"received":{"IPv4":7}}"#;
        let received = [(Family::V4, 7)].into();
        let expected = DirectReturnAnswer { unpacks: Some([Family::V4].into()), gue: true, received };
        assert_eq!(understood(answer).await, Some(expected));
    }

    #[tokio::test]
    async fn another_program_that_answers_unpacks_nothing() {
        for answer in [r#"{"currentTime":"2026-01-01T00:00:00Z"}"#, "ok", ""] {
            assert_eq!(understood(answer).await, Some(DirectReturnAnswer::default()), "{answer}");
        }
    }

    #[tokio::test]
    async fn where_no_program_answers_nothing_is_known() {
        let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        assert_eq!(ask(&[closed.ip()], closed.port()).await, None);
        assert_eq!(ask(&[], 10256).await, None);
    }

    #[test]
    fn nodes_of_a_large_cluster_are_asked_less_often() {
        assert_eq!(period(0), Duration::from_secs(10));
        assert_eq!(period(500), Duration::from_secs(10));
        assert_eq!(period(5_000), Duration::from_secs(100));
        assert_eq!((holds(500), holds(5_000)), (Duration::from_secs(180), Duration::from_secs(300)));
    }
}
