//! Ejection: which endpoints get no new connections because clients fail there.
//!
//! The rules, as far as they need more than one endpoint:
//!
//! - If more than half of all endpoints that were asked on this node are silent, the fault is here, and none is ejected.
//! - If several endpoints of one node are silent, and none of that node answers, all of that node are ejected at once:
//!   each of them would otherwise fail clients first.
//! - Of the endpoints of one frontend at most half are out (see `PolicyGroup::weights`).

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use ipvs::{Protocol, RealServerAddress, ServiceAddress};

use super::{Inputs, ServiceEntry};
use crate::{
    compute::precedence,
    input::{
        Answer, Answers, Ejection, EjectionCause, EndpointAnswer, EndpointKey, ObjectName, Options,
        ServicePort, Standing, Traits,
    },
};

/// Fewer silent endpoints than this do not show that the fault is here.
const LEAST_FAULT: usize = 3;

/// For how long this node is held to be at fault after most endpoints were silent: as nothing is ejected then, silence
/// is noticed again only when clients ask again.
const FAULT_MEMORY: Duration = Duration::from_secs(30);

/// The traits with which an endpoint is another one.
const CONDITIONS: Traits =
    Traits::READY.union(Traits::SERVING).union(Traits::TERMINATING).union(Traits::LOCAL);

/// What all virtual servers of a Service say about one of its endpoints.
#[derive(Clone, Copy)]
struct Seen {
    answer: Answer,
    asked: Instant,
}

impl Seen {
    /// One that answers at any address is alive: another address where it does not is not its fault.
    fn add(&mut self, other: &EndpointAnswer) {
        self.answer = match (self.answer, other.answer) {
            (Answer::Answered, _) | (_, Answer::Answered) => Answer::Answered,
            (one, other) => one.max(other),
        };
        self.asked = self.asked.max(other.asked);
    }
}

/// All endpoints that were asked recently, by Service.
type SeenByService = BTreeMap<ObjectName, BTreeMap<EndpointKey, Seen>>;

