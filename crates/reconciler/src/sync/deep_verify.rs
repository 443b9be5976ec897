//! Which virtual servers a sync verifies in every detail.

use std::hash::BuildHasher as _;

use ipvs::ServiceAddress;
use rustc_hash::FxBuildHasher;

/// How many periodic syncs it takes until each virtual server was verified in every detail: an hour, with the default
/// period of 30 seconds.
///
/// Only this finds changed scheduler flags, persistence engines, thresholds, kinds of tunnels, one-packet scheduling
/// for IPv6, and a real server that is bypassed and not masqueraded: nobody changes these but on purpose, and an operator
/// can ask for a comparison of everything (`kube-ipvs diff`, `kube-ipvs resync`). One part costs little beside the rest of
/// the sync; all at once would block the writer.
const PARTS: u64 = 120;

/// How many adopted virtual servers one sync verifies. With five real servers each they take 30 ms
/// (docs/performance.md), for which a change can wait.
const ADOPTED_PER_SYNC: usize = 1_000;

/// Selects one part of the virtual servers for each periodic sync, by a hash of their addresses.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DeepVerify {
    part: u64,
}

impl DeepVerify {
    /// Goes on to the next part, and returns it.
    pub(crate) fn next_part(&mut self) -> Self {
        self.part = (self.part + 1) % PARTS;
        *self
    }

    /// Whether this is the first part of a new round.
    pub(crate) fn is_first(self) -> bool {
        self.part == 0
    }

    /// Whether a virtual server is in this part.
    pub(crate) fn contains(self, address: &ServiceAddress) -> bool {
        FxBuildHasher.hash_one(address) % PARTS == self.part
    }
}

/// The virtual servers that the start has adopted from a summary and no sync has verified since. An earlier daemon, or
/// an operator meanwhile, may have left in them what a summary does not show.
#[derive(Debug, Default)]
pub(crate) struct Adopted(Vec<ServiceAddress>);

impl Adopted {
    /// Starts with these.
    pub(crate) fn new(virtual_servers: Vec<ServiceAddress>) -> Self {
        Self(virtual_servers)
    }

    /// Takes those that one sync verifies.
    pub(crate) fn take_some(&mut self) -> Vec<ServiceAddress> {
        self.0.split_off(self.0.len().saturating_sub(ADOPTED_PER_SYNC))
    }

    /// Whether all are verified.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use ipvs::Protocol;

    use super::*;

    #[test]
    fn each_virtual_server_is_in_one_part_and_no_part_is_large() {
        let servers: Vec<_> = (0..2_400u16)
            .map(|number| {
                let [high, low] = number.to_be_bytes();
                ServiceAddress { protocol: Protocol::Tcp, ip: [10, 96, high, low].into(), port: 80 }
            })
            .collect();
        let mut deep_verify = DeepVerify::default();
        let mut had: Vec<&ServiceAddress> = Vec::new();
        for _ in 0..PARTS {
            let part = deep_verify.next_part();
            let its = servers.iter().filter(|server| part.contains(server));
            let before = had.len();
            had.extend(its);
            assert!(had.len() - before < 60, "{} at once, 20 are the mean", had.len() - before);
        }
        had.sort_unstable();
        assert!(had.into_iter().eq(&servers), "each once");
    }
}
