//! The clients of a run and the endpoints that serve them, packet by packet as far as IPVS counts.

use std::time::Duration;

use ipvs::{Protocol, Scheduler};

use super::{Event, World};
use crate::scale::simulation::{
    endpoint::Entry,
    node::{Node, Traffic},
    scheduler::Connections,
};

/// When a client of TCP repeats its SYN (`tcp_syn_linear_timeouts`), and one of UDP its datagram (resolv.conf(5)).
const SYNS: [u64; 4] = [1, 2, 3, 4];
const DATAGRAMS: [u64; 1] = [5];
/// IPVS forgets a connection in `SYN_RECV` and one in `TIME_WAIT` after these times.
const OPENING: Duration = Duration::from_secs(60);
const CLOSED: Duration = Duration::from_secs(120);

/// The packets of one request: a SYN of Linux, the client's acknowledgement and question, and the answer with the end.
const SYN: Traffic = Traffic { connections: 0, packets_in: 1, bytes_in: 60, packets_out: 0, bytes_out: 0 };
const HANDSHAKE: Traffic =
    Traffic { connections: 0, packets_in: 2, bytes_in: 252, packets_out: 1, bytes_out: 60 };
const ANSWER: Traffic =
    Traffic { connections: 0, packets_in: 2, bytes_in: 104, packets_out: 2, bytes_out: 352 };
const END: Traffic = Traffic { connections: 0, packets_in: 1, bytes_in: 52, packets_out: 0, bytes_out: 0 };
const DATAGRAM: Traffic =
    Traffic { connections: 0, packets_in: 1, bytes_in: 70, packets_out: 0, bytes_out: 0 };
const REPLY: Traffic = Traffic { connections: 0, packets_in: 0, bytes_in: 0, packets_out: 1, bytes_out: 150 };

/// A connection, or a question over UDP.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    node: usize,
    endpoint: usize,
    begun: Duration,
    attempts: usize,
    stage: Stage,
    /// Its endpoint gets no new connections, and IPVS has dropped the first repeated SYN.
    is_moving: bool,
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Nothing came back.
    Asking,
    /// The endpoint's kernel has accepted the connection.
    Accepted,
    /// It was answered or given up.
    Over,
}