impl Inputs {
    /// Takes in what endpoints answer. Returns the Services of which an endpoint now gets another share of its weight.
    pub(crate) fn judge<'a>(
        &mut self,
        answers: &Answers,
        owner: impl Fn(&ServiceAddress) -> Option<&'a ObjectName>,
    ) -> BTreeSet<ObjectName> {
        let mut changed = self.advance(answers.at);
        let mut seen = seen(answers, owner);
        if self.is_fault_here(&seen, answers.at) {
            changed.extend(self.return_all());
            return changed;
        }
        let is_recent = |seen: &Seen| answers.at.saturating_duration_since(seen.asked) <= Answers::RECENT;
        seen.values_mut().for_each(|endpoints| endpoints.retain(|_, seen| is_recent(seen)));
        for (service, endpoints) in &seen {
            for (key, seen) in endpoints {
                if self.judge_endpoint(service, key, seen, answers.at) {
                    changed.insert(service.clone());
                }
            }
        }
        for node in self.silent_nodes(&seen) {
            changed.extend(self.eject_node(&node, answers.at));
        }
        changed
    }

    /// Whether so many endpoints are silent that the fault is this node's, now or a moment ago.
    pub(crate) fn has_fault(&self) -> bool {
        self.fault.zip(self.now).is_some_and(|(seen, now)| now.saturating_duration_since(seen) < FAULT_MEMORY)
    }

    /// Whether weights change with time.
    pub(crate) fn is_unsettled(&self) -> bool {
        !self.unsettled.is_empty() || self.has_fault()
    }

    /// An endpoint that turns silent is the occasion to count all that were asked. Those that were ejected meanwhile are
    /// silent too, as far as they were asked themselves.
    fn is_fault_here(&mut self, seen: &SeenByService, now: Instant) -> bool {
        let is_recent = |at| now.saturating_duration_since(at) <= Answers::RECENT;
        let mut asked: BTreeMap<EndpointKey, bool> = BTreeMap::new();
        for (key, seen) in seen.values().flatten() {
            *asked.entry(*key).or_default() |= seen.answer == Answer::Silent && is_recent(seen.asked);
        }
        if asked.values().any(|is_silent| *is_silent) {
            for entry in self.unsettled.iter().filter_map(|service| self.services.get(service)) {
                let silent =
                    entry.standings.iter().filter(|(_, it)| it.ejection() == Some(EjectionCause::Silent));
                asked.extend(silent.map(|(key, _)| (*key, true)));
            }
            let silent = asked.values().filter(|is_silent| **is_silent).count();
            if silent >= LEAST_FAULT && silent * 2 > asked.len() {
                self.fault = Some(now);
            }
        }
        self.has_fault()
    }

    /// Gives all ejected endpoints their weight back.
    fn return_all(&mut self) -> Vec<ObjectName> {
        let mut changed = Vec::new();
        for service in &self.unsettled {
            let Some(entry) = self.services.get_mut(service) else { continue };
            let mut any = false;
            entry.standings.retain(|_, standing| {
                any |= !standing.starts();
                standing.starts()
            });
            changed.extend(any.then(|| service.clone()));
        }
        changed
    }

    /// Ejects an endpoint, or ends its trial. Returns whether its share has changed.
    fn judge_endpoint(&mut self, service: &ObjectName, key: &EndpointKey, seen: &Seen, now: Instant) -> bool {
        let Some(entry) = self.services.get_mut(service) else { return false };
        // Nearly all endpoints answer, and have no standing.
        if seen.answer == Answer::Answered && entry.standings.get(key).is_none() {
            return false;
        }
        let Some(traits) = entry.traits_of(key.1.ip) else { return false };
        let ejection = entry.ejection(key, &self.options);
        let mut before = entry.standings.get(key).copied();
        let is_on_trial = before.is_some_and(|it| it.is_on_trial());
        if before.and_then(|it| it.on_trial_since()).is_some_and(|since| seen.asked <= since) {
            return false;
        }
        let cause = match seen.answer {
            Answer::Silent if ejection.contains(Ejection::SILENT) => EjectionCause::Silent,
            // On trial the first question without an answer is enough.
            Answer::Missing if is_on_trial && ejection.contains(Ejection::SILENT) => EjectionCause::Silent,
            Answer::Refused if ejection.contains(Ejection::REFUSING) => EjectionCause::Refusing,
            Answer::Answered if is_on_trial => {
                if let Some(standing) = &mut before {
                    standing.pass(now);
                    entry.standings.insert(*key, *standing);
                }
                return true;
            }
            _ => return false,
        };
        // The counters stand still then.
        if before.is_some_and(|it| it.ejection().is_some()) {
            return false;
        }
        entry.standings.insert(*key, Standing::ejected(before.as_ref(), traits, cause, now));
        self.unsettled.insert(service.clone());
        true
    }

    /// The nodes of which several endpoints are silent, while none answers.
    fn silent_nodes(&self, seen: &SeenByService) -> Vec<Arc<str>> {
        let mut nodes: BTreeMap<Arc<str>, (BTreeSet<IpAddr>, bool)> = BTreeMap::new();
        if !seen.values().flatten().any(|(_, seen)| seen.answer == Answer::Silent) {
            return Vec::new();
        }
        for (service, endpoints) in seen {
            let Some(entry) = self.services.get(service) else { continue };
            for ((_, address), seen) in endpoints {
                let Some(node) = entry.node_of(address.ip) else { continue };
                let (silent, answers) = nodes.entry(node.clone()).or_default();
                if seen.answer == Answer::Silent {
                    silent.insert(address.ip);
                }
                *answers |= seen.answer != Answer::Silent && seen.answer != Answer::Missing;
            }
        }
        let dead = nodes.into_iter().filter(|(_, (silent, answers))| silent.len() > 1 && !answers);
        dead.map(|(node, _)| node).collect()
    }

    /// Ejects all endpoints of a node, of Services that eject silent ones.
    fn eject_node(&mut self, node: &str, now: Instant) -> Vec<ObjectName> {
        let mut changed = Vec::new();
        for (service, entry) in &mut self.services {
            let keys = entry.endpoints_on(node);
            let mut any = false;
            for (key, traits) in keys {
                let before = entry.standings.get(&key).copied();
                let is_out = before.is_some_and(|it| it.ejection().is_some());
                if !is_out && entry.ejection(&key, &self.options).contains(Ejection::SILENT) {
                    let cause = EjectionCause::NodeSilent;
                    entry.standings.insert(key, Standing::ejected(before.as_ref(), traits, cause, now));
                    any = true;
                }
            }
            if any {
                self.unsettled.insert(service.clone());
                changed.push(service.clone());
            }
        }
        changed
    }

    /// Goes on to a time: pauses and trials end, slow starts grow. Returns the Services of which an endpoint now gets
    /// another share of its weight.
    pub(crate) fn advance(&mut self, now: Instant) -> BTreeSet<ObjectName> {
        let now = self.now.map_or(now, |before| before.max(now));
        self.now = Some(now);
        let mut changed = BTreeSet::new();
        let services = &mut self.services;
        self.unsettled.retain(|service| {
            let Some(entry) = services.get_mut(service) else { return false };
            let slow_start = entry.service.as_ref().and_then(|it| it.slow_start());
            if entry.standings.advance(now, slow_start) {
                changed.insert(service.clone());
            }
            !entry.standings.is_empty()
        });
        changed
    }
}

