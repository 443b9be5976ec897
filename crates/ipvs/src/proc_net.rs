//! The kernel's own texts about IPVS in `/proc/net`.
//!
//! - [`virtual_servers`] reads `/proc/net/ip_vs`: the table, much cheaper than over netlink.
//! - [`for_each_connection`] reads `/proc/net/ip_vs_conn`: all connections. They print as `ipvsadm -Lnc`
//!   prints them.
//! - [`total_connections`] reads `/proc/net/ip_vs_stats`: the sum of all virtual servers' counters.

mod connections;
mod summary;

use std::{
    io::{self, BufRead, Read},
    str,
};

pub use connections::{CONNECTIONS_HEAD, Connection, for_each_connection};
pub use summary::{Persistence, RealServerSummary, VirtualServerSummary, virtual_servers};

/// The number of connections that IPVS has scheduled, from a text like `/proc/net/ip_vs_stats`; `None` if it is not
/// understood. The kernel brings it up to date every two seconds (`ip_vs_stats_show` in
/// net/netfilter/ipvs/ip_vs_ctl.c).
///
/// ```
/// let text = "\
///    Total Incoming Outgoing         Incoming         Outgoing
///    Conns  Packets  Packets            Bytes            Bytes
///       1F       48       30              8A8              53C
/// ";
/// assert_eq!(ipvs::proc_net::total_connections(text.as_bytes()), Some(31));
/// ```
pub fn total_connections(text: &[u8]) -> Option<u64> {
    let line = text.split(|byte| *byte == b'\n').nth(2)?;
    let first = str::from_utf8(line).ok()?.split_whitespace().next()?;
    u64::from_str_radix(first, 16).ok()
}

/// The longest line that is read. The kernel's have little more than a hundred bytes.
const LONGEST_LINE: u64 = 1024;

/// The lines of a text, one at a time.
struct Lines<T> {
    text: T,
    line: Vec<u8>,
}

impl<T: BufRead> Lines<T> {
    fn new(text: T) -> Self {
        Self { text, line: Vec::new() }
    }

    /// The next line without its end. An error if it has none.
    fn next(&mut self) -> io::Result<Option<&[u8]>> {
        self.line.clear();
        self.text.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut self.line)?;
        if self.line.is_empty() {
            return Ok(None);
        }
        self.line.strip_suffix(b"\n").map(Some).ok_or_else(invalid)
    }
}

/// The error for a text that is not understood.
fn invalid() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

/// The first word, and what follows it; `None` if there are only blanks.
fn word(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let text = text.trim_ascii_start();
    let end = text.iter().position(|byte| *byte == b' ').unwrap_or(text.len());
    text.split_at_checked(end).filter(|(word, _)| !word.is_empty())
}

/// A number as it is usually written.
fn decimal<T: str::FromStr>(word: &[u8]) -> Option<T> {
    str::from_utf8(word).ok()?.parse().ok()
}

/// Up to eight digits.
fn hexadecimal(digits: &[u8]) -> Option<u32> {
    let digit = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    };
    if digits.len() > 8 {
        return None;
    }
    digits.iter().try_fold(0, |number, byte| Some(number << 4 | u32::from(digit(*byte)?)))
}
