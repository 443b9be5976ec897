//! One endpoint does not answer for a while, or is slow: how many nodes eject it, when, and what happens when it is back.

use std::time::Duration;

use anyhow::Result;
use ipvs::Scheduler;
use service::Balancing;

use super::{
    common::{after, ejecting, name, rate},
    plan::{Happening, Plan, SHORTEST_PAUSE},
    seen::{Nodes, Seen, failed, percent},
    world::run,
};
use crate::table::Table;

/// When the endpoint fails.
const FAILS: u64 = 20;
/// For how long the run goes on once it is back.
const AFTERWARDS: u64 = 80;
/// The endpoint that fails.
const IT: usize = 0;

/// A failure.
#[derive(Clone, Copy, Debug)]
struct Case {
    endpoints: u32,
    every: Duration,
    scheduler: Option<Scheduler>,
    fault: Fault,
    lasts: u64,
    /// From one reading of the counters to the next.
    pause: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// It answers no client.
    Silent,
    /// It has a quarter of its workers.
    Slow,
}

/// What nodes and clients did.
struct Outcome {
    seen: Seen,
    case: Case,
    /// The nodes that ejected the endpoint, and that began a first trial.
    ejected: Nodes,
    tried: Nodes,
}

pub(super) fn table(nodes: u32) -> Result<Table> {
    let mut table = Table::new(
        &format!("One endpoint fails, {nodes} nodes"),
        "endpoints | connections a second from a node | scheduler | counters read every | failure | nodes that eject it | \
         half, 90% of them after | most first trials in a second | failed clients: first 10 s, then | \
         back: most connections in a second, × its part | failed after it is back",
    );
    let [most, often, rarely] = [250, 1_000, 10_000].map(Duration::from_millis);
    let of_ten = Case::of_ten(often);
    for case in [
        Case { every: most, ..of_ten },
        of_ten,
        Case { every: rarely, ..of_ten },
        Case { endpoints: 100, ..of_ten },
        Case { scheduler: Some(Scheduler::SED), ..of_ten },
        Case { scheduler: Some(Scheduler::WLC), ..of_ten },
        Case { lasts: 8, ..of_ten },
        Case { pause: Duration::from_secs(60), ..of_ten },
        Case { fault: Fault::Slow, ..of_ten },
        Case { fault: Fault::Slow, endpoints: 100, ..of_ten },
    ] {
        table.row(&case.outcome(nodes, ejecting(case.scheduler))?.cells(nodes));
    }
    Ok(table)
}

impl Case {
    /// One of ten is silent for a minute.
    fn of_ten(every: Duration) -> Self {
        let (fault, pause) = (Fault::Silent, SHORTEST_PAUSE);
        Self { endpoints: 10, every, scheduler: None, fault, lasts: 60, pause }
    }

    fn outcome(self, nodes: u32, balancing: Balancing) -> Result<Outcome> {
        let plan = Plan::new(nodes, self.endpoints, self.every, 70).with(balancing);
        let back = FAILS + self.lasts;
        let mut plan = match self.fault {
            Fault::Silent => plan.then(FAILS, Happening::Silence(IT)).then(back, Happening::Return(IT)),
            Fault::Slow => {
                let all = plan.capacity.workers;
                let few = Happening::Workers(IT, all.div_ceil(4));
                plan.then(FAILS, few).then(back, Happening::Workers(IT, all))
            }
        };
        plan.pause = self.pause;
        plan.length = Duration::from_secs(back + AFTERWARDS);
        let seen = run(&plan)?;
        let ejected = seen.nodes(IT, FAILS, |it| it.after == 0);
        let tried = seen.nodes(IT, FAILS, |it| it.before == Some(0));
        Ok(Outcome { ejected, tried, seen, case: self })
    }
}

impl Outcome {
    /// The clients that failed, in percent: in the first ten seconds, until it was back, and afterwards.
    fn failed(&self) -> [f64; 3] {
        let back = FAILS + self.case.lasts;
        let first = back.min(FAILS + 10);
        [(FAILS, first), (first, back), (back, back + AFTERWARDS - 10)]
            .map(|(from, to)| failed(self.seen.between(from, to)))
    }

    /// The most connections that it got in a second once it was back, as a multiple of its part.
    fn rush(&self) -> f64 {
        let back = FAILS + self.case.lasts;
        let seconds = self.seen.between(back, back + AFTERWARDS);
        let share = |it: &super::seen::Second| percent(it.to(IT), it.connections.iter().sum()) / 100.0;
        seconds.iter().map(share).fold(0.0, f64::max) * f64::from(self.case.endpoints)
    }

    fn cells(&self, nodes: u32) -> String {
        let Case { endpoints, every, scheduler, fault, lasts, pause } = self.case;
        let ejected = u32::try_from(self.ejected.count()).unwrap_or(u32::MAX);
        let fault = match fault {
            Fault::Silent => "silent",
            Fault::Slow => "a quarter as fast",
        };
        let [first, then, back] = self.failed();
        format!(
            "{endpoints} | {} | `{}` | {} s | {fault} for {lasts} s | {ejected} ({:.0}%) | {}, {} | {} | \
             {first:.1}%, {then:.1}% | {:.1} | {back:.2}%",
            rate(every),
            name(scheduler),
            pause.as_secs_f64(),
            percent(ejected, nodes),
            after(self.ejected.after(50)),
            after(self.ejected.after(90)),
            self.tried.most_in_a_second(),
            self.rush(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODES: u32 = 200;

    fn silent() -> Case {
        Case::of_ten(Duration::from_secs(1))
    }

    #[test]
    fn one_seed_gives_one_run_and_another_seed_another() {
        let with = |seed| {
            let mut plan = Plan::new(20, 5, Duration::from_millis(500), 70).with(ejecting(None));
            plan = plan.then(5, Happening::Silence(IT));
            (plan.seed, plan.length) = (seed, Duration::from_secs(30));
            run(&plan).unwrap()
        };
        assert_eq!(with(1), with(1));
        assert_ne!(with(1), with(2));
        assert!(with(1).nodes(IT, 5, |it| it.after == 0).count() > 0);
    }

    #[test]
    fn nodes_eject_a_silent_endpoint_one_after_the_other() {
        let outcome = silent().outcome(NODES, ejecting(None)).unwrap();
        assert!(outcome.ejected.count() > 190, "{:?}", outcome.ejected);
        assert!(
            outcome.ejected.after(50).is_some_and(|at| (3.0..20.0).contains(&at)),
            "{:?}",
            outcome.ejected
        );
        assert!(outcome.tried.most_in_a_second() < 50, "{:?}", outcome.tried);
        assert_eq!(outcome.seen.between(0, FAILS).iter().map(|it| it.out).sum::<usize>(), 0);
    }

    #[test]
    fn no_node_fails_clients_when_a_silent_endpoint_is_back() {
        let with = silent().outcome(NODES, ejecting(None)).unwrap();
        let without = silent().outcome(NODES, Balancing::default()).unwrap();
        let [[_, with_it, back], [_, without_it, _]] = [with.failed(), without.failed()];
        assert!((8.0..12.0).contains(&without_it), "one of ten: {without_it}");
        assert!(with_it < without_it / 4.0, "{with_it}, without ejection {without_it}");
        assert!(back < 0.5 && with.rush() < 3.0, "{back}, {}", with.rush());
    }
}
