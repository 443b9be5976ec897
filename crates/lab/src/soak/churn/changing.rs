//! One Service that changes.

use std::net::Ipv4Addr;

use serde_json::{Value, json};

use super::PODS;
use crate::stage::objects::{Condition, Endpoint, Kind, PORTS, Write, service, slice, slice_v6};

/// Endpoints that are elsewhere have numbers from here on.
const ELSEWHERE: std::ops::Range<u8> = 101..140;
/// The most endpoints of a Service.
const MOST_ENDPOINTS: usize = 12;
/// The names of the two slices of a Service, in each family.
const SLICES: [&str; 2] = ["a", "b"];

/// A Service that changes.
#[derive(Debug)]
pub(super) struct Changing {
    pub(super) name: String,
    /// Of all Services that change, no other has it.
    number: u32,
    role: Role,
    dual: bool,
    exists: bool,
    ports: Vec<u16>,
    exposure: Exposure,
    affinity: bool,
    slices: [Vec<Endpoint>; 2],
}

/// What may be done to a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// It is never deleted, its ports stay, all its endpoints are pods, and one of them is ready: every
    /// connection survives.
    Used,
    /// Anything.
    Unused,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exposure {
    ClusterIp,
    NodePort,
    ExternalIp,
}

impl Changing {
    pub(super) fn new(name: String, number: u32, role: Role, dual: bool) -> Self {
        Self {
            name,
            number,
            role,
            dual,
            exists: false,
            ports: vec![80],
            exposure: Exposure::ClusterIp,
            affinity: false,
            slices: [Vec::new(), Vec::new()],
        }
    }

    pub(super) fn create(&mut self, random: &mut fastrand::Rng) -> Vec<Write> {
        self.exists = true;
        self.slices = [Vec::new(), Vec::new()];
        for _ in 0..=random.usize(0..4) {
            self.add_endpoint(random);
        }
        if self.role == Role::Used {
            self.keep_one_ready();
        }
        let slices = self.slice_objects().into_iter().map(|object| Write::Create(Kind::Slice, object));
        [Write::Create(Kind::Service, self.service_object())].into_iter().chain(slices).collect()
    }

    fn delete(&mut self) -> Vec<Write> {
        self.exists = false;
        let slices = self.slice_objects();
        let names = slices.iter().filter_map(|object| object.pointer("/metadata/name")?.as_str());
        let slices = names.map(|name| Write::Delete(Kind::Slice, name.to_owned()));
        [Write::Delete(Kind::Service, self.name.clone())].into_iter().chain(slices).collect()
    }

    /// Endpoints change most often, as in real clusters.
    pub(super) fn change(&mut self, random: &mut fastrand::Rng) -> Vec<Write> {
        if !self.exists {
            return self.create(random);
        }
        match random.u8(0..100) {
            0..10 if self.role == Role::Unused => return self.delete(),
            10..20 if self.role == Role::Unused => {
                let count = random.usize(1..=PORTS.len());
                self.ports = random.choose_multiple(PORTS, count);
                self.ports.sort_unstable();
            }
            20..30 => self.exposure = other_than(self.exposure, random),
            30..38 => self.affinity = !self.affinity,
            38..60 => return self.change_endpoints(|service| service.add_endpoint(random)),
            60..75 => return self.change_endpoints(|service| service.remove_endpoint(random)),
            75..85 => return self.change_endpoints(|service| service.move_endpoint(random)),
            _ => return self.change_endpoints(|service| service.change_condition(random)),
        }
        vec![Write::Replace(Kind::Service, self.service_object())]
    }

    /// The slices that this has changed. An endpoint that moves is in its new slice before it leaves the old
    /// one.
    fn change_endpoints(&mut self, change: impl FnOnce(&mut Self)) -> Vec<Write> {
        let before = self.slice_objects();
        let [count, _] = self.slices.each_ref().map(Vec::len);
        change(self);
        if self.role == Role::Used {
            self.keep_one_ready();
        }
        let after = self.slice_objects();
        let changed = after.into_iter().zip(before).filter(|(after, before)| after != before);
        let mut writes: Vec<_> = changed.map(|(after, _)| Write::Replace(Kind::Slice, after)).collect();
        // Those of the first slice come first; it is to be the last where it has become shorter.
        if self.slices.first().is_some_and(|first| first.len() < count) {
            writes.reverse();
        }
        writes
    }

