//! The Services with connections while others change.

use std::{sync::atomic::AtomicBool, thread, time::Duration};

use anyhow::Result;
use testkit::{daemon::eventually_within, lab::Lab};

use super::{
    churn::{PODS, VACANT},
    report::Account,
};
use crate::stage::{
    Stage,
    objects::{self, Condition, Endpoint, Kind, Write},
    traffic::{Held, Target},
};

/// Of each kind of Service that is connected to there are so many.
const USED: u16 = 3;
/// Each connection that stays is used this often.
const EXCHANGE_EVERY: Duration = Duration::from_millis(500);
/// Between two short connections to one Service.
const SHORT_EVERY: Duration = Duration::from_millis(400);
/// How long everything may take until it answers.
const PATIENCE: Duration = Duration::from_secs(60);

/// Those that never change, those that change, and one without endpoints at times.
pub(super) struct Used<'a> {
    quiet: Vec<Target<'a>>,
    draining: Vec<Target<'a>>,
    pub(super) vacant: Target<'a>,
}

/// The Services of one kind.
fn names(kind: &str) -> Vec<String> {
    (0..USED).map(|number| format!("{kind}-{number}")).collect()
}

/// Those whose endpoints change: [`super::churn`] makes them.
pub(super) fn draining() -> Vec<String> {
    names("draining")
}

fn quiet() -> Vec<String> {
    names("quiet")
}

/// Makes those that are not changed by [`super::churn`].
pub(super) fn fixed() -> Vec<Vec<Write>> {
    quiet().iter().map(String::as_str).chain([VACANT]).map(service).collect()
}

fn service(name: &str) -> Vec<Write> {
    vec![
        Write::Create(Kind::Service, objects::service(name, &[80], false)),
        Write::Create(Kind::Slice, objects::slice(name, name, &pods_that_stay())),
    ]
}

pub(super) fn pods_that_stay() -> Vec<Endpoint> {
    [1, 2].map(|number| Endpoint { number, condition: Condition::Ready }).to_vec()
}

impl<'a> Used<'a> {
    pub(super) fn new(stage: &'a Stage) -> Result<Self> {
        let Lab { client, pods, .. } = &stage.lab;
        let mut number = 0;
        // A client outside and a pod take turns.
        let mut target = |name: &String| {
            number += 1;
            let from = pods.get(usize::from(PODS) - 1).filter(|_| number % 2 == 0).unwrap_or(client);
            anyhow::Ok(Target::new(number, name, from, stage.cluster_ip(name)?))
        };
        Ok(Self {
            quiet: quiet().iter().map(&mut target).collect::<Result<_>>()?,
            draining: draining().iter().map(&mut target).collect::<Result<_>>()?,
            vacant: target(&VACANT.to_owned())?,
        })
    }

    fn all(&self) -> impl Iterator<Item = &Target<'a>> {
        self.quiet.iter().chain(&self.draining).chain([&self.vacant])
    }

    /// Waits until each answers.
    pub(super) fn answer(&self) -> Result<()> {
        self.all().try_for_each(|target| {
            eventually_within(PATIENCE, &target.name, || target.connect()?.reset()).map(drop)
        })
    }

    pub(super) fn start<'scope>(
        &'scope self,
        scope: &'scope thread::Scope<'scope, '_>,
        seed: u64,
        stop: &'scope AtomicBool,
    ) {
        let whole = Held { connections: 10, lives: None, pause: EXCHANGE_EVERY };
        let some_time = Held { connections: 10, lives: Some(5..90), pause: EXCHANGE_EVERY };
        let quiet = self.quiet.iter().map(move |target| (target, whole.clone()));
        let draining = self.draining.iter().map(move |target| (target, some_time.clone()));
        for ((target, held), seed) in quiet.chain(draining).zip(seed..) {
            scope.spawn(move || target.hold(&held, seed, stop));
        }
        for target in self.all() {
            scope.spawn(move || target.ask(SHORT_EVERY, stop));
        }
    }

    pub(super) fn accounts(&self) -> Vec<Account> {
        let held = |what, targets: &[Target<'_>]| Account {
            what,
            counts: targets.iter().map(|target| target.held.counts()).sum(),
            causes: targets.iter().flat_map(|target| target.held.take_causes()).collect(),
        };
        let asked = self.quiet.iter().chain(&self.draining);
        vec![
            held("connections that stayed, to Services that never changed", &self.quiet),
            held("connections that stayed a while, to Services whose endpoints changed", &self.draining),
            Account {
                what: "short connections to both",
                counts: asked.clone().map(|target| target.asked.counts()).sum(),
                causes: asked.flat_map(|target| target.asked.take_causes()).collect(),
            },
            Account {
                what: "short connections to a Service without endpoints at times",
                counts: self.vacant.asked.counts(),
                causes: self.vacant.asked.take_causes(),
            },
        ]
    }
}