impl ServiceEntry {
    /// Which failing endpoints of a port are ejected.
    fn ejection(&self, (protocol, address): &EndpointKey, options: &Options) -> Ejection {
        let Some(service) = &self.service else { return Ejection::empty() };
        let expects_answers =
            self.ports_at(*protocol, *address).any(|port| service.expects_answers(*protocol, port));
        if expects_answers { service.ejection(options) } else { Ejection::empty() }
    }

    /// The ports of the Service that endpoints at this address serve.
    fn ports_at(&self, protocol: Protocol, address: RealServerAddress) -> impl Iterator<Item = u16> {
        let ports = self.service.iter().flat_map(|service| &service.ports);
        let leads_there = move |port: &&ServicePort| {
            port.protocol == protocol
                && self
                    .slices
                    .iter()
                    .any(|slice| slice.ports_of(port).iter().any(|it| it.port == address.port))
        };
        ports.filter(leads_there).map(|port| port.port)
    }

    /// The addresses of its ready endpoints, if new ones start slowly.
    pub(super) fn ready_before_change(&self) -> Option<BTreeSet<IpAddr>> {
        self.service.as_ref()?.slow_start()?;
        Some(self.ready())
    }

    fn ready(&self) -> BTreeSet<IpAddr> {
        let all = self.slices.iter().flat_map(|slice| &slice.endpoints);
        all.filter(|it| it.traits.contains(Traits::READY)).map(|it| it.address).collect()
    }

    /// Forgets how endpoints stand that are other ones now, or whose readiness has changed; and lets those start slowly
    /// that have become ready beside others that were ready `before`.
    pub(super) fn endpoints_changed(&mut self, before: Option<&BTreeSet<IpAddr>>) {
        let mut standings = mem::take(&mut self.standings);
        standings.retain(|(_, address), it| {
            self.traits_of(address.ip).is_some_and(|traits| traits & CONDITIONS == it.traits & CONDITIONS)
        });
        let ready = before.map(|_| self.ready()).unwrap_or_default();
        if let Some(before) = before.filter(|before| !before.is_disjoint(&ready)) {
            for slice in &self.slices {
                let new = slice
                    .endpoints
                    .iter()
                    .filter(|it| it.traits.contains(Traits::READY) && !before.contains(&it.address));
                for endpoint in new {
                    for port in &slice.ports {
                        let address = RealServerAddress { ip: endpoint.address, port: port.port };
                        standings
                            .insert((port.protocol, address), Standing::new_beside_others(endpoint.traits));
                    }
                }
            }
        }
        self.standings = standings;
    }

    /// The endpoints on a node that are ready.
    fn endpoints_on(&self, node: &str) -> Vec<(EndpointKey, Traits)> {
        let mut found = Vec::new();
        for slice in self.slices.iter().filter(|slice| slice.nodes().any(|it| **it == *node)) {
            let on_node = slice.endpoints.iter().filter(|endpoint| {
                let place = slice.place_of(endpoint);
                place.and_then(|it| it.node.as_deref()) == Some(node)
                    && endpoint.traits.contains(Traits::READY)
            });
            for endpoint in on_node {
                found.extend(slice.ports.iter().map(|port| {
                    let address = RealServerAddress { ip: endpoint.address, port: port.port };
                    ((port.protocol, address), endpoint.traits)
                }));
            }
        }
        found
    }

    /// The node on which an endpoint is.
    fn node_of(&self, ip: IpAddr) -> Option<&Arc<str>> {
        let all = self.slices.iter().flat_map(|slice| slice.endpoints.iter().map(move |it| (slice, it)));
        let mut places = all.filter(|(_, it)| it.address == ip).filter_map(|(slice, it)| slice.place_of(it));
        places.find_map(|place| place.node.as_ref())
    }

    /// The traits of the endpoint at an address; of several entries those of the one that counts.
    pub(super) fn traits_of(&self, ip: IpAddr) -> Option<Traits> {
        let all = self.slices.iter().flat_map(|slice| &slice.endpoints).filter(|it| it.address == ip);
        all.map(|it| it.traits).min_by_key(|traits| precedence(*traits))
    }
}

fn seen<'a>(answers: &Answers, owner: impl Fn(&ServiceAddress) -> Option<&'a ObjectName>) -> SeenByService {
    let mut seen = SeenByService::new();
    let recent = answers
        .endpoints
        .iter()
        .filter(|it| answers.at.saturating_duration_since(it.asked) <= Answers::MEMORY);
    for answer in recent {
        let Some(service) = owner(&answer.virtual_server) else { continue };
        let key = (answer.virtual_server.protocol, answer.endpoint);
        seen.entry(service.clone())
            .or_default()
            .entry(key)
            .and_modify(|seen| seen.add(answer))
            .or_insert(Seen { answer: answer.answer, asked: answer.asked });
    }
    seen
}
