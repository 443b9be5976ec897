//! Notices another program that changes what we program again and again, such as another proxy.
//!
//! Each repair is logged and counted, but a series of them looks like noise: only this says that there is no end.
//! There is no other remedy: giving way would serve nothing, and repairing more often would be a race.

use std::{collections::VecDeque, time::Duration};

use super::{Advice, Cause, Severity};

/// The number of past sync periods considered.
const PERIODS: usize = 10;
/// How many of them must have a repair: an upgrade of a network plugin or a reload of a firewall is over by then.
const MANY: usize = 5;

/// Which of the last sync periods had a repair.
#[derive(Debug)]
pub(super) struct RepairLoop {
    period: Duration,
    /// The count of all repairs at the last check.
    repaired: usize,
    /// How long the current period has lasted, and whether it had a repair.
    current: (Duration, bool),
    past: VecDeque<bool>,
}

impl RepairLoop {
    /// Counts periods of this length.
    pub(super) fn new(period: Duration) -> Self {
        Self { period, repaired: 0, current: (Duration::ZERO, false), past: VecDeque::new() }
    }

    /// Takes the count of all repairs so far, a description of the last one, and the time since the last check.
    pub(super) fn check(&mut self, repaired: usize, last: Option<&str>, after: Duration) -> Option<Advice> {
        let (lasted, contested) = self.current;
        self.current = (lasted + after, contested || repaired > self.repaired);
        self.repaired = repaired;
        if self.current.0 >= self.period {
            self.past.push_front(self.current.1);
            self.past.truncate(PERIODS);
            self.current = (Duration::ZERO, false);
        }
        let many = self.past.iter().filter(|contested| **contested).count();
        (many >= MANY).then(|| Advice {
            severity: Severity::Warning,
            cause: Cause::Contested,
            subject: "kube-ipvs".to_owned(),
            what: format!(
                "something else changes what kube-ipvs programs, again and again: it was repaired in {many} of the \
                 last {PERIODS} sync periods, last: {}",
                last.unwrap_or("not known")
            ),
            remedy: "stop what does that: another proxy of Services or load balancer that uses IPVS, a firewall that \
                     flushes all rules, a network manager that takes kube-ipvs0 for its own; virtual servers that are \
                     to stay can be excluded (ipvs.excludeCIDRs)"
                .to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Duration = Duration::from_secs(30);

    /// Whether there is advice after each of these periods, with a repair or without.
    fn advice_after(periods: &[bool]) -> Vec<bool> {
        let (mut repair_loop, mut repaired) = (RepairLoop::new(PERIOD), 0);
        let mut after = |contested: &bool| {
            repaired += usize::from(*contested) * 7;
            repair_loop.check(repaired, Some("edit"), PERIOD).is_some()
        };
        periods.iter().map(&mut after).collect()
    }

    #[test]
    fn repairs_in_half_of_the_last_periods_are_a_warning_with_the_last_repair() {
        let mut repair_loop = RepairLoop::new(PERIOD);
        for repaired in 1..5 {
            assert_eq!(repair_loop.check(repaired, Some("edit"), PERIOD), None);
        }
        let advice = repair_loop.check(5, Some("edit virtual server"), PERIOD).unwrap();
        assert_eq!((advice.severity, advice.cause), (Severity::Warning, Cause::Contested));
        let said = "it was repaired in 5 of the last 10 sync periods, last: edit virtual server";
        assert!(advice.what.ends_with(said), "{}", advice.what);
        assert_eq!(
            advice_after(&[[true, false]; 5].concat()),
            [[false; 2], [false; 2], [false; 2], [false; 2], [true; 2]].concat()
        );
    }

    #[test]
    fn it_is_over_when_most_of_the_last_periods_were_quiet() {
        let advised = advice_after(&[[true; 6], [false; 6]].concat());
        assert_eq!(
            advised,
            [[false, false, false, false, true, true], [true, true, true, true, true, false]].concat()
        );
    }

    #[test]
    fn many_repairs_and_many_checks_within_a_period_count_as_one_period() {
        assert_eq!(advice_after(&[true, false, false, true, false, false]), [false; 6]);
        let mut repair_loop = RepairLoop::new(PERIOD);
        for repaired in 0..40 {
            assert_eq!(repair_loop.check(repaired * 100, None, PERIOD / 10), None, "four periods");
        }
    }
}
