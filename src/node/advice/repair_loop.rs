//! Something that changes what is programmed again and again: another proxy that wants something else.
//!
//! Each repair is logged and counted, and soon no longer looked at: that there is no end of them is something else.
//! There is nothing else to be done about it: to give way would be to serve nothing, and to repair more often a race.

use std::{collections::VecDeque, time::Duration};

use super::{Advice, Cause, Severity};

/// How many sync periods are looked back at.
const PERIODS: usize = 10;
/// In how many of them something must have been repaired: who upgrades a network plugin, or reloads a firewall, is
/// done by then.
const MANY: usize = 5;

/// In which of the last sync periods something was repaired.
#[derive(Debug)]
pub(super) struct RepairLoop {
    period: Duration,
    /// How many operations had repaired something, in all, when somebody looked last.
    repaired: usize,
    /// For how long the period that is not over has lasted, and whether something was repaired in it.
    current: (Duration, bool),
    past: VecDeque<bool>,
}

impl RepairLoop {
    /// With sync periods of this length.
    pub(super) fn new(period: Duration) -> Self {
        Self { period, repaired: 0, current: (Duration::ZERO, false), past: VecDeque::new() }
    }

    /// Looks at how many operations have repaired something so far, the last of them in words, so long after the last
    /// look.
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

    /// Whether it is told after each of these periods, in which something was repaired or not.
    fn told(periods: &[bool]) -> Vec<bool> {
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
            told(&[[true, false]; 5].concat()),
            [[false; 2], [false; 2], [false; 2], [false; 2], [true; 2]].concat()
        );
    }

    #[test]
    fn it_is_over_when_most_of_the_last_periods_were_quiet() {
        let told = told(&[[true; 6], [false; 6]].concat());
        assert_eq!(
            told,
            [[false, false, false, false, true, true], [true, true, true, true, true, false]].concat()
        );
    }

    #[test]
    fn many_repairs_and_many_checks_within_a_period_count_as_one_period() {
        assert_eq!(told(&[true, false, false, true, false, false]), [false; 6]);
        let mut repair_loop = RepairLoop::new(PERIOD);
        for repaired in 0..40 {
            assert_eq!(repair_loop.check(repaired * 100, None, PERIOD / 10), None, "four periods");
        }
    }
}
