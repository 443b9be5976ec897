//! Which virtual servers are read to the last detail.

use std::hash::BuildHasher as _;

use ipvs::ServiceAddress;
use rustc_hash::FxBuildHasher;

/// How many looks at everything it takes until each virtual server has had its turn: an hour, with the
/// default period of 30 seconds.
///
/// Only a turn finds changed scheduler flags, persistence engines, thresholds, kinds of tunnels, one-packet
/// scheduling for IPv6, and a real server that is bypassed and not masqueraded: nobody changes these but on
/// purpose. Some of it is not seen of real servers at the start either, and is then told as a repair. The
/// turns cost a small part of what the look costs anyway, while all at once would hold up the writer.
const PARTS: u64 = 120;

/// The virtual servers whose turn it is. None of them is remembered, so that they come and go as they like.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DeepVerify {
    turn: u64,
}

impl DeepVerify {
    /// Goes on to the next turn.
    pub(crate) fn next(&mut self) -> Self {
        self.turn = (self.turn + 1) % PARTS;
        *self
    }

    /// Whether all have had their turn, and the turns begin again.
    pub(crate) fn begins_anew(self) -> bool {
        self.turn == 0
    }

    /// Whether it is this virtual server's turn.
    pub(crate) fn contains(self, of: &ServiceAddress) -> bool {
        FxBuildHasher.hash_one(of) % PARTS == self.turn
    }
}

#[cfg(test)]
mod tests {
    use ipvs::Protocol;

    use super::*;

    #[test]
    fn each_virtual_server_has_its_turn_once_and_no_turn_is_long() {
        let servers: Vec<_> = (0..2_400u16)
            .map(|number| {
                let [high, low] = number.to_be_bytes();
                ServiceAddress { protocol: Protocol::Tcp, ip: [10, 96, high, low].into(), port: 80 }
            })
            .collect();
        let mut sample = DeepVerify::default();
        let mut had: Vec<&ServiceAddress> = Vec::new();
        for _ in 0..PARTS {
            let turn = sample.next();
            let its = servers.iter().filter(|server| turn.contains(server));
            let before = had.len();
            had.extend(its);
            assert!(had.len() - before < 60, "{} at once, 20 are the mean", had.len() - before);
        }
        had.sort_unstable();
        assert!(had.into_iter().eq(&servers), "each once");
    }
}
