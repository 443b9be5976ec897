//! Reports each piece of advice once.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use super::{Advice, Cause};

/// The shortest time between two reports of the same advice. A firewall that is reloaded again and again makes advice
/// come and go; it is reported once in this time.
const QUIET: Duration = Duration::from_secs(600);

/// The advice reported so far, by cause and subject.
#[derive(Debug, Default)]
pub(super) struct AdviceDedup(BTreeMap<(Cause, String), Reported>);

#[derive(Debug)]
struct Reported {
    advice: Advice,
    /// Whether the last report said that it holds, and not that it ended.
    holds: bool,
    /// When it was reported that it holds.
    at: Instant,
}

/// A change to report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Transition {
    /// The advice holds from now on.
    Begins(Advice),
    /// The advice was reported, and does not hold any more.
    Ends(Advice),
}

impl AdviceDedup {
    /// Compares the advice that holds now with what was reported. Returns the difference, and counts it as reported.
    pub(super) fn update(&mut self, holds: &[Advice], now: Instant) -> Vec<Transition> {
        let mut transitions = Vec::new();
        for advice in holds {
            if !self.0.get(&key(advice)).is_some_and(|reported| reported.is_fresh(now)) {
                self.0.insert(key(advice), Reported { advice: advice.clone(), holds: true, at: now });
                transitions.push(Transition::Begins(advice.clone()));
            }
        }
        self.0.retain(|reported_key, reported| {
            let over = !holds.iter().any(|advice| key(advice) == *reported_key);
            if over && reported.holds {
                reported.holds = false;
                transitions.push(Transition::Ends(reported.advice.clone()));
            }
            reported.is_fresh(now)
        });
        transitions
    }
}

impl Reported {
    /// Whether it is too soon for another report.
    fn is_fresh(&self, now: Instant) -> bool {
        self.holds || now.duration_since(self.at) < QUIET
    }
}

/// What identifies advice, whatever its text.
fn key(advice: &Advice) -> (Cause, String) {
    (advice.cause, advice.subject.clone())
}

#[cfg(test)]
mod tests {
    use super::{
        Transition::{Begins, Ends},
        *,
    };
    use crate::node::advice::Severity;

    fn advice(subject: &str, what: &str) -> Advice {
        Advice {
            severity: Severity::Warning,
            cause: Cause::HostFirewall,
            subject: subject.to_owned(),
            what: what.to_owned(),
            remedy: "mend it".to_owned(),
        }
    }

    #[test]
    fn advice_is_reported_once_and_its_end_once() {
        let (mut dedup, now) = (AdviceDedup::default(), Instant::now());
        let (input, forward) = (advice("INPUT", "drops"), advice("FORWARD", "drops"));
        assert_eq!(dedup.update(std::slice::from_ref(&input), now), [Begins(input.clone())]);
        let both = [input.clone(), forward.clone()];
        assert_eq!(dedup.update(&both, now), [Begins(forward.clone())]);
        assert_eq!(dedup.update(&both, now + QUIET * 9), [], "nothing new, however long");
        assert_eq!(dedup.update(&[input], now + QUIET * 9), [Ends(forward)]);
    }

    #[test]
    fn another_text_about_the_same_subject_is_not_reported() {
        let (mut dedup, now) = (AdviceDedup::default(), Instant::now());
        let first = advice("NodePorts", "31000");
        dedup.update(std::slice::from_ref(&first), now);
        assert_eq!(dedup.update(&[advice("NodePorts", "31000 and 31001")], now + QUIET * 2), []);
        assert_eq!(dedup.update(&[], now + QUIET * 2), [Ends(first)]);
    }

    #[test]
    fn advice_that_comes_and_goes_is_reported_once_in_ten_minutes() {
        let (mut dedup, begin) = (AdviceDedup::default(), Instant::now());
        let input = advice("INPUT", "drops");
        let mut transitions = Vec::new();
        for second in 0..599 {
            let holds = if second % 2 == 0 { vec![input.clone()] } else { Vec::new() };
            transitions.extend(dedup.update(&holds, begin + Duration::from_secs(second)));
        }
        assert_eq!(transitions, [Begins(input.clone()), Ends(input.clone())]);
        assert_eq!(dedup.update(std::slice::from_ref(&input), begin + QUIET), [Begins(input)]);
    }
}
