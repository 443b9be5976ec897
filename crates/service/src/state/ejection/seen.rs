//! The answers of endpoints to clients, combined for each Service.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use ipvs::{Protocol, ServiceAddress};

use crate::{
    input::{Answer, Answers, EjectionCause, EndpointAnswer, EndpointKey, ObjectName, Standing},
    liveness::TICK,
    state::Inputs,
};

/// Fewer silent endpoints than this do not show that the fault is here.
const LEAST_FAULT: usize = 3;

/// The answers of one endpoint at all virtual servers of a Service.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub(super) answer: Answer,
    pub(super) asked: Instant,
}

impl Seen {
    /// One that answers at any address is alive: another address where it does not is not its fault. An answer from
    /// before the question says nothing.
    fn add(&mut self, other: Self) {
        let outlives =
            |it: &Self, than: &Self| it.answer == Answer::Answered && it.asked + 2 * TICK >= than.asked;
        *self = match (outlives(self, &other), outlives(&other, self)) {
            (true, true) => Self { asked: self.asked.max(other.asked), ..*self },
            (true, false) => *self,
            (false, true) => other,
            // What failed long ago says nothing about the last question.
            (false, false) if self.asked.max(other.asked) > self.asked.min(other.asked) + 2 * TICK => {
                if self.asked > other.asked { *self } else { other }
            }
            (false, false) => {
                Self { answer: self.answer.max(other.answer), asked: self.asked.max(other.asked) }
            }
        };
    }

    pub(super) fn is_recent(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.asked) <= Answers::RECENT
    }

    pub(super) fn is_silent(&self, now: Instant) -> bool {
        self.answer == Answer::Silent && self.is_recent(now)
    }
}

/// All endpoints that were asked lately, by Service.
pub(super) struct SeenByService(pub(super) BTreeMap<ObjectName, BTreeMap<EndpointKey, Seen>>);

