//! Weights by distance where one zone has more clients than its endpoints can serve: whether the share that goes
//! elsewhere swings.

use std::{num::NonZero, time::Duration};

use anyhow::Result;
use service::{Balancing, ByDistance, DistanceWeights};

use super::{
    common::after,
    plan::{Plan, Zone},
    seen::{Seen, failed, percent},
    world::run,
};
use crate::table::Table;

/// Connections in a second, from all nodes.
const RATE: u32 = 600;
/// The load of all endpoints. The first zone has two thirds of all clients, and a third of the endpoints.
const LOAD: u32 = 60;
const ENDPOINTS: u32 = 3;
/// The first zone.
const CROWDED: usize = 0;
/// Before this time the connections are not yet as many as later.
const WARM: u64 = 60;
const ENDS: u64 = 360;
/// For how many seconds a swing is looked for.
const LONGEST_SWING: usize = 60;

pub(super) fn table(nodes: u32) -> Result<Table> {
    let mut table = Table::new(
        "Near until busy: one zone has twice as many clients as its endpoints can serve at 60%",
        "client nodes | weights node, zone, other | a connection lasts | stays in the zone | its deviation, × chance | \
         least autocorrelation, at a lag of | failed",
    );
    for factors in [[10, 5, 1], [100, 10, 1]] {
        for nodes in [6, 60, nodes] {
            for lasts in [100, 1_000, 10_000].map(Duration::from_millis) {
                let seen = run(&plan(nodes, factors, lasts))?;
                table.row(&cells(&seen, nodes, factors, lasts));
            }
        }
    }
    Ok(table)
}

fn plan(nodes: u32, factors: [u16; 3], lasts: Duration) -> Plan {
    let every = Duration::from_secs(nodes.into()) / RATE;
    let [node, zone, other] = factors.map(|it| NonZero::new(it).unwrap_or(NonZero::<u16>::MIN));
    let by = ByDistance::By(DistanceWeights { node, zone, other });
    let balancing = Balancing { distance_weights: Some(by), ..Balancing::default() };
    let mut plan = Plan::new(nodes, 3 * ENDPOINTS, every, LOAD).with(balancing);
    let few = nodes / 6;
    let zone = |nodes| Zone { nodes, endpoints: ENDPOINTS };
    plan.zones = vec![zone(nodes - 2 * few), zone(few), zone(few)];
    plan.capacity.workers = u32::try_from(
        u128::from(RATE) * 100 / u128::from(LOAD) * lasts.as_millis() / 1_000 / u128::from(3 * ENDPOINTS),
    )
    .unwrap_or(u32::MAX);
    plan.capacity.takes = lasts;
    plan.patience = Duration::from_secs(5) + 10 * lasts;
    plan.length = Duration::from_secs(ENDS);
    plan
}

/// The share of the crowded zone's connections that stay in it, in each second, and by how much these would deviate
/// by chance.
fn stays(seen: &Seen) -> (Vec<f64>, f64) {
    let of_zone = |it: &super::seen::Second| it.zones.get(CROWDED).copied().unwrap_or_default();
    let seconds = seen.between(WARM, ENDS - 1);
    let shares: Vec<_> = seconds.iter().map(of_zone).map(|[all, near]| percent(near, all)).collect();
    let [all, near] = seconds.iter().map(of_zone).fold([0; 2], |[a, n], [all, near]| [a + all, n + near]);
    let share = percent(near, all) / 100.0;
    let in_a_second = f64::from(all) / u32::try_from(shares.len()).map_or(1.0, f64::from);
    (shares, 100.0 * (share * (1.0 - share) / in_a_second).sqrt())
}

fn mean(of: &[f64]) -> f64 {
    of.iter().sum::<f64>() / u32::try_from(of.len()).map_or(1.0, f64::from).max(1.0)
}

fn deviation(of: &[f64]) -> f64 {
    let mean = mean(of);
    self::mean(&of.iter().map(|it| (it - mean).powi(2)).collect::<Vec<_>>()).sqrt()
}

/// How much these go with themselves some seconds later: 1 always, -1 always against it.
fn autocorrelation(of: &[f64], lag: usize) -> f64 {
    let mean = mean(of);
    let pairs: Vec<_> = of.iter().zip(of.iter().skip(lag)).map(|(a, b)| (a - mean) * (b - mean)).collect();
    let variance = deviation(of).powi(2);
    if variance == 0.0 { 0.0 } else { self::mean(&pairs) / variance }
}

/// The least of it, and the lag. A swing has it at half of its period, far below 0.
fn swing(of: &[f64]) -> (f64, usize) {
    let all = (1..=LONGEST_SWING).map(|lag| (autocorrelation(of, lag), lag));
    all.min_by(|one, other| one.0.total_cmp(&other.0)).unwrap_or_default()
}

fn cells(seen: &Seen, nodes: u32, [node, zone, other]: [u16; 3], lasts: Duration) -> String {
    let (shares, by_chance) = stays(seen);
    let (least, lag) = swing(&shares);
    let lag = after(u32::try_from(lag).ok().map(f64::from));
    let times = if by_chance > 0.0 { deviation(&shares) / by_chance } else { 0.0 };
    format!(
        "{nodes} | {node}, {zone}, {other} | {} s | {:.0}% | {times:.1} | {least:.2}, {lag} | {:.1}%",
        lasts.as_secs_f64(),
        mean(&shares),
        failed(seen.between(WARM, ENDS - 110)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_swing_is_found_by_its_autocorrelation() {
        let wave: Vec<_> =
            (0..240).map(|second| (f64::from(second) * std::f64::consts::PI / 10.0).sin()).collect();
        let (least, lag) = swing(&wave);
        assert!(least < -0.9 && lag % 20 == 10, "{least} {lag}");
    }

    #[test]
    fn what_goes_elsewhere_does_not_swing() {
        for lasts in [100, 1_000].map(Duration::from_millis) {
            let seen = run(&plan(12, [10, 5, 1], lasts)).unwrap();
            let (shares, _) = stays(&seen);
            let (least, lag) = swing(&shares);
            assert!(least > -0.5, "{lasts:?}: {least} at {lag} s");
        }
    }
}
