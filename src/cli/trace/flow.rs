//! The packets of one flow, and its outcome.

use std::net::IpAddr;

use netfilter::trace::{Headers, Transport};

use super::way::{Direction, End, Hook, Passage, Way, refuses};

/// The flag of TCP's first packet.
const SYN: u8 = 2;

/// The packets of one client at one frontend.
#[derive(Clone, Debug)]
pub(super) struct Flow<'a> {
    pub(super) request: &'a Way,
    /// The client's packets after it.
    pub(super) later: Vec<&'a Way>,
    pub(super) answers: Vec<&'a Way>,
}

/// What became of a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome<'a> {
    /// An answer went to the client.
    Answered,
    /// The endpoint, or what is before it, said that nothing listens there.
    Refused { by: IpAddr },
    /// This node has answered by itself, in the name of the frontend.
    Rejected,
    /// The request went to the real server, and no answer came to this node.
    NotAnswered { real_server: &'a Headers },
    /// A rule or a policy has ended the way.
    Dropped { what: Direction, at: &'a Passage },
    /// Nothing was reported behind this passage.
    Lost { what: Direction, behind: &'a Passage },
    /// The request was forwarded as if its destination were another host's.
    Forwarded { to: &'a Passage },
    /// The request went to a program of this node, past IPVS.
    Delivered,
}

impl<'a> Flow<'a> {
    /// Groups ways by their addresses, in the order in which flows began. Answers without a reported request are left out.
    pub(super) fn all(ways: impl Iterator<Item = &'a Way>) -> Vec<Self> {
        let mut flows: Vec<Self> = Vec::new();
        for way in ways {
            let flow = flows.iter_mut().rev().find(|flow| flow.has(way));
            match (flow, way.direction) {
                (Some(flow), Direction::Request) => flow.later.push(way),
                (Some(flow), Direction::Answer) => flow.answers.push(way),
                (None, Direction::Request) => {
                    flows.push(Self { request: way, later: vec![], answers: vec![] });
                }
                (None, Direction::Answer) => {}
            }
        }
        flows
    }

    /// Whether its outcome is meaningful: the last packets of a TCP connection whose beginning was not seen are not
    /// answered.
    pub(super) fn is_conclusive(&self) -> bool {
        let is_tail = |way: &Way| match way.first().transport {
            Transport::Tcp { flags, .. } => flags & SYN == 0,
            Transport::Ports { .. } | Transport::Icmp { .. } | Transport::Unknown => false,
        };
        !(self.requests().all(is_tail) && matches!(self.outcome(), Outcome::NotAnswered { .. }))
    }

    /// The client's packets.
    pub(super) fn requests(&self) -> impl Iterator<Item = &'a Way> {
        [self.request].into_iter().chain(self.later.iter().copied())
    }

    fn has(&self, way: &Way) -> bool {
        match way.direction {
            Direction::Request => is_same_flow(self.request.first(), way.first()),
            Direction::Answer => self.requests().any(|request| is_answered_by(request.last(), way.first())),
        }
    }

    pub(super) fn outcome(&self) -> Outcome<'a> {
        let Some(request) = self.requests().filter(|way| way.reached_a_real_server()).last() else {
            return self.outcome_without_real_server();
        };
        let arrived = |way: &&&Way| matches!(way.end(), End::Sent | End::Delivered);
        let mut arrived = self.answers.iter().filter(arrived);
        match (arrived.next(), self.answers.last()) {
            // A reset at the end of a connection refuses nothing.
            (Some(answer), _) if refuses(answer.first()) && arrived.all(|it| refuses(it.first())) => {
                Outcome::Refused { by: answer.first().source }
            }
            (Some(_), _) => Outcome::Answered,
            (None, Some(answer)) => died(answer),
            (None, None) if request.passed(Hook::Forward) && !request.passed(Hook::Input) => {
                Outcome::Forwarded { to: request.last_passage() }
            }
            (None, None) => Outcome::NotAnswered { real_server: request.last() },
        }
    }

    /// The same if IPVS has not sent any request on. Whatever answers then is this node.
    fn outcome_without_real_server(&self) -> Outcome<'a> {
        let request = self.later.last().copied().unwrap_or(self.request);
        match request.end() {
            End::Delivered => Outcome::Delivered,
            // A rule may answer by itself what it drops.
            End::Dropped => died(request),
            _ if !self.answers.is_empty() => Outcome::Rejected,
            _ => died(request),
        }
    }
}

fn died(way: &Way) -> Outcome<'_> {
    let (what, last) = (way.direction, way.last_passage());
    if way.end() == End::Dropped {
        Outcome::Dropped { what, at: last }
    } else {
        Outcome::Lost { what, behind: last }
    }
}

/// Whether another request has the same ends.
fn is_same_flow(one: &Headers, other: &Headers) -> bool {
    let ends = |of: &Headers| (of.source, of.destination, of.protocol, of.transport.ports());
    ends(one) == ends(other)
}

/// Whether a request, as it was sent to the real server, is answered by a packet, as it came in.
fn is_answered_by(request: &Headers, answer: &Headers) -> bool {
    if answer.destination != request.source {
        return false;
    }
    match (request.transport.ports(), answer.transport.ports()) {
        (Some((from, to)), Some((back_from, back_to))) => {
            request.destination == answer.source && (from, to) == (back_to, back_from)
        }
        // Any host on the way may send an ICMP error.
        (_, None) => matches!(answer.transport, Transport::Icmp { .. }),
        (None, Some(_)) => false,
    }
}
