//! The standing of the endpoints of one Service, as far as it follows from its slices.

use std::{collections::BTreeSet, mem, net::IpAddr, sync::Arc};

use ipvs::{Protocol, RealServerAddress};
use rustc_hash::FxHashMap;

use super::ServiceEntry;
use crate::{
    compute::{MAX_REAL_SERVERS_PER_VIRTUAL_SERVER, precedence},
    input::{Ejection, EndpointKey, Options, Standing, Standings, Traits},
};

/// If one of these traits changes, it counts as a different endpoint.
const CONDITIONS: Traits =
    Traits::READY.union(Traits::SERVING).union(Traits::TERMINATING).union(Traits::LOCAL);

/// The traits and the node of each endpoint.
pub(super) type EndpointIndex<'a> = FxHashMap<IpAddr, (Traits, Option<&'a Arc<str>>)>;

impl ServiceEntry {
    /// The endpoints by address; of several entries the one that counts.
    pub(super) fn index(&self) -> EndpointIndex<'_> {
        let mut index = EndpointIndex::default();
        for slice in &self.slices {
            for endpoint in &slice.endpoints {
                let node = slice.place_of(endpoint).and_then(|place| place.node.as_ref());
                let new = (endpoint.traits, node);
                let known = index.entry(endpoint.address).or_insert(new);
                if precedence(new.0) < precedence(known.0) {
                    *known = new;
                }
            }
        }
        index
    }

    /// Which failing endpoints are ejected.
    pub(super) fn ejection(&self, options: &Options) -> Ejection {
        self.service.as_ref().map_or(Ejection::empty(), |service| service.ejection(options))
    }

    /// Whether an endpoint that listens at a port and sends nothing back has failed.
    pub(super) fn expects_answers(&self, protocol: Protocol, target: u16) -> bool {
        let Some(service) = &self.service else { return false };
        let mut ports = service.ports.iter().filter(|port| port.protocol == protocol);
        ports.any(|port| {
            service.expects_answers(protocol, port.port)
                && self.slices.iter().any(|slice| slice.ports_of(port).iter().any(|it| it.port == target))
        })
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

    /// Forgets the standing of endpoints that were replaced, or whose readiness has changed. Endpoints that have become
    /// ready beside others that were ready `before` start slowly.
    pub(super) fn endpoints_changed(&mut self, before: Option<&BTreeSet<IpAddr>>) {
        let mut standings = mem::take(&mut self.standings);
        if !standings.is_empty() {
            let index = self.index();
            standings.retain(|(_, address), it| {
                let now = index.get(&address.ip);
                now.is_some_and(|(traits, _)| *traits & CONDITIONS == it.traits & CONDITIONS)
            });
        }
        let ready = before.map(|_| self.ready()).unwrap_or_default();
        if let Some(before) = before.filter(|before| !before.is_disjoint(&ready)) {
            for (key, traits) in self.endpoints(|endpoint, _| !before.contains(&endpoint)) {
                insert(&mut standings, key, Standing::new_beside_others(traits));
            }
        }
        self.standings = standings;
    }

    /// The endpoints on a node that have no standing of their own or start slowly.
    pub(super) fn unproven_on(&self, node: &str) -> Vec<(EndpointKey, Traits)> {
        if !self.slices.iter().any(|slice| slice.nodes().any(|it| **it == *node)) {
            return Vec::new();
        }
        let mut found = self.endpoints(|_, its| its.is_some_and(|it| **it == *node));
        found.retain(|(key, _)| self.standings.get(key).is_none_or(Standing::starts));
        found
    }

    /// Adds the standing of an endpoint, unless the limit is reached. Returns whether it was added.
    pub(super) fn insert_standing(&mut self, key: EndpointKey, standing: Standing) -> bool {
        insert(&mut self.standings, key, standing)
    }

    /// The ready endpoints of the Service's ports for which a condition holds, of their address and node.
    fn endpoints(&self, holds: impl Fn(IpAddr, Option<&Arc<str>>) -> bool) -> Vec<(EndpointKey, Traits)> {
        let mut found = Vec::new();
        let ports = self.service.iter().flat_map(|service| &service.ports);
        for (port, slice) in ports.flat_map(|port| self.slices.iter().map(move |slice| (port, slice))) {
            for target in slice.ports_of(port) {
                let ready = slice.endpoints.iter().filter(|it| it.traits.contains(Traits::READY));
                for endpoint in ready {
                    let node = slice.place_of(endpoint).and_then(|place| place.node.as_ref());
                    if found.len() < MAX_STANDINGS && holds(endpoint.address, node) {
                        let address = RealServerAddress { ip: endpoint.address, port: target.port };
                        found.push(((port.protocol, address), endpoint.traits));
                    }
                }
            }
        }
        found
    }
}

/// How many endpoints of one Service stand otherwise than usual: as many as a virtual server has. A Service of thousands
/// of ports would cost a node much memory.
const MAX_STANDINGS: usize = MAX_REAL_SERVERS_PER_VIRTUAL_SERVER;

fn insert(standings: &mut Standings, key: EndpointKey, standing: Standing) -> bool {
    let has_room = standings.get(&key).is_some() || standings.len() < MAX_STANDINGS;
    if has_room {
        standings.insert(key, standing);
    }
    has_room
}
