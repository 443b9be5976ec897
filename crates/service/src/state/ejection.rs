//! Ejection: which endpoints get no new connections because clients fail there.
//!
//! The rules, as far as they need more than one endpoint:
//!
//! - If more than half of all endpoints that were asked on this node are silent, the fault is here, and none is ejected.
//! - If several endpoints of another node are silent, and none of that node answers, all of that node are ejected at
//!   once: each of them would otherwise fail clients first.
//! - Of the endpoints of one frontend at most half are out (see `PolicyGroup::weights`).

mod seen;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use ipvs::{Protocol, ServiceAddress};

use self::seen::{FAULT_MEMORY, Seen, SeenByService};
use super::Inputs;
use crate::input::{
    Answer, Answers, Ejection, EjectionCause, EndpointKey, ObjectName, Service, Standing, Traits,
};

/// The limit of silent nodes that are handled at once: slices may name any node.
const MOST_NODES: usize = 16;

impl Inputs {
    /// Applies the answers of endpoints. Returns the Services with an endpoint whose share of its weight has changed.
    pub(crate) fn judge<'a>(
        &mut self,
        answers: &Answers,
        owner: impl Fn(&ServiceAddress) -> Option<&'a ObjectName>,
    ) -> BTreeSet<ObjectName> {
        let mut changed = self.advance(answers.at);
        let seen = SeenByService::new(answers, self, owner);
        if seen.are_mostly_silent(self, answers.at) {
            self.fault = Some(answers.at);
        }
        if self.has_fault() {
            changed.extend(self.return_all());
            return changed;
        }
        for (service, endpoints) in &seen.0 {
            if self.judge_service(service, endpoints, answers.at) {
                changed.insert(service.clone());
            }
        }
        changed.extend(self.eject_silent_nodes(&seen, answers.at));
        changed
    }

    /// Whether so many endpoints are silent, or were a moment ago, that the fault is this node's.
    pub(crate) fn has_fault(&self) -> bool {
        self.fault.zip(self.now).is_some_and(|(seen, now)| now.saturating_duration_since(seen) < FAULT_MEMORY)
    }

    /// Whether weights change with time.
    pub(crate) fn is_unsettled(&self) -> bool {
        !self.unsettled.is_empty() || self.has_fault()
    }

    /// Whether an endpoint is ejected or on trial.
    pub(crate) fn awaits_answers(&self) -> bool {
        let entries = self.unsettled.iter().filter_map(|service| self.services.get(service));
        let mut standings = entries.flat_map(|entry| entry.standings.iter());
        standings.any(|(_, it)| it.ejection().or(it.trial()).is_some())
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

    /// Ejects endpoints of a Service, or ends their trials. Returns whether any share has changed.
    fn judge_service(
        &mut self,
        service: &ObjectName,
        endpoints: &BTreeMap<EndpointKey, Seen>,
        now: Instant,
    ) -> bool {
        let Some(entry) = self.services.get_mut(service) else { return false };
        let ejection = entry.ejection(&self.options);
        // Nearly all endpoints answer, and have no standing.
        let matters = |(key, seen): &(&EndpointKey, &Seen)| {
            seen.answer != Answer::Answered || entry.standings.get(key).is_some()
        };
        let mut changes = Vec::new();
        let mut index = None;
        for (key, seen) in endpoints.iter().filter(matters) {
            let index = index.get_or_insert_with(|| entry.index());
            let Some((traits, _)) = index.get(&key.1.ip) else { continue };
            let before = entry.standings.get(key);
            changes.extend(next(before, seen, ejection, *traits, now).map(|next| (*key, next)));
        }
        drop(index);
        if changes.is_empty() {
            return false;
        }
        let mut any = false;
        for (key, standing) in changes {
            any |= entry.insert_standing(key, standing);
        }
        if any {
            self.unsettled.insert(service.clone());
        }
        any
    }

    /// Ejects the unproven endpoints of silent nodes, in Services that eject silent endpoints.
    fn eject_silent_nodes(&mut self, seen: &SeenByService, now: Instant) -> Vec<ObjectName> {
        let nodes = seen.silent_nodes(self, now);
        let mut changed = Vec::new();
        if nodes.is_empty() {
            return changed;
        }
        for (service, entry) in &mut self.services {
            if !entry.ejection(&self.options).contains(Ejection::SILENT) {
                continue;
            }
            let mut any = false;
            for (node, reach) in nodes.iter().take(MOST_NODES) {
                if !reach.includes(service.namespace()) {
                    continue;
                }
                for (key, traits) in entry.unproven_on(node) {
                    if key.0 != Protocol::Udp || entry.expects_answers(key.0, key.1.port) {
                        let before = entry.standings.get(&key).copied();
                        let standing =
                            Standing::ejected(before.as_ref(), traits, EjectionCause::NodeSilent, now);
                        any |= entry.insert_standing(key, standing);
                    }
                }
            }
            if any {
                self.unsettled.insert(service.clone());
                changed.push(service.clone());
            }
        }
        changed
    }

    /// Advances the time: pauses and trials end, slow starts grow. Returns the Services with an endpoint whose share of
    /// its weight has changed.
    pub(crate) fn advance(&mut self, now: Instant) -> BTreeSet<ObjectName> {
        let now = self.now.map_or(now, |before| before.max(now));
        self.now = Some(now);
        let mut changed = BTreeSet::new();
        let services = &mut self.services;
        self.unsettled.retain(|service| {
            let Some(entry) = services.get_mut(service) else { return false };
            let slow_start = entry.service.as_ref().and_then(Service::slow_start);
            if entry.standings.advance(now, slow_start) {
                changed.insert(service.clone());
            }
            !entry.standings.is_empty()
        });
        changed
    }
}

/// The standing of an endpoint after clients' attempts; `None`: as before.
fn next(
    before: Option<&Standing>,
    seen: &Seen,
    ejection: Ejection,
    traits: Traits,
    now: Instant,
) -> Option<Standing> {
    let is_on_trial = before.and_then(Standing::trial).is_some();
    let ejected_since = before.and_then(Standing::ejection).map(|(_, since)| since);
    let cause = match seen.answer {
        // An ejected endpoint is still tried only where the cap keeps it in service.
        Answer::Answered => {
            let passes = is_on_trial || ejected_since.is_some_and(|since| seen.asked > since);
            return before.filter(|_| passes).map(|before| before.passed(now));
        }
        _ if !seen.is_recent(now) || ejected_since.is_some_and(|since| seen.asked <= since) => return None,
        Answer::Silent if ejection.contains(Ejection::SILENT) => EjectionCause::Silent,
        Answer::Refused if ejection.contains(Ejection::REFUSING) => EjectionCause::Refusing,
        _ => return None,
    };
    Some(Standing::ejected(before, traits, cause, now))
}
