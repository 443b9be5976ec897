//! A new endpoint beside others: what it gets of all connections while each node lets it start slowly.

use std::time::Duration;

use anyhow::Result;
use ipvs::Scheduler;
use service::Balancing;

use super::{
    common::{name, rate},
    plan::{Happening, Plan},
    seen::{Second, Seen, failed, percent},
    world::run,
};
use crate::table::Table;

const ENDPOINTS: u32 = 10;
/// Its number.
const NEW: usize = 10;
/// When it is ready.
const READY: u64 = 30;
const LASTS: u64 = 30;
/// The seconds after that of which the table says what it gets.
const SPANS: [(u64, u64); 6] = [(0, 1), (1, 5), (5, 10), (10, 20), (20, 30), (30, 50)];

#[derive(Clone, Copy, Debug)]
struct Case {
    every: Duration,
    scheduler: Option<Scheduler>,
    is_slow: bool,
}

pub(super) fn table(nodes: u32) -> Result<Table> {
    let mut table = Table::new(
        &format!("Slow start of an eleventh endpoint, {nodes} nodes: what it gets, × its part"),
        "connections a second from a node | scheduler | slow start | 0 to 1 s | 1 to 5 s | 5 to 10 s | 10 to 20 s | \
         20 to 30 s | 30 to 50 s | failed in the first 30 s",
    );
    let ideal = SPANS.map(|(from, to)| f64::midpoint(ideal(from), ideal(to)));
    table.row(&format!("any | ideal | {LASTS} s | {} | –", cells(ideal)));
    let schedulers = [None, Some(Scheduler::WLC), Some(Scheduler::SED)];
    for every in [500, 5_000, 20_000].map(Duration::from_millis) {
        for scheduler in schedulers {
            for is_slow in [false, true] {
                let case = Case { every, scheduler, is_slow };
                let seen = case.run(nodes)?;
                let slow_start = if is_slow { format!("{LASTS} s") } else { "no".to_owned() };
                let failed = failed(seen.between(READY, READY + LASTS));
                table.row(&format!(
                    "{} | `{}` | {slow_start} | {} | {failed:.1}%",
                    rate(every),
                    name(scheduler),
                    cells(SPANS.map(|(from, to)| part(&seen, from, to))),
                ));
            }
        }
    }
    Ok(table)
}

fn cells(parts: [f64; 6]) -> String {
    parts.map(|it| format!("{it:.2}")).join(" | ")
}

/// What it should have so many seconds after it became ready: from a tenth on in equal steps.
fn ideal(second: u64) -> f64 {
    let [second, lasts] = [second.min(LASTS), LASTS].map(|it| u32::try_from(it).map_or(0.0, f64::from));
    0.1 + 0.9 * second / lasts
}

/// What it gets in these seconds, as a multiple of an equal part.
fn part(seen: &Seen, from: u64, to: u64) -> f64 {
    let seconds = seen.between(READY + from, READY + to);
    let to_it = seconds.iter().map(|it| it.to(NEW)).sum();
    let all = seconds.iter().flat_map(|it: &Second| &it.connections).sum();
    percent(to_it, all) / 100.0 * f64::from(ENDPOINTS + 1)
}

impl Case {
    fn run(self, nodes: u32) -> Result<Seen> {
        let slow_start = self.is_slow.then(|| Duration::from_secs(LASTS));
        let balancing = Balancing { scheduler: self.scheduler, slow_start, ..Balancing::default() };
        let plan = Plan::new(nodes, ENDPOINTS, self.every, 70).with(balancing);
        let mut plan = plan.then(READY, Happening::NewEndpoint);
        plan.length = Duration::from_secs(READY + 60);
        run(&plan)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_start_follows_its_line_on_nodes_with_many_clients() {
        let case = Case { every: Duration::from_millis(2), scheduler: None, is_slow: true };
        let seen = case.run(2).unwrap();
        for (from, to) in [(5, 10), (10, 20), (20, 30)] {
            let (part, ideal) = (part(&seen, from, to), f64::midpoint(ideal(from), ideal(to)));
            assert!((part - ideal).abs() < 0.3, "{from} to {to} s: {part}, wanted {ideal}");
        }
        assert!((part(&seen, 30, 50) - 1.0).abs() < 0.1);
    }

    /// Each edit of a weight starts `wrr` anew at the head of its list, where a new endpoint is.
    #[test]
    fn wrr_floods_a_new_endpoint_from_nodes_with_few_clients_and_wlc_does_not() {
        let of = |scheduler| {
            let case = Case { every: Duration::from_secs(5), scheduler, is_slow: true };
            part(&case.run(100).unwrap(), 10, 20)
        };
        assert!(of(None) > 5.0 && of(Some(Scheduler::WLC)) < 2.0);
    }
}