    fn add_endpoint(&mut self, random: &mut fastrand::Rng) {
        if self.slices.iter().map(Vec::len).sum::<usize>() >= MOST_ENDPOINTS {
            return;
        }
        let number =
            if self.role == Role::Used || random.bool() { random.u8(1..=PODS) } else { random.u8(ELSEWHERE) };
        let is_there = |slice: &Vec<Endpoint>| slice.iter().any(|endpoint| endpoint.number == number);
        if !self.slices.iter().any(is_there)
            && let Some(slice) = random.choice(&mut self.slices)
        {
            slice.push(Endpoint { number, condition: Condition::Ready });
        }
    }

    fn remove_endpoint(&mut self, random: &mut fastrand::Rng) {
        match random.choice(&mut self.slices) {
            Some(slice) if !slice.is_empty() => drop(slice.swap_remove(random.usize(0..slice.len()))),
            _ => {}
        }
    }

    fn move_endpoint(&mut self, random: &mut fastrand::Rng) {
        let [first, second] = &mut self.slices;
        let (from, to) = if random.usize(0..2) == 0 { (first, second) } else { (second, first) };
        to.extend(from.pop());
    }

    fn change_condition(&mut self, random: &mut fastrand::Rng) {
        if let Some(endpoint) = random.choice(&mut self.slices).and_then(|slice| random.choice(slice)) {
            endpoint.condition = match random.u8(0..4) {
                0 => Condition::Unready,
                1 => Condition::Terminating,
                _ => Condition::Ready,
            };
        }
    }

    fn keep_one_ready(&mut self) {
        let ready = |endpoint: &Endpoint| endpoint.condition == Condition::Ready;
        if self.slices.iter().flatten().any(ready) {
            return;
        }
        match self.slices.iter_mut().flatten().next() {
            Some(endpoint) => endpoint.condition = Condition::Ready,
            None => self.slices = [vec![Endpoint { number: 1, condition: Condition::Ready }], Vec::new()],
        }
    }

    fn service_object(&self) -> Value {
        let mut object = service(&self.name, &self.ports, self.dual);
        let Some(spec) = object.pointer_mut("/spec").and_then(Value::as_object_mut) else { return object };
        if self.affinity {
            spec.insert("sessionAffinity".into(), "ClientIP".into());
        }
        match self.exposure {
            Exposure::ClusterIp => {}
            Exposure::NodePort => drop(spec.insert("type".into(), "NodePort".into())),
            Exposure::ExternalIp => drop(spec.insert("externalIPs".into(), json!([self.external_ip()]))),
        }
        object
    }

    /// Each Service has its own: which of two gets one also depends on deleted Services, of which a fresh start does not
    /// know (`crates/service/src/state/former_ages.rs`).
    fn external_ip(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(Ipv4Addr::new(198, 18, 0, 1).to_bits() + self.number)
    }

    fn slice_objects(&self) -> Vec<Value> {
        let of = |(letter, endpoints): (&str, &Vec<Endpoint>)| {
            let name = |family| format!("{}-{letter}-{family}", self.name);
            let ipv4 = slice(&name("v4"), &self.name, endpoints);
            let ipv6 = self.dual.then(|| slice_v6(&name("v6"), &self.name, endpoints));
            [Some(ipv4), ipv6].into_iter().flatten()
        };
        SLICES.into_iter().zip(&self.slices).flat_map(of).collect()
    }
}

fn other_than(exposure: Exposure, random: &mut fastrand::Rng) -> Exposure {
    let others = match exposure {
        Exposure::ClusterIp => [Exposure::NodePort, Exposure::ExternalIp],
        Exposure::NodePort => [Exposure::ClusterIp, Exposure::ExternalIp],
        Exposure::ExternalIp => [Exposure::ClusterIp, Exposure::NodePort],
    };
    random.choice(others).unwrap_or(exposure)
}
