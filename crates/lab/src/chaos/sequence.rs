//! One fault after the other.

use std::{
    fs,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;

use super::{
    Plan,
    catalogue::Fault,
    report::{Report, Row},
    scene::Scene,
    traffic::Traffic,
};

/// How long after a repair the daemon may log it.
const WORD_WITHIN: Duration = Duration::from_secs(5);

/// Every fault, as often as it is to happen, in an order that follows from the seed.
fn order(faults: &[Fault], plan: &Plan, random: &mut fastrand::Rng) -> Vec<usize> {
    let times = |fault: &Fault| (plan.rounds * fault.times).min(plan.most) as usize;
    let repeated = |(number, fault)| std::iter::repeat_n(number, times(fault));
    let mut order: Vec<_> = faults.iter().enumerate().flat_map(repeated).collect();
    random.shuffle(&mut order);
    order
}

/// Injects every fault in its turn, and records its results.
pub(super) fn inject_all(
    scene: &mut Scene<'_>,
    faults: &[Fault],
    plan: &Plan,
    traffic: &Traffic<'_, '_>,
    report: &mut Report,
) -> Result<()> {
    let row = |fault: &Fault| Row {
        fault: fault.name,
        is_logged: fault.logged.is_some(),
        costs: fault.costs,
        cuts_short: fault.cuts_short,
        ..Row::default()
    };
    let mut rows: Vec<_> = faults.iter().map(row).collect();
    let order = order(faults, plan, &mut scene.random);
    for (count, number) in order.iter().enumerate() {
        let (Some(fault), Some(row)) = (faults.get(*number), rows.get_mut(*number)) else { continue };
        let after = traffic.since().as_secs_f64();
        eprintln!("chaos: {} of {} after {after:.2} s: {}", count + 1, order.len(), fault.name);
        if let Err(error) = inject_one(scene, fault, traffic, row) {
            eprintln!("chaos: {error:#}");
            report.failures.push(format!("{}: {error:#}", fault.name));
            scene.recover()?;
        }
    }
    report.failures.extend(rows.iter().flat_map(Row::failures));
    report.rows.append(&mut rows);
    Ok(())
}

/// One fault, from its beginning until everything is as it was and every connection has been used again.
fn inject_one(scene: &mut Scene<'_>, fault: &Fault, traffic: &Traffic<'_, '_>, row: &mut Row) -> Result<()> {
    scene.pick_victim();
    let pause = scene.seconds(0.0, 0.5);
    thread::sleep(pause);
    let (log, so_far) = scene.log()?;
    let (lost, unanswered) = traffic.lost();
    let cut_short = scene.cut_short;
    drop(traffic.causes());
    let over = AtomicBool::new(false);
    let begun = Instant::now();
    row.injected += 1;
    let (healed, logged) = thread::scope(|scope| {
        let logged =
            fault.logged.map(|words| scope.spawn(|| first_logged(&log, so_far, words, begun, &over)));
        let injected = (fault.inject)(scene);
        let ended = Instant::now();
        let healed = injected.and_then(|()| scene.heals()).map(|()| ended.elapsed());
        over.store(true, Ordering::Relaxed);
        (healed, logged.and_then(|logged| logged.join().ok().flatten()))
    });
    let settled = traffic.settles();
    let (now_lost, now_unanswered) = traffic.lost();
    row.lost += now_lost - lost;
    row.unanswered += now_unanswered - unanswered;
    row.cut_short += scene.cut_short - cut_short;
    if !fault.costs {
        traffic.causes().iter().for_each(|cause| eprintln!("chaos: {cause}"));
    }
    row.detected.extend(logged.map(|after| after.as_secs_f64()));
    row.healed.push(healed?.as_secs_f64());
    settled?;
    scene.daemon_lives()
}

/// When the daemon logs these words, from this position on. Waits only a little longer than the fault lasts.
fn first_logged(
    log: &Path,
    so_far: usize,
    words: &str,
    begun: Instant,
    over: &AtomicBool,
) -> Option<Duration> {
    let mut deadline = None;
    loop {
        let text = fs::read_to_string(log).unwrap_or_default();
        if text.get(so_far..).is_some_and(|new| new.contains(words)) {
            return Some(begun.elapsed());
        }
        if over.load(Ordering::Relaxed)
            && *deadline.get_or_insert(Instant::now() + WORD_WITHIN) < Instant::now()
        {
            return None;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::catalogue;

    fn plan(seed: u64) -> Plan {
        Plan { seed, rounds: 2, most: 50, others: 0, names: Vec::new() }
    }

    fn ordered(seed: u64) -> Vec<usize> {
        order(
            &catalogue::with_addresses(catalogue::Own::EVERYTHING),
            &plan(seed),
            &mut fastrand::Rng::with_seed(seed),
        )
    }

    #[test]
    fn every_fault_happens_as_often_as_it_is_to_and_the_seed_gives_the_order() {
        assert_eq!(ordered(1), ordered(1));
        assert_ne!(ordered(1), ordered(2));
        let order = ordered(1);
        for (number, fault) in catalogue::with_addresses(catalogue::Own::EVERYTHING).iter().enumerate() {
            let times = order.iter().filter(|happening| **happening == number).count();
            assert_eq!(times, (2 * fault.times).min(50) as usize, "{}", fault.name);
        }
    }
}
