//! Who connects to whom while faults happen.

use std::{net::SocketAddr, sync::atomic::AtomicBool, thread, time::Duration};

use anyhow::{Result, ensure};
use testkit::{daemon::eventually_within, lab::Lab};

use crate::stage::traffic::{Counts, Held, Tally, Target};

/// Connections to each Service that stay, and between two short ones.
const HELD: Held = Held { connections: 8, lives: None, pause: Duration::from_millis(100) };
const SHORT_EVERY: Duration = Duration::from_millis(100);
/// How long a Service may take until it answers.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long it may take until every connection has been used. Some may have to be given up, one after the
/// other.
const ALL_USED_WITHIN: Duration = Duration::from_secs(300);
/// How often every connection must have been used before a fault is over.
const ROUNDS_HEARD: u64 = 2;

/// A client outside and a pod take turns. Clients of the Service that ejects are patient.
pub(super) fn targets<'a>(lab: &'a Lab, services: &[SocketAddr], ejecting: SocketAddr) -> Vec<Target<'a>> {
    let clients = [Some(&lab.client), lab.pods.last()].into_iter().flatten().cycle();
    let numbered = (0..).zip(services.iter().chain([&ejecting]).zip(clients));
    numbered
        .map(|(number, (&to, from))| {
            let target = Target::new(number, format!("{} to {to}", from.name), from, to);
            if to == ejecting { target.patient() } else { target }
        })
        .collect()
}

/// Connections that stay open, and new ones all the time.
pub(super) struct Traffic<'a, 'lab>(&'a [Target<'lab>]);

impl<'a, 'lab> Traffic<'a, 'lab> {
    pub(super) fn start<'scope>(
        targets: &'a [Target<'lab>],
        scope: &'scope thread::Scope<'scope, '_>,
        stop: &'scope AtomicBool,
    ) -> Result<Self>
    where
        'a: 'scope,
        'lab: 'scope,
    {
        for (target, seed) in targets.iter().zip(0..) {
            eventually_within(PATIENCE, &target.name, || target.connect()?.reset())?;
            scope.spawn(move || target.hold(&HELD, seed, stop));
            scope.spawn(move || target.ask(SHORT_EVERY, stop));
        }
        let traffic = Self(targets);
        traffic.settles()?;
        Ok(traffic)
    }

    /// Waits until every connection has been used, and has answered or is known to be lost.
    pub(super) fn settles(&self) -> Result<()> {
        let rounds = || self.0.iter().flat_map(Target::rounds);
        let before: Vec<_> = rounds().collect();
        eventually_within(ALL_USED_WITHIN, "every connection has been used", || {
            let all_used = rounds().zip(&before).all(|(now, before)| now >= before + ROUNDS_HEARD);
            ensure!(all_used, "some still wait");
            Ok(())
        })
    }

    /// How many connections broke so far, and how many new ones were not answered.
    pub(super) fn lost(&self) -> (u64, u64) {
        let all = all(self.0);
        (all.broken, all.unanswered)
    }

    /// How long ago the first connection was made, as causes have it.
    pub(super) fn since(&self) -> Duration {
        self.0.first().map_or(Duration::ZERO, |target| target.since.elapsed())
    }

    /// Why connections were lost: the first ones since the last call.
    pub(super) fn causes(&self) -> Vec<String> {
        self.0.iter().flat_map(|target| [&target.held, &target.asked]).flat_map(Tally::take_causes).collect()
    }
}

/// All connections so far.
pub(super) fn all(targets: &[Target<'_>]) -> Counts {
    targets.iter().map(|target| target.held.counts() + target.asked.counts()).sum()
}
