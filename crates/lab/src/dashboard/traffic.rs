//! Connections to the Services, more at some times than at others.

use std::f64::consts::TAU;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

use anyhow::Result;

use super::cluster::{Node, Service, USED};
use crate::stage::traffic::{Held, Target};

/// How many seconds connections stay, and how often each is used.
const LIVES: std::ops::Range<u64> = 5..45;
const USED_EVERY: Duration = Duration::from_secs(1);
/// How much traffic varies, and over which time.
const VARIES_BY: f64 = 0.5;
const OVER: Duration = Duration::from_secs(240);

/// Starts what goes by way of one node, until `stop` is set. What is lost while things go wrong is not looked at.
pub(super) fn start<'scope>(node: &'scope Node, scope: &'scope Scope<'scope, '_>, stop: &'scope AtomicBool) {
    for (number, service) in (0..).zip(&USED) {
        let target = |number| Target::new(number, node.name, &node.lab.client, service.address());
        let (held, short) = (target(2 * number), target(2 * number + 1));
        let how = Held { connections: service.stay, lives: Some(LIVES), pause: USED_EVERY };
        scope.spawn(move || held.hold(&how, number.into(), stop));
        scope.spawn(move || connect(service, &short, number, stop));
    }
}

fn connect(service: &Service, target: &Target<'_>, number: u16, stop: &AtomicBool) {
    let mut random = fastrand::Rng::with_seed(number.into());
    let begun = Instant::now();
    while !stop.load(Relaxed) {
        drop(once(service, target));
        let phase = f64::from(number) / 3.0 + begun.elapsed().as_secs_f64() / OVER.as_secs_f64();
        let slower = (1.0 + VARIES_BY * (phase * TAU).sin()) * (0.5 + random.f64());
        thread::sleep(Duration::from_millis(service.every).mul_f64(slower));
    }
}

fn once(service: &Service, target: &Target<'_>) -> Result<()> {
    let mut connection = target.connect()?;
    connection.echoes(service.bytes)?;
    connection.reset().map(drop)
}
