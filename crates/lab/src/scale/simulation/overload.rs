//! All endpoints have more to do than they can: whether ejection makes that worse, and whether it ends with the load.

use std::time::Duration;

use anyhow::Result;
use ipvs::Protocol;
use service::Balancing;

use super::{
    common::ejecting,
    plan::{Happening, Plan},
    seen::{Second, Seen, failed},
    world::run,
};
use crate::table::Table;

const ENDPOINTS: u32 = 10;
/// The mean time between two connections from a node that loads the endpoints fully.
const FULL: Duration = Duration::from_secs(1);
/// When the load falls to 70%, and the run ends.
const FALLS: u64 = 120;
const ENDS: u64 = 200;

/// What clients ask, and how much may wait.
#[derive(Clone, Copy, Debug)]
struct Case {
    protocol: Protocol,
    /// The half seconds after which the last of those that wait is served.
    half_seconds: usize,
}

/// Without and with ejection.
struct Outcome {
    without: Seen,
    with: Seen,
}

pub(super) fn table(nodes: u32) -> Result<Table> {
    let mut table = Table::new(
        &format!("Overload of {ENDPOINTS} endpoints, {nodes} nodes"),
        "clients | queue | load | failed without, with ejection | endpoints out on a node: mean, most | \
         nodes that see a fault of their own, most | failed from 20 s after the load has fallen to 70%",
    );
    let case = |protocol, half_seconds| Case { protocol, half_seconds };
    for case in
        [case(Protocol::Tcp, 1), case(Protocol::Tcp, 16), case(Protocol::Udp, 1), case(Protocol::Udp, 16)]
    {
        for load in [90, 110, 150, 200] {
            let outcome = case.outcome(nodes, load)?;
            table.row(&outcome.cells(nodes, case, load));
        }
    }
    Ok(table)
}

impl Case {
    fn outcome(self, nodes: u32, load: u32) -> Result<Outcome> {
        let run_with = |balancing| {
            let mut plan = Plan::new(nodes, ENDPOINTS, FULL, 100).with(balancing);
            plan.protocol = self.protocol;
            plan.capacity.backlog *= self.half_seconds;
            if self.protocol == Protocol::Udp {
                plan.patience = Duration::from_secs(10);
            }
            plan.every = FULL * 100 / load.max(1);
            plan = plan.then(FALLS, Happening::Every(FULL * 100 / 70));
            plan.length = Duration::from_secs(ENDS);
            run(&plan)
        };
        Ok(Outcome { without: run_with(Balancing::default())?, with: run_with(ejecting(None))? })
    }
}

impl Outcome {
    /// The clients that failed in the overload, in percent: without and with ejection.
    fn failed(&self) -> [f64; 2] {
        [&self.without, &self.with].map(|seen| failed(seen.between(30, FALLS - 10)))
    }

    /// The same once it is over.
    fn failed_afterwards(&self) -> [f64; 2] {
        [&self.without, &self.with].map(|seen| failed(seen.between(FALLS + 20, ENDS - 10)))
    }

    /// The endpoints that are out, of one node: on average, and most.
    fn out(&self, nodes: u32) -> [f64; 2] {
        let seconds = self.with.between(30, FALLS);
        let out = seconds.iter().map(|it| u32::try_from(it.out).map_or(0.0, f64::from) / f64::from(nodes));
        let count = u32::try_from(seconds.len()).map_or(1.0, f64::from);
        [out.clone().sum::<f64>() / count, out.fold(0.0, f64::max)]
    }

    fn faults(&self) -> usize {
        let faults = |it: &Second| it.faults;
        self.with.between(0, FALLS).iter().map(faults).max().unwrap_or_default()
    }

    fn cells(&self, nodes: u32, case: Case, load: u32) -> String {
        let Case { protocol, half_seconds } = case;
        let [without, with] = self.failed();
        let [mean, most] = self.out(nodes);
        let [_, after] = self.failed_afterwards();
        format!(
            "{protocol} | {:.1} s | {load}% | {without:.1}%, {with:.1}% | {mean:.1}, {most:.1} | {} | {after:.2}%",
            u32::try_from(half_seconds).map_or(0.0, f64::from) / 2.0,
            self.faults()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODES: u32 = 100;

    #[test]
    fn ejection_in_an_overload_costs_few_clients_and_ends_with_it() {
        let short = Case { protocol: Protocol::Tcp, half_seconds: 1 };
        let outcome = short.outcome(NODES, 125).unwrap();
        let [without, with] = outcome.failed();
        let [mean, most] = outcome.out(NODES);
        assert!(most <= 5.0, "at most half: {most}");
        assert!(with < without + 10.0, "{with}, without ejection {without}; {mean} are out");
        let [_, after] = outcome.failed_afterwards();
        assert!(after < 1.0, "{after}");
    }

    #[test]
    fn no_endpoint_is_out_while_all_have_room() {
        let case = Case { protocol: Protocol::Tcp, half_seconds: 1 };
        let outcome = case.outcome(NODES, 50).unwrap();
        let [_, most] = outcome.out(NODES);
        assert!(most < 0.1 && outcome.faults() == 0, "{most}");
    }
}
