//! Whether endpoints answer, judged by what IPVS counts for their real servers.
//!
//! Twelve connections and nine datagrams to three endpoints on Linux 7.2 show what distinguishes them: an endpoint that
//! refuses answers each SYN with a bare RST (40 bytes in IPv4, 60 in IPv6) and each datagram with an ICMP error (the
//! question and 28 bytes in IPv4, 48 in IPv6); one that is silent has packets in and none out. The handshake of an
//! endpoint that serves has options, so that its packets are longer.

use std::{
    fmt,
    time::{Duration, Instant},
};

use ipvs::{Protocol, RealServerAddress, ServiceAddress, Stats};
use serde::{Deserialize, Serialize};

use crate::{
    input::{Answer, Answers, EndpointAnswer},
    seconds,
};

/// IPVS brings the counters of each real server up to date every two seconds (`IPVS_EST_NTICKS` in include/net/ip_vs.h).
/// That may happen between a question and its answer: only after another tick is there no answer. A client that has
/// repeated its SYN within one tick has waited for a second, the first timeout of TCP, so that one tick shows it.
pub const TICK: Duration = Duration::from_secs(2);

/// For how long clients are waited for that ask again. A busy node may be late with a tick.
const PATIENCE: Duration = Duration::from_secs(4);

/// A datagram may be lost, and a server may ignore one that it does not understand: so many without an answer are a fault.
const DATAGRAMS: u64 = 3;

/// For how long the last question says something about an endpoint.
const MEMORY: Duration = Duration::from_secs(60);

/// Whether an endpoint answers those whom IPVS sent to it within the last minute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Liveness {
    /// Nothing was sent to it: not known.
    Idle,
    /// It answers.
    Answers,
    /// Datagrams are sent to it, and nothing at this virtual server has ever been answered: usual for syslog.
    OneWay,
    /// It rejects every connection or datagram: nothing listens at the port, or a rule rejects.
    Refuses,
    /// Connections or datagrams are sent to it, and nothing comes back.
    Silent,
}

impl Liveness {
    /// Whether clients fail there.
    pub const fn is_failing(self) -> bool {
        matches!(self, Self::Refuses | Self::Silent)
    }
}

/// What is known about an endpoint's answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answering {
    /// Whether it answers.
    pub liveness: Liveness,
    /// For how long; in JSON, seconds.
    #[serde(rename = "for", with = "seconds")]
    pub age: Duration,
    /// The connections (of UDP, clients' flows) that it was sent meanwhile, if it fails; otherwise 0.
    pub failed_connections: u64,
}

impl fmt::Display for Answering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { liveness, age, failed_connections } = self;
        let failed = |f: &mut fmt::Formatter<'_>, what| {
            let noun = if *failed_connections == 1 { "connection" } else { "connections" };
            write!(f, "{what} for {} s ({failed_connections} {noun})", age.as_secs())
        };
        match liveness {
            Liveness::Idle => f.write_str("idle"),
            Liveness::Answers => f.write_str("answers"),
            Liveness::OneWay => f.write_str("gets datagrams and sends none"),
            Liveness::Refuses => failed(f, "REFUSES"),
            Liveness::Silent => failed(f, "DOES NOT ANSWER"),
        }
    }
}

/// Whether counters that have grown so much show that clients asked: by new connections, or by datagrams.
pub fn is_asked(protocol: Protocol, grown: &Stats) -> bool {
    grown.connections > 0 || protocol == Protocol::Udp && grown.packets_in > 0
}

/// The evidence about one real server of one virtual server.
#[derive(Clone, Debug)]
pub struct Evidence {
    protocol: Protocol,
    ipv6: bool,
    counted: Stats,
    /// When something was last sent to it.
    asked: Instant,
    /// When something was last sent to it that it answered.
    answered: Instant,
    question: Option<Question>,
    liveness: Liveness,
    since: Instant,
    /// The connections that it has refused since.
    refused: u64,
    /// Whether it was asked since this began: totals may be of any age.
    is_current: bool,
}

/// What was sent to a real server, while nothing has come back.
#[derive(Clone, Copy, Debug)]
struct Question {
    since: Instant,
    connections: u64,
    packets: u64,
    /// In how many ticks clients asked.
    ticks: u32,
    /// Whether clients asked again within one tick.
    repeated: bool,
    /// Whether only SYNs were sent.
    only_syns: bool,
}

impl Question {
    fn begin(since: Instant) -> Self {
        Self { since, connections: 0, packets: 0, ticks: 0, repeated: false, only_syns: true }
    }

