//! The way of one packet, assembled from the kernel's reports.

use std::{collections::HashMap, fmt, net::SocketAddr};

use netfilter::{
    nft::chain::ListedChain,
    trace::{Headers, RuleId, Step, TRACE_TABLE, TraceEvent, TraceVerdict, Transport},
};
use serde::Serialize;

/// A place in the kernel where packets pass nf_tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Hook {
    Prerouting,
    Input,
    Forward,
    Output,
    Postrouting,
    /// Of the families netdev, bridge and arp, or of a chain that was not listed.
    Other,
}

impl Hook {
    fn of_chain(chain: &ListedChain) -> Self {
        const IP_FAMILIES: [u8; 3] = [1, 2, 10];
        let hooks = [Self::Prerouting, Self::Input, Self::Forward, Self::Output, Self::Postrouting];
        let hook = chain.hook.as_ref().filter(|_| IP_FAMILIES.contains(&chain.family.0));
        let at = hook.and_then(|hook| hooks.get(hook.number as usize));
        at.copied().unwrap_or(Self::Other)
    }
}

impl fmt::Display for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Prerouting => "prerouting",
            Self::Input => "input",
            Self::Forward => "forward",
            Self::Output => "output",
            Self::Postrouting => "postrouting",
            Self::Other => "hook",
        })
    }
}

/// Which way a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Direction {
    Request,
    Answer,
}

/// A passage through a base chain, and the chains that it jumps to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Passage {
    pub(super) hook: Hook,
    /// The base chain's family, as nfnetlink numbers it, its table and its name.
    pub(super) family: u8,
    pub(super) table: Box<str>,
    pub(super) chain: Box<str>,
    /// The packet at the beginning of the chain.
    pub(super) headers: Headers,
    /// The indices of its interfaces.
    pub(super) input: Option<u32>,
    pub(super) output: Option<u32>,
    /// What ended it: the verdict of a rule, or of the chain's policy.
    pub(super) end: Option<(Option<RuleId>, TraceVerdict)>,
}

impl Passage {
    /// Whether the chain belongs to the tracer.
    pub(super) fn is_own(&self) -> bool {
        *self.table == *TRACE_TABLE
    }
}

/// The way of one packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Way {
    pub(super) direction: Direction,
    first: Passage,
    rest: Vec<Passage>,
}

/// How the report about a packet ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// It has left this node, or entered another network namespace.
    Sent,
    /// It was delivered to a program of this node.
    Delivered,
    /// A rule or a policy has ended it: the passage says which.
    Dropped,
    /// Nothing more was reported: it was lost, or taken by IPVS, behind the last passage.
    Lost,
}

impl Way {
    /// The packet as it was when it was marked.
    pub(super) fn first(&self) -> &Headers {
        &self.first.headers
    }

    pub(super) fn last_passage(&self) -> &Passage {
        self.rest.last().unwrap_or(&self.first)
    }

    /// In their order.
    pub(super) fn passages(&self) -> impl Iterator<Item = &Passage> {
        [&self.first].into_iter().chain(&self.rest)
    }

    /// The packet as it was last seen.
    pub(super) fn last(&self) -> &Headers {
        &self.last_passage().headers
    }

    pub(super) fn end(&self) -> End {
        let last = self.last_passage();
        match (&last.end, last.is_own(), &*last.chain) {
            (Some((_, verdict)), ..) if verdict.is_end() => End::Dropped,
            (_, true, "sent") => End::Sent,
            (_, true, "delivered") => End::Delivered,
            _ => End::Lost,
        }
    }

    /// Whether IPVS, or destination NAT, has sent it to another destination: that may be a program of this node.
    pub(super) fn reached_a_real_server(&self) -> bool {
        match self.end() {
            End::Sent => true,
            End::Delivered => {
                let to =
                    |headers: &Headers| (headers.destination, headers.transport.ports().map(|(_, to)| to));
                to(self.first()) != to(self.last())
            }
            End::Dropped | End::Lost => false,
        }
    }

    /// Whether it has passed a chain of this hook.
    pub(super) fn passed(&self, hook: Hook) -> bool {
        self.passages().any(|passage| passage.hook == hook)
    }
}

/// The limit of remembered packets.
const MOST: usize = 2000;

/// The ways of the packets that are reported.
#[derive(Debug)]
pub(super) struct Ways {
    hooks: HashMap<(u8, Box<str>, Box<str>), Hook>,
    /// By packet, in the order in which they were first seen.
    marked: Vec<(u32, Way)>,
    /// The last passage of packets that the tracer has not marked so far. Other programs may trace packets too.
    unmarked: HashMap<u32, Passage>,
}

impl Ways {
    pub(super) fn new(chains: &[ListedChain]) -> Self {
        let hooks = chains
            .iter()
            .map(|chain| ((chain.family.0, chain.table.clone(), chain.name.clone()), Hook::of_chain(chain)));
        Self { hooks: hooks.collect(), marked: Vec::new(), unmarked: HashMap::new() }
    }

    /// Whether further packets are not remembered.
    pub(super) fn are_full(&self) -> bool {
        self.marked.len() >= MOST
    }

