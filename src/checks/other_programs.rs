//! Other programs on this node that get in our way: another proxy, and whatever changes what we program.

use std::{
    collections::VecDeque,
    mem,
    time::{Duration, Instant},
};

use super::while_running::WhileRunning;
use crate::{finding::Finding, takeover::leftovers::AnotherProxy};

/// Whether a kube-proxy runs beside us, or has since our own rules were in place.
///
/// Each of the two removes virtual servers that only the other one wants, and its rules may decide before
/// ours. While we run, its rules are reported and not removed: it would write them again.
pub(super) fn another_proxy(node: &mut WhileRunning) -> Vec<Finding> {
    rules_beside_ours(&node.elsewhere.another_proxy).into_iter().collect()
}

fn rules_beside_ours(another_proxy: &AnotherProxy) -> Option<Finding> {
    let what = "kube-proxy's rules are on this node beside ours: another proxy seems to run here, or to have \
                run since kube-ipvs started";
    let remedy = "stop it (delete its DaemonSet), then restart kube-ipvs on this node: it removes the rules after its \
                  first sync";
    another_proxy.is_seen().then(|| Finding::warning("kube-proxy", what).remedy(remedy))
}

/// Whether the lock that keeps a second kube-ipvs out is kept from us.
pub(super) fn lock_kept(node: &mut WhileRunning) -> Vec<Finding> {
    node.elsewhere.instance_lock.upgrade().and_then(|lock| lock.finding()).into_iter().collect()
}

/// Whether another program changes what we program again and again, such as another proxy.
///
/// Each repair is logged and counted, but a series of them looks like noise: only this says that there is no
/// end. There is no other remedy: giving way would serve nothing, and repairing more often would be a race.
pub(super) fn contested(node: &mut WhileRunning) -> Vec<Finding> {
    let last = node.status.last_repair.as_ref().and_then(|last| last.report.first_repair());
    let after = mem::replace(&mut node.last_check, Instant::now()).elapsed();
    node.repair_loop.check(node.status.repaired, last, after).into_iter().collect()
}

/// The number of past sync periods considered.
const PERIODS: usize = 10;
/// How many of them must have a repair: an upgrade of a network plugin or a reload of a firewall is over by
/// then.
const MANY: usize = 5;

/// Remembers which of the last sync periods had a repair.
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

    /// Takes the count of all repairs so far, a description of the last one, and the time since the last
    /// check.
    fn check(&mut self, repaired: usize, last: Option<&str>, after: Duration) -> Option<Finding> {
        let (lasted, contested) = self.current;
        self.current = (lasted + after, contested || repaired > self.repaired);
        self.repaired = repaired;
        if self.current.0 >= self.period {
            self.past.push_front(self.current.1);
            self.past.truncate(PERIODS);
            self.current = (Duration::ZERO, false);
        }
        let many = self.past.iter().filter(|contested| **contested).count();
        let what = format!(
            "another program keeps changing what kube-ipvs programs: repaired in {many} of the last \
             {PERIODS} sync periods, last: {}",
            last.unwrap_or("not known")
        );
        let remedy = "stop that program: another Service proxy or load balancer that uses IPVS, a firewall that \
                      flushes all rules, a network manager that manages kube-ipvs0; ipvs.excludeCIDRs keeps virtual \
                      servers that must stay";
        (many >= MANY).then(|| Finding::warning("kube-ipvs", what).remedy(remedy))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Severity;

    #[test]
    fn rules_of_another_proxy_are_a_warning_as_long_as_they_are_seen() {
        let another = AnotherProxy::default();
        assert_eq!(rules_beside_ours(&another), None, "not read yet");
        another.clone().set_seen(true);
        let finding = rules_beside_ours(&another).unwrap();
        assert_eq!(finding.severity, Severity::Warning);
        assert!(finding.remedy.as_ref().unwrap().contains("restart kube-ipvs on this node"), "{finding}");
        another.set_seen(false);
        assert_eq!(rules_beside_ours(&another), None);
    }

    const PERIOD: Duration = Duration::from_secs(30);

    /// Whether there is a finding after each of these periods, with a repair or without.
    fn found_after(periods: &[bool]) -> Vec<bool> {
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
        let finding = repair_loop.check(5, Some("edit virtual server"), PERIOD).unwrap();
        assert_eq!(finding.severity, Severity::Warning);
        let said = "repaired in 5 of the last 10 sync periods, last: edit virtual server";
        assert!(finding.what.ends_with(said), "{}", finding.what);
        assert_eq!(
            found_after(&[[true, false]; 5].concat()),
            [[false; 2], [false; 2], [false; 2], [false; 2], [true; 2]].concat()
        );
    }

    #[test]
    fn it_is_over_when_most_of_the_last_periods_were_quiet() {
        let found = found_after(&[[true; 6], [false; 6]].concat());
        assert_eq!(
            found,
            [[false, false, false, false, true, true], [true, true, true, true, true, false]].concat()
        );
    }

    #[test]
    fn many_repairs_and_many_checks_within_a_period_count_as_one_period() {
        assert_eq!(found_after(&[true, false, false, true, false, false]), [false; 6]);
        let mut repair_loop = RepairLoop::new(PERIOD);
        for repaired in 0..40 {
            assert_eq!(repair_loop.check(repaired * 100, None, PERIOD / 10), None, "four periods");
        }
    }
}