impl SeenByService {
    /// Combines answers, without datagrams that need none and without requests from before a trial.
    pub(super) fn new<'a>(
        answers: &Answers,
        inputs: &Inputs,
        owner: impl Fn(&ServiceAddress) -> Option<&'a ObjectName>,
    ) -> Self {
        let mut all: BTreeMap<ObjectName, BTreeMap<EndpointKey, Seen>> = BTreeMap::new();
        for answer in &answers.endpoints {
            let EndpointAnswer { virtual_server, endpoint, answer, asked } = *answer;
            if answers.at.saturating_duration_since(asked) > Answers::MEMORY {
                continue;
            }
            let Some(service) = owner(&virtual_server) else { continue };
            let Some(entry) = inputs.services.get(service) else { continue };
            let key = (virtual_server.protocol, endpoint);
            let needs_no_answer = key.0 == Protocol::Udp
                && answer != Answer::Answered
                && !entry.expects_answers(key.0, endpoint.port);
            let trial = entry.standings.get(&key).and_then(Standing::trial);
            if needs_no_answer || trial.is_some_and(|(_, since)| asked < since) {
                continue;
            }
            // On trial the first question without an answer is enough. A datagram may be lost.
            let is_enough = trial.is_some() && answer == Answer::Missing && key.0 != Protocol::Udp;
            let seen = Seen { answer: if is_enough { Answer::Silent } else { answer }, asked };
            let endpoints = all.entry(service.clone()).or_default();
            endpoints.entry(key).and_modify(|before| before.add(seen)).or_insert(seen);
        }
        Self(all)
    }

    /// Whether most endpoints that were asked are silent, by addresses. Where several namespaces were asked, most
    /// endpoints of most of them: one namespace shall not decide about the others.
    ///
    /// An endpoint that turns silent is the occasion to count. Those that were ejected meanwhile are silent too.
    pub(super) fn are_mostly_silent(&self, inputs: &Inputs, now: Instant) -> bool {
        let mut asked: BTreeMap<&str, BTreeMap<IpAddr, Heard>> = BTreeMap::new();
        for (service, endpoints) in &self.0 {
            let of_namespace = asked.entry(service.namespace()).or_default();
            for ((_, address), seen) in endpoints {
                let heard = of_namespace.entry(address.ip).or_default();
                heard.silence |= seen.is_silent(now);
                heard.answer |= matches!(seen.answer, Answer::Answered | Answer::Refused);
            }
        }
        if !asked.values().flatten().any(|(_, heard)| heard.silence) {
            return false;
        }
        let is_new_silence = |(cause, since): (EjectionCause, Instant)| {
            cause == EjectionCause::Silent && now.saturating_duration_since(since) <= Answers::MEMORY
        };
        for service in &inputs.unsettled {
            let Some(entry) = inputs.services.get(service) else { continue };
            let of_namespace = asked.entry(service.namespace()).or_default();
            for ((_, address), standing) in entry.standings.iter() {
                if standing.ejection().is_some_and(is_new_silence) {
                    of_namespace.entry(address.ip).or_default().silence = true;
                }
            }
        }
        let is_mostly_silent = |endpoints: &BTreeMap<IpAddr, Heard>| {
            2 * endpoints.values().filter(|heard| heard.only_silence()).count() > endpoints.len()
        };
        let mut endpoints: BTreeMap<IpAddr, Heard> = BTreeMap::new();
        for (ip, heard) in asked.values().flatten() {
            let sum = endpoints.entry(*ip).or_default();
            (sum.silence, sum.answer) = (sum.silence || heard.silence, sum.answer || heard.answer);
        }
        let silent = endpoints.values().filter(|heard| heard.only_silence()).count();
        let namespaces = asked.values().filter(|it| is_mostly_silent(it)).count();
        silent >= LEAST_FAULT && is_mostly_silent(&endpoints) && 2 * namespaces > asked.len()
    }

    /// The nodes of which several endpoints are silent while none answers. Never this node, which is alive.
    pub(super) fn silent_nodes(&self, inputs: &Inputs, now: Instant) -> BTreeMap<Arc<str>, Reach> {
        let mut nodes: BTreeMap<Arc<str>, OfNode<'_>> = BTreeMap::new();
        if !self.0.values().flatten().any(|(_, seen)| seen.is_silent(now)) {
            return BTreeMap::new();
        }
        for (service, endpoints) in &self.0 {
            let Some(entry) = inputs.services.get(service) else { continue };
            let mut index = None;
            for ((_, address), seen) in endpoints.iter().filter(|(_, seen)| seen.is_recent(now)) {
                let index = index.get_or_insert_with(|| entry.index());
                let Some((_, Some(node))) = index.get(&address.ip) else { continue };
                let of_node = nodes.entry((*node).clone()).or_default();
                match seen.answer {
                    Answer::Silent => {
                        of_node.silent.insert(address.ip);
                        of_node.namespaces.insert(service.namespace());
                    }
                    Answer::Missing => {}
                    Answer::Answered | Answer::Refused => of_node.answers = true,
                }
            }
        }
        let dead = nodes.into_iter().filter(|(node, of_node)| {
            of_node.silent.len() > 1 && !of_node.answers && **node != *inputs.options.node_name
        });
        dead.map(|(node, of_node)| {
            let namespaces = of_node.namespaces;
            let names = || namespaces.iter().map(|it| (*it).to_owned()).collect();
            let reach = if namespaces.len() < MANY_NAMESPACES { Reach::Only(names()) } else { Reach::All };
            (node, reach)
        })
        .collect()
    }
}

/// The answers of an address.
#[derive(Clone, Copy, Default)]
struct Heard {
    silence: bool,
    answer: bool,
}

impl Heard {
    /// One port that answers shows that the way there works.
    fn only_silence(self) -> bool {
        self.silence && !self.answer
    }
}

/// The endpoints of a node: the silent ones, their namespaces, and whether any answers.
#[derive(Default)]
struct OfNode<'a> {
    silent: BTreeSet<IpAddr>,
    namespaces: BTreeSet<&'a str>,
    answers: bool,
}

/// Whose endpoints on a silent node are ejected.
pub(super) enum Reach {
    /// Those of the namespaces whose endpoints there are silent: any user may write a node's name into a slice.
    Only(BTreeSet<String>),
    /// All endpoints, since enough namespaces agree.
    All,
}

impl Reach {
    pub(super) fn includes(&self, namespace: &str) -> bool {
        match self {
            Self::Only(namespaces) => namespaces.contains(namespace),
            Self::All => true,
        }
    }
}

/// The number of namespaces with silent endpoints from which on a node counts as dead in all namespaces.
const MANY_NAMESPACES: usize = 3;

/// How long this node counts as faulty after most endpoints were silent: as nothing is ejected then, silence
/// is noticed again only when clients ask again.
pub(super) const FAULT_MEMORY: Duration = Duration::from_secs(30);
