//! What `ipvsadm` shows with `--stats` and `--rate`.

use std::fmt;

use crate::Stats;

/// The lines over the counters.
pub(super) const HEAD: &str = "\
Prot LocalAddress:Port               Conns   InPkts  OutPkts  InBytes OutBytes
  -> RemoteAddress:Port
";

/// The lines over the rates.
pub(super) const HEAD_OF_RATES: &str = "\
Prot LocalAddress:Port                 CPS    InPPS   OutPPS    InBPS   OutBPS
  -> RemoteAddress:Port
";

/// Connections, packets in and out, bytes in and out. Each takes nine columns.
pub(super) struct CounterColumns([u64; 5]);

impl CounterColumns {
    /// Since the server was made.
    pub(super) fn totals(stats: &Stats) -> Self {
        Self([stats.connections, stats.packets_in, stats.packets_out, stats.bytes_in, stats.bytes_out])
    }

    /// The rates of the last seconds, per second.
    pub(super) fn rates(stats: &Stats) -> Self {
        Self([
            stats.connections_per_second,
            stats.packets_in_per_second,
            stats.packets_out_per_second,
            stats.bytes_in_per_second,
            stats.bytes_out_per_second,
        ])
    }
}

impl fmt::Display for CounterColumns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|number| match number {
            0..100_000_000 => write!(f, "{number:>9}"),
            0..1_000_000_000 => write!(f, "{:>8}K", number / 1_000),
            0..100_000_000_000 => write!(f, "{:>8}M", number / 1_000_000),
            0..100_000_000_000_000 => write!(f, "{:>8}G", number / 1_000_000_000),
            _ => write!(f, "{:>8}T", number / 1_000_000_000_000),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_numbers_are_cut_as_ipvsadm_cuts_them() {
        let columns =
            CounterColumns([99_999_999, 100_000_000, 1_000_000_000, 100_000_000_000, 100_000_000_000_000]);
        assert_eq!(columns.to_string(), " 99999999  100000K    1000M     100G     100T");
    }
}
