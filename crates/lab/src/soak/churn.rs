//! Services that change all the time, each change chosen from a seed. This is pure: the results are the
//! requests to make.

mod changing;

use std::{collections::BTreeMap, time::Duration};

use anyhow::Context as _;
use changing::{Changing, Role};
use testkit::daemon::eventually_within;

use super::{used::pods_that_stay, witness::Witness};
use crate::stage::{
    objects::{Kind, Write, slice},
    traffic::Vacancy,
};

/// Pods that answer have numbers up to this one.
pub(super) const PODS: u8 = 6;
/// One Service in this many has addresses in both families.
const DUAL: u32 = 4;
/// All Services that change.
#[derive(Debug)]
pub(super) struct Churn {
    random: fastrand::Rng,
    services: Vec<Changing>,
}

impl Churn {
    /// This many Services that may change freely, and one of each of these names whose connections must
    /// survive.
    pub(super) fn new(seed: u64, services: u32, used: &[String]) -> Self {
        let unused = (0..services)
            .map(|number| Changing::new(format!("churn-{number}"), number, Role::Unused, number % DUAL == 0));
        let used = (services..).zip(used);
        let used = used.map(|(number, name)| Changing::new(name.clone(), number, Role::Used, false));
        Self { random: fastrand::Rng::with_seed(seed), services: used.chain(unused).collect() }
    }

    /// Every Service as it is at first, each with its requests in their order.
    pub(super) fn beginning(&mut self) -> Vec<Vec<Write>> {
        let Self { random, services } = self;
        services.iter_mut().map(|service| service.create(random)).collect()
    }

    /// The next changes: the requests for each Service that is among them, in their order.
    pub(super) fn next(&mut self, changes: usize) -> Vec<Vec<Write>> {
        let Self { random, services } = self;
        let mut requests = BTreeMap::<String, Vec<Write>>::new();
        for _ in 0..changes {
            if let Some(service) = random.choice(&mut *services) {
                let changed = service.change(random);
                requests.entry(service.name.clone()).or_default().extend(changed);
            }
        }
        requests.into_values().collect()
    }

    pub(super) fn len(&self) -> usize {
        self.services.len()
    }
}

/// The Service.
pub(super) const VACANT: &str = "vacant";
/// Between two turns, counted from when IPVS had the last.
const LASTS: Duration = Duration::from_secs(6);
/// How soon IPVS must have what the API server has reported. When hundreds of real servers come and go each
/// second, the kernel itself takes seconds to add one (docs/evidence/kernel.md).
pub(super) const LATEST: Duration = Duration::from_secs(30);

/// Takes the endpoints of a Service away and gives them back, again and again.
pub(super) struct EndpointToggle<'a> {
    vacancy: &'a Vacancy,
    witness: &'a Witness,
    is_out: bool,
}

impl<'a> EndpointToggle<'a> {
    pub(super) fn new(vacancy: &'a Vacancy, witness: &'a Witness) -> Self {
        Self { vacancy, witness, is_out: false }
    }

    /// What must be written now. As long as IPVS does not have what was written last, there may be endpoints
    /// or none.
    pub(super) fn due(&mut self) -> Option<Write> {
        let since = self.witness.settled_since()?;
        if !self.is_out {
            self.vacancy.end();
        }
        (since > LASTS).then(|| self.turn())
    }

    /// What is to be written at the end, that there are endpoints again.
    pub(super) fn end(&mut self) -> Option<Write> {
        self.is_out.then(|| self.turn())
    }

    /// Waits until IPVS has what was written last, if it ever has.
    pub(super) fn settle(&self) {
        let settled = || self.witness.settled_since().context("IPVS has not what was written last");
        drop(eventually_within(LATEST, "IPVS settles", settled));
    }

    fn turn(&mut self) -> Write {
        self.is_out = !self.is_out;
        if self.is_out {
            self.vacancy.begin();
        }
        self.witness.expect(self.is_out);
        let endpoints = if self.is_out { Vec::new() } else { pods_that_stay() };
        Write::Replace(Kind::Slice, slice(VACANT, VACANT, &endpoints))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;
    use crate::stage::objects::Kind;

    fn name(object: &Value) -> String {
        object["metadata"]["name"].as_str().unwrap().to_owned()
    }

    #[test]
    fn the_same_seed_makes_the_same_changes_and_another_one_others() {
        let changes = |seed| {
            let mut churn = Churn::new(seed, 20, &["used".to_owned()]);
            let first = churn.beginning().concat();
            first.into_iter().chain((0..50).flat_map(|_| churn.next(4).concat())).collect::<Vec<_>>()
        };
        assert_eq!(changes(1), changes(1));
        assert_ne!(changes(1), changes(2));
    }

    #[test]
    fn only_what_is_there_is_replaced_or_deleted_and_only_what_is_not_is_created() {
        let mut churn = Churn::new(3, 20, &["used".to_owned()]);
        let mut there = BTreeSet::new();
        let first = churn.beginning().concat();
        for write in first.into_iter().chain((0..1_000).flat_map(|_| churn.next(5).concat())) {
            match write {
                Write::Create(kind, object) => assert!(there.insert((kind == Kind::Slice, name(&object)))),
                Write::Replace(kind, object) => {
                    assert!(there.contains(&(kind == Kind::Slice, name(&object))), "{object}");
                }
                Write::Delete(kind, name) => assert!(there.remove(&(kind == Kind::Slice, name))),
            }
        }
    }

    #[test]
    fn a_service_that_is_used_stays_at_its_port_and_always_has_a_pod_that_is_ready() {
        let mut churn = Churn::new(4, 3, &["used".to_owned()]);
        let mut slices = std::collections::BTreeMap::new();
        let first = churn.beginning().concat();
        for write in first.into_iter().skip(1).chain((0..1_000).flat_map(|_| churn.next(5).concat())) {
            match write {
                Write::Delete(_, name) => assert!(!name.starts_with("used")),
                Write::Create(Kind::Service, object) | Write::Replace(Kind::Service, object) => {
                    let is_used = name(&object) == "used";
                    assert!(!is_used || object["spec"]["ports"].as_array().unwrap().len() == 1, "{object}");
                }
                Write::Create(Kind::Slice, object) | Write::Replace(Kind::Slice, object) => {
                    if name(&object).starts_with("used") {
                        slices.insert(name(&object), object["endpoints"].clone());
                    }
                    let all = slices.values().flat_map(|endpoints| endpoints.as_array().unwrap());
                    let ready = all.filter(|endpoint| endpoint["conditions"]["ready"] == true).count();
                    assert!(ready > 0 || slices.len() < 2, "{slices:#?}");
                }
            }
        }
    }
}
