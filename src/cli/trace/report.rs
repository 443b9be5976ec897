//! The report on the flows: the packets' ways, and a conclusion.

use std::{
    collections::HashMap,
    fmt::{self, Write},
};

use ipvs::Family;
use netfilter::{
    nft::family_name,
    trace::{InstalledRule, RuleId, TraceVerdict},
};
use nix::net::if_::if_indextoname;
use serde::Serialize;
use service::printable_line;

use super::{
    evidence::Evidence,
    flow::{Flow, Outcome},
    way::{Direction, Hook, Passage, Way, ends, kind},
};

/// The answer.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) flows: Vec<FlowReport>,
    /// The gaps: what the kernel does not report, or what was not seen.
    pub(super) notes: Vec<String>,
}

/// The outcome of a flow.
#[derive(Debug, Serialize)]
pub(super) struct FlowReport {
    client: String,
    frontend: String,
    /// The first packets of each direction, and the last one.
    packets: Vec<PacketReport>,
    /// How many others there were.
    omitted: usize,
    /// Whether an answer other than a refusal went to the client.
    pub(super) answered: bool,
    conclusion: String,
}

/// The way of a packet.
#[derive(Debug, Serialize)]
struct PacketReport {
    direction: Direction,
    source: String,
    destination: String,
    kind: String,
    /// The interface by which it came in; `None` if this node sent it.
    input: Option<String>,
    steps: Vec<StepReport>,
}

/// Something that happened to a packet.
#[derive(Debug, Serialize)]
struct StepReport {
    hook: Hook,
    #[serde(flatten)]
    what: What,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case", tag = "step")]
enum What {
    /// The destination was replaced.
    Destination { address: String, by: &'static str },
    /// The source was replaced.
    Source { address: String },
    /// A rule, or a policy, decided.
    Verdict {
        #[serde(flatten)]
        place: Place,
        verdict: &'static str,
    },
}

/// A rule of a chain, or the policy of that.
#[derive(Clone, Debug, Serialize)]
struct Place {
    family: &'static str,
    table: Box<str>,
    chain: Box<str>,
    /// The rule's place in the chain, from 1; `None`: the policy, or the rule is gone.
    rule: Option<usize>,
    /// The rule's handle.
    handle: Option<u64>,
    comment: Option<Box<str>>,
    /// A command that shows the rule, or the chain.
    show: String,
}

/// Makes the report.
pub(super) struct Reporter<'a> {
    evidence: &'a Evidence,
    /// Reads a rule; `None` if it is gone.
    read_rule: fn(&RuleId) -> Option<InstalledRule>,
    /// What was read.
    rules: HashMap<RuleId, Option<InstalledRule>>,
}

impl<'a> Reporter<'a> {
    pub(super) fn new(evidence: &'a Evidence, read_rule: fn(&RuleId) -> Option<InstalledRule>) -> Self {
        Self { evidence, read_rule, rules: HashMap::new() }
    }

    pub(super) fn flow(&mut self, flow: &Flow<'_>) -> FlowReport {
        let (client, frontend) = ends(flow.request.first());
        let outcome = flow.outcome();
        let requests: Vec<_> = flow.requests().collect();
        let shown = shown(&requests).chain(shown(&flow.answers));
        let packets: Vec<_> = shown.map(|way| self.packet(way)).collect();
        let omitted = requests.len() + flow.answers.len() - packets.len();
        let answered = outcome == Outcome::Answered;
        let conclusion = self.conclusion(flow, &outcome);
        FlowReport { client, frontend, packets, omitted, answered, conclusion }
    }

    fn packet(&mut self, way: &Way) -> PacketReport {
        let (source, destination) = ends(way.first());
        let passages: Vec<_> = way.passages().collect();
        let input = passages.first().and_then(|first| first.input).map(interface);
        let mut steps = Vec::new();
        let mut before: Option<&Passage> = None;
        for passage in passages {
            if let Some(before) = before {
                steps.extend(replaced(before, passage));
            }
            if !passage.is_own() {
                steps.extend(self.verdict(passage));
            }
            before = Some(passage);
        }
        let (direction, kind) = (way.direction, kind(way.first()));
        PacketReport { direction, source, destination, kind, input, steps }
    }

