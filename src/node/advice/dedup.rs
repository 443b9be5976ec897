//! The advice that was told, so that each piece is told once.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use super::{Advice, Cause};

/// How often the same is told at most. What comes and goes, as a firewall that is loaded again and again
/// does, is told once in this time.
const QUIET: Duration = Duration::from_secs(600);

/// The advice that was told, by cause and subject.
#[derive(Debug, Default)]
pub(super) struct Told(BTreeMap<(Cause, String), Telling>);

#[derive(Debug)]
struct Telling {
    advice: Advice,
    /// The last that was told of it is that it holds, and not that it is over.
    holds: bool,
    /// When it was told that it holds.
    at: Instant,
}

/// Something to tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// It holds from now on.
    Begins(Advice),
    /// It was told, and does not hold any more.
    Ends(Advice),
}

impl Told {
    /// Compares all that holds now with what was told, and takes note of the difference as told.
    pub(super) fn news(&mut self, holds: &[Advice], now: Instant) -> Vec<News> {
        let mut news = Vec::new();
        for advice in holds {
            if !self.0.get(&about(advice)).is_some_and(|told| told.is_fresh(now)) {
                self.0.insert(about(advice), Telling { advice: advice.clone(), holds: true, at: now });
                news.push(News::Begins(advice.clone()));
            }
        }
        self.0.retain(|key, told| {
            let over = !holds.iter().any(|advice| about(advice) == *key);
            if over && told.holds {
                told.holds = false;
                news.push(News::Ends(told.advice.clone()));
            }
            told.is_fresh(now)
        });
        news
    }
}

impl Telling {
    /// Whether telling it again would be too soon.
    fn is_fresh(&self, now: Instant) -> bool {
        self.holds || now.duration_since(self.at) < QUIET
    }
}

/// What makes it the same advice, whatever it says.
fn about(advice: &Advice) -> (Cause, String) {
    (advice.cause, advice.subject.clone())
}

#[cfg(test)]
mod tests {
    use super::{
        News::{Begins, Ends},
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
    fn what_holds_is_told_once_and_once_that_it_is_over() {
        let (mut told, now) = (Told::default(), Instant::now());
        let (input, forward) = (advice("INPUT", "drops"), advice("FORWARD", "drops"));
        assert_eq!(told.news(std::slice::from_ref(&input), now), [Begins(input.clone())]);
        let both = [input.clone(), forward.clone()];
        assert_eq!(told.news(&both, now), [Begins(forward.clone())]);
        assert_eq!(told.news(&both, now + QUIET * 9), [], "nothing new, however long");
        assert_eq!(told.news(&[input], now + QUIET * 9), [Ends(forward)]);
    }

    #[test]
    fn other_words_about_the_same_are_not_told() {
        let (mut told, now) = (Told::default(), Instant::now());
        let first = advice("NodePorts", "31000");
        told.news(std::slice::from_ref(&first), now);
        assert_eq!(told.news(&[advice("NodePorts", "31000 and 31001")], now + QUIET * 2), []);
        assert_eq!(told.news(&[], now + QUIET * 2), [Ends(first)]);
    }

    #[test]
    fn what_comes_and_goes_is_told_once_in_ten_minutes_and_then_as_it_stands() {
        let (mut told, begin) = (Told::default(), Instant::now());
        let input = advice("INPUT", "drops");
        let mut news = Vec::new();
        for second in 0..599 {
            let holds = if second % 2 == 0 { vec![input.clone()] } else { Vec::new() };
            news.extend(told.news(&holds, begin + Duration::from_secs(second)));
        }
        assert_eq!(news, [Begins(input.clone()), Ends(input.clone())]);
        assert_eq!(told.news(std::slice::from_ref(&input), begin + QUIET), [Begins(input)]);
    }
}