    /// Whether an answer would have come.
    fn is_unanswered(&self, protocol: Protocol, now: Instant) -> bool {
        let is_begun = protocol == Protocol::Udp || self.connections > 0;
        let is_late = is_begun && now.saturating_duration_since(self.since) >= PATIENCE;
        // If no connection is new, clients must have asked in three ticks: a client that closes one of its connections sends
        // data and a reset, which get no answer. SYNs get one; other packets rarely have their mean length twice.
        let lasts = self.ticks > if is_begun || self.only_syns { 1 } else { 2 } || is_late;
        match protocol {
            Protocol::Udp => self.packets >= DATAGRAMS && lasts,
            _ => self.repeated || lasts,
        }
    }
}

impl Evidence {
    /// Begins with the counters of a real server. Totals say something only about one that has never served: any
    /// other may have served at any time.
    pub fn begin(
        protocol: Protocol,
        ipv6: bool,
        counted: &Stats,
        expects_answers: bool,
        now: Instant,
    ) -> Self {
        let mut evidence = Self {
            protocol,
            ipv6,
            counted: Stats::default(),
            asked: now,
            answered: now,
            question: None,
            liveness: Liveness::Idle,
            since: now,
            refused: 0,
            is_current: false,
        };
        if counted.packets_out == 0 || evidence.is_refusal(counted) {
            evidence.update(counted, 0, expects_answers, now);
        }
        evidence.counted = *counted;
        evidence.is_current = false;
        evidence
    }

    /// Judges by how the counters have grown. `expects_answers`: datagrams to this virtual server have been answered,
    /// or must be. `active`: its active connections now.
    pub fn update(&mut self, counted: &Stats, active: u32, expects_answers: bool, now: Instant) {
        let grown = counted.since(&self.counted);
        self.counted = *counted;
        self.add_to_question(&grown, active, now);
        self.judge(&grown, expects_answers, now);
        if now.saturating_duration_since(self.asked) >= MEMORY && grown.packets_out == 0 {
            self.question = None;
            self.set(Liveness::Idle, now);
        }
    }

    /// Adds what clients have sent.
    fn add_to_question(&mut self, grown: &Stats, active: u32, now: Instant) {
        let is_begun = self.question.is_some_and(|question| question.connections > 0);
        if !is_begun && now.saturating_duration_since(self.asked) > PATIENCE + TICK {
            self.question = None;
        }
        let are_syns = self.are_syns(grown);
        // The schedulers that count connections give no new ones to a server that does not answer: what shows it then is
        // that clients ask again, over open connections or by repeated SYNs.
        let asks_again =
            self.protocol != Protocol::Udp && grown.packets_out == 0 && self.needs_answers(grown);
        let goes_on = asks_again && (active > 0 || !is_begun && are_syns);
        let asks = is_asked(self.protocol, grown) || goes_on;
        self.is_current |= asks || asks_again && is_begun;
        if asks {
            self.asked = now;
            let question = self.question.get_or_insert(Question::begin(now));
            question.connections += grown.connections;
            question.only_syns &= are_syns;
            question.repeated |= are_syns && (1..grown.packets_in).contains(&grown.connections);
        }
        if let Some(question) = self.question.as_mut().filter(|_| grown.packets_in > 0) {
            question.packets += grown.packets_in;
            question.ticks += u32::from(asks || question.connections > 0);
        }
    }

    /// Judges by what has come back.
    fn judge(&mut self, grown: &Stats, expects_answers: bool, now: Instant) {
        let is_udp = self.protocol == Protocol::Udp;
        match self.question {
            Some(question) if (is_udp || question.connections > 0) && self.is_refusal(grown) => {
                self.question = None;
                self.set(Liveness::Refuses, now);
                self.refused += question.connections;
            }
            _ if grown.packets_out > 0 => {
                self.answered = self.question.take().map_or(self.answered, |_| self.asked);
                self.set(Liveness::Answers, now);
            }
            Some(question) if question.is_unanswered(self.protocol, now) => {
                let is_fault = expects_answers || !is_udp;
                self.set(if is_fault { Liveness::Silent } else { Liveness::OneWay }, question.since);
            }
            _ => {}
        }
    }

    /// Whether TCP's packets have data or begin connections, by their mean length: acknowledgements, updates of a window and
    /// the ends of connections have a header without options but a timestamp, 52 bytes in IPv4, and may stay unanswered.
    fn needs_answers(&self, grown: &Stats) -> bool {
        grown.packets_in > 0 && grown.bytes_in >= self.length_of_syns(grown)
    }

    /// Whether all of them are SYNs of Linux. Among others there may be the last one of an earlier connection, or data that
    /// was sent again after a fifth of a second.
    fn are_syns(&self, grown: &Stats) -> bool {
        grown.bytes_in == self.length_of_syns(grown)
    }