    /// What a rule, or a policy other than to accept, has decided.
    fn verdict(&mut self, passage: &Passage) -> Option<StepReport> {
        let (rule, verdict) = passage.end.as_ref()?;
        if rule.is_none() && *verdict == TraceVerdict::Accept {
            return None;
        }
        let place = self.place(passage);
        let verdict = match verdict {
            TraceVerdict::Accept => "accept",
            TraceVerdict::Drop => "drop",
            TraceVerdict::Queue => "queue",
            TraceVerdict::Stolen => "stolen",
            TraceVerdict::Continue => "continue",
        };
        Some(StepReport { hook: passage.hook, what: What::Verdict { place, verdict } })
    }

    /// Where a passage has ended.
    fn place(&mut self, passage: &Passage) -> Place {
        let rule = passage.end.as_ref().and_then(|(rule, _)| rule.clone());
        let found = rule
            .as_ref()
            .and_then(|id| self.rules.entry(id.clone()).or_insert_with(|| (self.read_rule)(id)).clone());
        let (family, table) = (family(passage.family), passage.table.clone());
        let chain = rule.as_ref().map_or_else(|| passage.chain.clone(), |rule| rule.chain.clone());
        let number = found.as_ref().map(|found| found.number);
        let comment = found.map(|found| found.comment).filter(|comment| !comment.is_empty());
        let show = show(family, &table, &chain, number);
        Place { family, table, chain, rule: number, handle: rule.map(|rule| rule.handle), comment, show }
    }

    fn conclusion(&mut self, flow: &Flow<'_>, outcome: &Outcome<'_>) -> String {
        let evidence = self.evidence;
        let (_, frontend) = ends(flow.request.first());
        match outcome {
            Outcome::Answered => "answered".to_owned(),
            Outcome::Rejected => {
                let why = evidence.of_virtual_server(flow.request.first());
                format!("this node refused the request with an ICMP error: {why}")
            }
            Outcome::Refused { by } => format!("{by} refuses: nothing listens there"),
            Outcome::NotAnswered { real_server } => {
                let (_, real_server) = ends(real_server);
                format!(
                    "the request left this node for {real_server}, and no answer came back: the endpoint is silent, \
                     its answer takes another path, or something in between drops it"
                )
            }
            Outcome::Dropped { what, at } => {
                let packet = packet_name(flow, *what);
                format!("{packet} was dropped by {}", self.place(at))
            }
            Outcome::Lost { what: Direction::Request, behind } if behind.hook == Hook::Input => {
                format!(
                    "IPVS did not forward the request: {}",
                    evidence.of_virtual_server(flow.request.first())
                )
            }
            Outcome::Lost { what, behind } => {
                let packet = packet_name(flow, *what);
                let input = behind.input.map(interface);
                format!("{packet} was lost after {}: {}", behind.hook, evidence.of_routing(input.as_deref()))
            }
            Outcome::Forwarded { to } => {
                let output = to.output.map_or_else(|| "another interface".to_owned(), interface);
                format!(
                    "the request was forwarded to {output}: {frontend} is not an address of this node, and is not bound \
                     to kube-ipvs0"
                )
            }
            Outcome::Delivered => {
                format!(
                    "the request was delivered to a program of this node: IPVS has no virtual server at {frontend}"
                )
            }
        }
    }
}

fn packet_name(flow: &Flow<'_>, direction: Direction) -> String {
    match (direction, flow.answers.last()) {
        (Direction::Answer, Some(answer)) => format!("the answer of {}", answer.first().source),
        _ => format!("the request of {}", flow.request.first().source),
    }
}

/// The first packets and the last one.
fn shown<'a>(ways: &[&'a Way]) -> impl Iterator<Item = &'a Way> {
    const FIRST: usize = 3;
    let last = ways.iter().skip(FIRST).last();
    ways.iter().take(FIRST).chain(last).copied()
}

