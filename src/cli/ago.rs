//! Prints durations for people.

use std::{fmt, time::Duration};

/// A duration, in its two largest units at most: `3.2 s`, `62 s`, `5 min 10 s`, `3 h 12 min`, `4 d 3 h`.
pub(super) struct Time(pub(super) Duration);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
        match seconds {
            0..10 => write!(f, "{:.1} s", self.0.as_secs_f64()),
            10..100 => write!(f, "{seconds} s"),
            100..3600 => write!(f, "{minutes} min {} s", seconds % 60),
            3600..86_400 => write!(f, "{hours} h {} min", minutes % 60),
            _ => write!(f, "{days} d {} h", hours % 24),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_its_two_largest_units() {
        let shown = |milliseconds| Time(Duration::from_millis(milliseconds)).to_string();
        assert_eq!([0, 3_210, 61_700, 310_000].map(shown), ["0.0 s", "3.2 s", "61 s", "5 min 10 s"]);
        assert_eq!([11_520_000, 356_400_000].map(shown), ["3 h 12 min", "4 d 3 h"]);
    }
}