    /// The bytes of so many SYNs of Linux.
    fn length_of_syns(&self, grown: &Stats) -> u64 {
        grown.packets_in.saturating_mul(if self.ipv6 { 80 } else { 60 })
    }

    /// Whether another reading may change the judgement although nothing new is counted.
    pub fn may_change(&self) -> bool {
        self.liveness != Liveness::Idle || self.question.is_some()
    }

    /// What the endpoint of this evidence did when clients last asked it at this virtual server; `None` if they have not
    /// lately, or not since this began. Whether datagrams need an answer is not known here.
    pub fn answer(
        &self,
        at: ServiceAddress,
        endpoint: RealServerAddress,
        now: Instant,
    ) -> Option<EndpointAnswer> {
        let (answer, asked) = match self.liveness {
            _ if !self.is_current => return None,
            Liveness::Silent | Liveness::OneWay => (Answer::Silent, self.asked),
            _ if self.question.is_some_and(|it| it.connections > 0) => (Answer::Missing, self.asked),
            Liveness::Answers if self.question.is_some() => return None,
            Liveness::Idle => return None,
            // What was sent since may have needed no answer.
            Liveness::Answers => (Answer::Answered, self.answered),
            Liveness::Refuses => (Answer::Refused, self.asked),
        };
        let is_recent = now.saturating_duration_since(asked) <= Answers::MEMORY;
        is_recent.then_some(EndpointAnswer { virtual_server: at, endpoint, answer, asked })
    }

    /// Begins anew with these counters: what was counted while it got no new connections says nothing.
    pub fn restart(&mut self, counted: &Stats, now: Instant) {
        self.counted = *counted;
        self.question = None;
        self.is_current = false;
        self.set(Liveness::Idle, now);
    }

    /// Whether it answers. Totals alone show no failure: the last client may have asked hours ago.
    pub fn liveness(&self) -> Liveness {
        if self.liveness.is_failing() && !self.is_current { Liveness::Idle } else { self.liveness }
    }

    /// For how long clients have failed there, from the first to the last one that did; 0 unless it fails.
    pub fn failing_span(&self) -> Duration {
        if self.liveness().is_failing() {
            self.asked.saturating_duration_since(self.since)
        } else {
            Duration::ZERO
        }
    }

    /// The judgement.
    pub fn answering(&self, now: Instant) -> Answering {
        let liveness = self.liveness();
        let failed_connections = match liveness {
            Liveness::Refuses => self.refused,
            Liveness::Silent => self.question.map_or(0, |question| question.connections),
            Liveness::Idle | Liveness::Answers | Liveness::OneWay => 0,
        };
        let age = now.saturating_duration_since(self.since);
        Answering { liveness, age, failed_connections }
    }

    fn set(&mut self, liveness: Liveness, since: Instant) {
        if self.liveness != liveness {
            (self.liveness, self.since, self.refused) = (liveness, since, 0);
        }
    }

    /// Whether all packets out are refusals. A kernel limits how many ICMP errors it sends (`icmp_ratelimit`), so that
    /// fewer may come back than datagrams were sent; then only datagrams of equal length show it. A server of datagrams
    /// whose answers are as long as an ICMP error would be looks like one that refuses.
    fn is_refusal(&self, counted: &Stats) -> bool {
        let Stats { connections, packets_in, packets_out, bytes_in, bytes_out, .. } = *counted;
        if packets_out == 0 {
            return false;
        }
        let (header, longest_error) = if self.ipv6 { (40, 1280) } else { (20, 576) };
        let each = |bytes: u64| packets_out.saturating_mul(bytes);
        let are_errors = packets_out == packets_in && bytes_out == bytes_in.saturating_add(each(header + 8));
        // No more is quoted of a longer datagram (RFC 1812, 4.3.2.3; RFC 4443, 2.4).
        let are_cut_errors = bytes_out == each(longest_error)
            && bytes_in > packets_in.saturating_mul(longest_error - header - 8);
        match self.protocol {
            Protocol::Udp => {
                are_errors
                    || are_cut_errors
                    || packets_out < packets_in
                        && bytes_in % packets_in == 0
                        && bytes_out == each(bytes_in / packets_in + header + 8)
            }
            // A bare RST; or one ICMP error for each SYN, as `REJECT` of iptables sends by default.
            Protocol::Tcp => bytes_out == each(header + 20) || packets_in == connections && are_errors,
            // SCTP: an ABORT without causes (RFC 9260, 3.3.7).
            _ => bytes_out == each(header + 16) || packets_in == connections && are_errors,
        }
    }
}

#[cfg(test)]
mod tests;