/// The addresses that something has replaced between two passages. IPVS works between input and postrouting, and in
/// output; answers get their addresses back from conntrack and IPVS.
fn replaced(before: &Passage, now: &Passage) -> impl Iterator<Item = StepReport> {
    let (old_source, old_destination) = ends(&before.headers);
    let (source, destination) = ends(&now.headers);
    let by = if now.hook == Hook::Postrouting || now.hook == Hook::Output { "IPVS" } else { "NAT" };
    let to = (destination != old_destination).then_some(What::Destination { address: destination, by });
    let from = (source != old_source).then_some(What::Source { address: source });
    let hook = now.hook;
    to.into_iter().chain(from).map(move |what| StepReport { hook, what })
}

/// The name of an interface; its number if it is gone.
fn interface(index: u32) -> String {
    match if_indextoname(index) {
        Ok(name) => name.to_string_lossy().into_owned(),
        Err(_) => format!("interface {index}"),
    }
}

fn family(number: u8) -> &'static str {
    match number {
        1 => "inet",
        2 => family_name(Family::V4),
        5 => "netdev",
        7 => "bridge",
        10 => family_name(Family::V6),
        _ => "unknown",
    }
}

/// The command that shows a rule. The tables that iptables-nft writes have the names of iptables' own.
fn show(family: &str, table: &str, chain: &str, rule: Option<usize>) -> String {
    const OF_IPTABLES: [&str; 5] = ["filter", "nat", "mangle", "raw", "security"];
    let program = match family {
        "ip" if OF_IPTABLES.contains(&table) => "iptables",
        "ip6" if OF_IPTABLES.contains(&table) => "ip6tables",
        _ => return format!("nft -a list chain {family} {table} {chain}"),
    };
    let of_table = if table == "filter" { String::new() } else { format!(" -t {table}") };
    let rule = rule.map(|rule| format!(" {rule}")).unwrap_or_default();
    format!("{program}{of_table} -S {chain}{rule}")
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { family, table, chain, rule, handle, comment, show } = self;
        // Other programs' names may be any text.
        let [table, chain, show] = [&**table, &**chain, show.as_str()].map(printable_line);
        write!(f, "{family} {table} {chain}, ")?;
        match (rule, handle) {
            (Some(rule), _) => write!(f, "rule {rule}")?,
            (None, Some(handle)) => write!(f, "rule with handle {handle}")?,
            (None, None) => f.write_str("policy")?,
        }
        if let Some(comment) = comment {
            // Ours end with a fingerprint.
            let words = comment.split_once(" #").map_or(&**comment, |(words, _)| words);
            write!(f, " \"{}\"", printable_line(words))?;
        }
        write!(f, " ({show})")
    }
}

impl Report {
    /// As text.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        for flow in &self.flows {
            for packet in &flow.packets {
                let _ = packet.write(&mut text);
            }
            if flow.omitted > 0 {
                let _ = writeln!(text, "… {} more packets", flow.omitted);
            }
            let _ = writeln!(text, "=> {} > {}: {}\n", flow.client, flow.frontend, flow.conclusion);
        }
        for note in &self.notes {
            let _ = writeln!(text, "note: {note}");
        }
        text
    }
}

impl PacketReport {
    fn write(&self, out: &mut String) -> fmt::Result {
        let Self { direction, source, destination, kind, input, steps } = self;
        let direction = if *direction == Direction::Request { "request" } else { "answer" };
        let input =
            input.as_ref().map_or_else(|| "from this node".to_owned(), |name| format!("in by {name}"));
        writeln!(out, "{direction:8} {source} > {destination} {kind}, {input}")?;
        for StepReport { hook, what } in steps {
            write!(out, "  {hook:11}  ")?;
            match what {
                What::Destination { address, by } => writeln!(out, "{by}: to {address}")?,
                What::Source { address } => writeln!(out, "from {address}")?,
                What::Verdict { place, verdict } => writeln!(out, "{place}: {verdict}")?,
            }
        }
        Ok(())
    }
}