impl World<'_> {
    /// A client connects.
    pub(super) fn connect(&mut self, node: usize) {
        let endpoint = self.nodes.get_mut(node).and_then(Node::choose);
        self.seen.count(self.now, |second| {
            second.asked += 1;
            second.failed += u32::from(endpoint.is_none());
        });
        let Some(endpoint) = endpoint else { return };
        let request = self.requests.len();
        self.requests.push(Request {
            node,
            endpoint,
            begun: self.now,
            attempts: 0,
            stage: Stage::Asking,
            is_moving: false,
        });
        self.open(request);
        self.ask_later(request);
    }

    /// IPVS has chosen an endpoint for a request, and the first packet goes there.
    fn open(&mut self, number: usize) {
        let Some(Request { node, endpoint, .. }) = self.requests.get(number).copied() else { return };
        let zone = self.plan.zone_of(u32::try_from(node).unwrap_or(u32::MAX), |zone| zone.nodes);
        let near = zone == self.plan.zone_of(u32::try_from(endpoint).unwrap_or(u32::MAX), |it| it.endpoints);
        self.seen.count(self.now, |second| second.chosen(endpoint, zone, near));
        let traffic = Traffic { connections: 1, ..Traffic::default() };
        self.count(node, endpoint, traffic);
        if !self.is_udp() {
            self.connections(node, endpoint, |it| it.active += 1);
        }
        self.send(number);
    }

    /// A SYN or datagram goes to the endpoint of a request.
    fn send(&mut self, number: usize) {
        let Some(Request { node, endpoint, .. }) = self.requests.get(number).copied() else { return };
        self.count(node, endpoint, if self.is_udp() { DATAGRAM } else { SYN });
        let Some(at) = self.endpoints.get_mut(endpoint) else { return };
        let entry = at.enter(number);
        if entry == Entry::Dropped {
            return;
        }
        if entry == Entry::Begins {
            self.serve(endpoint, number);
        }
        if !self.is_udp() {
            // The kernel of the endpoint accepts the connection, whenever the program serves it.
            self.count(node, endpoint, HANDSHAKE);
            self.requests.get_mut(number).into_iter().for_each(|it| it.stage = Stage::Accepted);
        }
    }

    fn serve(&mut self, endpoint: usize, request: usize) {
        let takes = self.random(self.plan.capacity.takes);
        self.plan_in(takes, Event::Served(endpoint, request));
    }

    /// Plans what a client does that has no answer.
    fn ask_later(&mut self, number: usize) {
        let Some(Request { attempts, begun, .. }) = self.requests.get(number).copied() else { return };
        let times: &[u64] = if self.is_udp() { &DATAGRAMS } else { &SYNS };
        let next = times.get(attempts).map(|seconds| begun + Duration::from_secs(*seconds));
        let end = begun + self.plan.patience;
        match next.filter(|next| *next < end) {
            Some(next) => self.plan_in(next.saturating_sub(self.now), Event::Repeat(number)),
            None => self.plan_in(end.saturating_sub(self.now), Event::GiveUp(number)),
        }
    }

    pub(super) fn repeat(&mut self, number: usize) {
        let is_udp = self.is_udp();
        let Some(request) = self.requests.get_mut(number) else { return };
        request.attempts += 1;
        let Request { node, endpoint, begun, stage, is_moving, .. } = *request;
        match stage {
            Stage::Over => return,
            Stage::Accepted => {
                let left = (begun + self.plan.patience).saturating_sub(self.now);
                return self.plan_in(left, Event::GiveUp(number));
            }
            Stage::Asking => {}
        }
        let is_out = self.nodes.get(node).is_some_and(|it| it.balancer.weight(endpoint) == 0);
        if is_udp || !is_out {
            self.send(number);
        } else if is_moving {
            self.connections(node, endpoint, |it| it.active = it.active.saturating_sub(1));
            if let Some(to) = self.nodes.get_mut(node).and_then(Node::choose) {
                self.requests.get_mut(number).into_iter().for_each(|it| {
                    (it.endpoint, it.is_moving) = (to, false);
                });
                self.open(number);
            }
        } else {
            request.is_moving = true;
        }
        self.ask_later(number);
    }

    pub(super) fn give_up(&mut self, number: usize) {
        let is_udp = self.is_udp();
        let Some(request) = self.requests.get_mut(number) else { return };
        let Request { node, endpoint, begun, stage, .. } = *request;
        request.stage = Stage::Over;
        if stage == Stage::Over {
            return;
        }
        self.seen.count(begun, |second| second.failed += 1);
        if is_udp {
            return;
        }
        if stage == Stage::Accepted {
            self.count(node, endpoint, END);
            self.close(node, endpoint);
        } else {
            self.plan_in(OPENING, Event::Forget { node, endpoint, is_active: true });
        }
    }

    /// A worker is done; the next request is served.
    pub(super) fn served(&mut self, endpoint: usize, number: usize) {
        let Some(at) = self.endpoints.get_mut(endpoint) else { return };
        let is_silent = at.is_silent;
        if let Some(next) = at.next() {
            self.serve(endpoint, next);
        }
        let Some(request) = self.requests.get_mut(number) else { return };
        let Request { node, begun, stage, .. } = *request;
        if is_silent || request.endpoint != endpoint {
            return;
        }
        request.stage = Stage::Over;
        if stage != Stage::Over {
            self.seen.count(begun, |second| second.answered += 1);
        }
        if self.is_udp() {
            // Also one that the client does not wait for any more.
            self.count(node, endpoint, REPLY);
        } else if stage != Stage::Over {
            self.count(node, endpoint, ANSWER);
            self.close(node, endpoint);
        }
    }

    /// A connection is not active any more.
    fn close(&mut self, node: usize, endpoint: usize) {
        // Only `wlc` counts those.
        let is_counted = self.plan.balancing.scheduler == Some(Scheduler::WLC);
        self.connections(node, endpoint, |it| {
            it.active = it.active.saturating_sub(1);
            it.inactive += u32::from(is_counted);
        });
        if is_counted {
            self.plan_in(CLOSED, Event::Forget { node, endpoint, is_active: false });
        }
    }

    fn count(&mut self, node: usize, endpoint: usize, traffic: Traffic) {
        let now = self.now;
        self.nodes.get_mut(node).into_iter().for_each(|it| it.count(endpoint, traffic, now));
    }

    pub(super) fn connections(
        &mut self,
        node: usize,
        endpoint: usize,
        change: impl FnOnce(&mut Connections),
    ) {
        if let Some(connections) = self.nodes.get_mut(node).and_then(|it| it.connections(endpoint)) {
            change(connections);
        }
    }

    fn is_udp(&self) -> bool {
        self.plan.protocol == Protocol::Udp
    }
}