    /// Takes one step. Each passage begins with an event that has headers (`packet_dumped` in `struct nft_traceinfo`).
    /// A way begins where a rule of the tracer's marks the packet, also if the kernel uses a number again.
    pub(super) fn take(&mut self, event: TraceEvent) {
        let TraceEvent { packet, family, table, chain, step, headers, input, output } = event;
        if let Some(headers) = headers {
            let hook = self.hooks.get(&(family, table.clone(), chain.clone())).copied();
            let passage = Passage {
                hook: hook.unwrap_or(Hook::Other),
                family,
                table: table.clone(),
                chain: chain.clone(),
                headers,
                input,
                output,
                end: None,
            };
            match self.way(packet) {
                Some(way) => way.rest.push(passage),
                None => {
                    if self.unmarked.len() >= MOST {
                        self.unmarked.clear();
                    }
                    self.unmarked.insert(packet, passage);
                }
            }
        }
        if *table == *TRACE_TABLE && matches!(step, Step::Rule { .. }) {
            // This marks the packet. Another one may have had the number before.
            let first = self.unmarked.remove(&packet);
            if let Some(first) = first.or_else(|| self.way(packet)?.rest.pop()) {
                self.begin(packet, first);
            }
        }
        let Some(way) = self.way(packet) else { return };
        let passage = way.rest.last_mut().unwrap_or(&mut way.first);
        let end = match step {
            Step::Policy(verdict) => Some((None, verdict)),
            Step::Rule { handle, verdict } if verdict.is_end() || verdict == TraceVerdict::Accept => {
                Some((Some(RuleId { family, table, chain, handle }), verdict))
            }
            Step::Begin | Step::Rule { .. } | Step::Return => None,
        };
        if end.is_some() {
            passage.end = end;
        }
    }

    /// Begins the way of a packet in a chain of the tracer's.
    fn begin(&mut self, packet: u32, first: Passage) {
        if self.are_full() {
            return;
        }
        let is_answer = first.chain.starts_with("answers");
        let direction = if is_answer { Direction::Answer } else { Direction::Request };
        self.marked.push((packet, Way { direction, first, rest: Vec::new() }));
    }

    /// The way of a packet. The latest, because the kernel may use a number again.
    fn way(&mut self, packet: u32) -> Option<&mut Way> {
        self.marked.iter_mut().rev().find(|(id, _)| *id == packet).map(|(_, way)| way)
    }

    /// The ways, in the order in which they began.
    pub(super) fn all(&self) -> impl Iterator<Item = &Way> {
        self.marked.iter().map(|(_, way)| way)
    }
}

/// The source and the destination of a packet, each with its port where the protocol has any.
pub(super) fn ends(headers: &Headers) -> (String, String) {
    let Headers { source, destination, transport, .. } = headers;
    match transport.ports() {
        Some((from, to)) => {
            (SocketAddr::new(*source, from).to_string(), SocketAddr::new(*destination, to).to_string())
        }
        None => (source.to_string(), destination.to_string()),
    }
}

/// What kind of packet it is: `TCP SYN`, `UDP`, `ICMP destination unreachable`.
pub(super) fn kind(headers: &Headers) -> String {
    match (headers.transport, headers.protocol) {
        (Transport::Tcp { flags, .. }, _) => {
            const NAMES: [(u8, &str); 5] = [(2, "SYN"), (1, "FIN"), (4, "RST"), (8, "PSH"), (16, "ACK")];
            let set: Vec<_> = NAMES.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, it)| *it).collect();
            format!("TCP {}", set.join("+")).trim_end().to_owned()
        }
        (Transport::Icmp { kind, code }, 1) => format!("ICMP {}", icmp(kind, code)),
        (Transport::Icmp { kind, code }, _) => format!("ICMPv6 {}", icmp6(kind, code)),
        (_, 6) => "TCP".to_owned(),
        (_, 17) => "UDP".to_owned(),
        (_, 132) => "SCTP".to_owned(),
        (_, other) => format!("protocol {other}"),
    }
}

fn icmp(kind: u8, code: u8) -> String {
    match (kind, code) {
        (3, 0) => "network unreachable".to_owned(),
        (3, 1) => "host unreachable".to_owned(),
        (3, 3) => "port unreachable".to_owned(),
        (3, 4) => "fragmentation needed".to_owned(),
        (3, 9 | 10 | 13) => "administratively prohibited".to_owned(),
        (11, _) => "time exceeded".to_owned(),
        (kind, code) => format!("type {kind} code {code}"),
    }
}

fn icmp6(kind: u8, code: u8) -> String {
    match (kind, code) {
        (1, 0) => "no route".to_owned(),
        (1, 1) => "administratively prohibited".to_owned(),
        (1, 3) => "address unreachable".to_owned(),
        (1, 4) => "port unreachable".to_owned(),
        (2, _) => "packet too big".to_owned(),
        (3, _) => "time exceeded".to_owned(),
        (kind, code) => format!("type {kind} code {code}"),
    }
}

/// Whether the packet says that nothing listens.
pub(super) fn refuses(headers: &Headers) -> bool {
    const RST: u8 = 4;
    match headers.transport {
        Transport::Tcp { flags, .. } => flags & RST != 0,
        Transport::Icmp { kind: 3, code: 3 } => headers.protocol == 1,
        Transport::Icmp { kind: 1, code: 4 } => headers.protocol == 58,
        Transport::Icmp { .. } | Transport::Ports { .. } | Transport::Unknown => false,
    }
}
