//! The counters of a server, and their growth from one reading to the next.

use std::{ops::AddAssign, time::Duration};

use ipvs::Stats;
use serde::{Deserialize, Serialize};

/// Counters of connections, packets and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct Counters {
    /// Connections.
    pub connections: u64,
    /// Packets from clients.
    pub packets_in: u64,
    /// Packets to clients.
    pub packets_out: u64,
    /// Bytes from clients.
    pub bytes_in: u64,
    /// Bytes to clients.
    pub bytes_out: u64,
}

/// The counters' growth in a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize)]
#[allow(clippy::struct_field_names, reason = "as they are printed, beside the counters")]
pub struct Rates {
    /// Connections.
    pub connections_per_second: f64,
    /// Packets from clients.
    pub packets_in_per_second: f64,
    /// Packets to clients.
    pub packets_out_per_second: f64,
    /// Bytes from clients.
    pub bytes_in_per_second: f64,
    /// Bytes to clients.
    pub bytes_out_per_second: f64,
}

impl Counters {
    /// The counters that the kernel has.
    pub fn from_stats(stats: &Stats) -> Self {
        let Stats { connections, packets_in, packets_out, bytes_in, bytes_out, .. } = *stats;
        Self { connections, packets_in, packets_out, bytes_in, bytes_out }
    }

    /// The growth in a second, if it took this interval. No time is taken for a nanosecond.
    pub fn in_a_second(self, interval: Duration) -> Rates {
        let seconds = interval.max(Duration::from_nanos(1)).as_secs_f64();
        #[allow(clippy::cast_precision_loss, reason = "a rate is not read to sixteen digits")]
        let rate = |count: u64| count as f64 / seconds;
        Rates {
            connections_per_second: rate(self.connections),
            packets_in_per_second: rate(self.packets_in),
            packets_out_per_second: rate(self.packets_out),
            bytes_in_per_second: rate(self.bytes_in),
            bytes_out_per_second: rate(self.bytes_out),
        }
    }
}

impl AddAssign for Counters {
    fn add_assign(&mut self, other: Self) {
        let add = |sum: &mut u64, count| *sum = sum.saturating_add(count);
        add(&mut self.connections, other.connections);
        add(&mut self.packets_in, other.packets_in);
        add(&mut self.packets_out, other.packets_out);
        add(&mut self.bytes_in, other.bytes_in);
        add(&mut self.bytes_out, other.bytes_out);
    }
}

impl AddAssign for Rates {
    fn add_assign(&mut self, other: Self) {
        self.connections_per_second += other.connections_per_second;
        self.packets_in_per_second += other.packets_in_per_second;
        self.packets_out_per_second += other.packets_out_per_second;
        self.bytes_in_per_second += other.bytes_in_per_second;
        self.bytes_out_per_second += other.bytes_out_per_second;
    }
}

impl Rates {
    /// Packets both ways.
    pub fn packets(&self) -> f64 {
        self.packets_in_per_second + self.packets_out_per_second
    }

    /// Bytes both ways.
    pub fn bytes(&self) -> f64 {
        self.bytes_in_per_second + self.bytes_out_per_second
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn counters() -> impl Strategy<Value = Counters> {
        // Sums of two do not overflow.
        proptest::array::uniform5(0..=u64::MAX / 2).prop_map(
            |[connections, packets_in, packets_out, bytes_in, bytes_out]| Counters {
                connections,
                packets_in,
                packets_out,
                bytes_in,
                bytes_out,
            },
        )
    }

    /// The growth as [`Stats::since`] has it.
    fn since(now: Counters, before: Counters) -> Counters {
        let stats = |counters: Counters| {
            let mut stats = Stats::default();
            stats.connections = counters.connections;
            (stats.packets_in, stats.packets_out) = (counters.packets_in, counters.packets_out);
            (stats.bytes_in, stats.bytes_out) = (counters.bytes_in, counters.bytes_out);
            stats
        };
        Counters::from_stats(&stats(now).since(&stats(before)))
    }

    proptest! {
        #[test]
        fn a_rate_is_a_number_and_never_negative(
            now in counters(), before in counters(), nanoseconds in 0_u64..1 << 40,
        ) {
            let rates = since(now, before).in_a_second(Duration::from_nanos(nanoseconds));
            for rate in [rates.connections_per_second, rates.packets(), rates.bytes()] {
                prop_assert!(rate.is_finite() && rate >= 0.0);
            }
        }

        #[test]
        fn what_was_counted_since_is_the_difference(before in counters(), more in counters()) {
            let mut now = before;
            now += more;
            prop_assert_eq!(since(now, before), more);
        }
    }

    #[test]
    fn a_counter_that_was_set_to_zero_counts_from_there() {
        let packets_in = |packets_in| Counters { packets_in, ..Counters::default() };
        assert_eq!(since(packets_in(7), packets_in(100)), packets_in(7));
    }
}
