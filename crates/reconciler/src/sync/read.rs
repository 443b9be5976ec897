//! The first half of a sync: read what must be read.

use std::{
    hash::BuildHasher as _,
    mem,
    time::{Duration, Instant},
};

use ipvs::{RealServer, ServiceAddress, Tunnel};
use rustc_hash::FxBuildHasher;
use service::{Change, Dirty, one_line};
use tracing::debug;
use watcher::{
    Drift, Observed, ReadError, SummaryError, Verification, VirtualServerImage, differing, differing_in,
};

use super::Reconciler;
use crate::Trigger;

/// The image of the kernel that a sync works with, and how it was read.
pub(super) struct Reading {
    pub(super) image: Observed,
    /// Whether the whole kernel was checked, by reading it or by comparing it with the image.
    pub(super) full: bool,
    /// The keys that differ from the image, or from the desired state without a known reason.
    pub(super) drift: Dirty,
}

impl Reconciler {
    /// Reads everything, compares everything with the image, or updates the image where the kernel reported a
    /// change. The node's addresses are an input of the desired state; the keys that they change are added to
    /// `dirty`.
    ///
    /// If anything fails there is no image any more, so that the next sync reads everything.
    pub(super) fn read(&mut self, trigger: Trigger, dirty: &mut Dirty) -> Result<Reading, ReadError> {
        let reported = mem::take(&mut self.reported);
        match self.image.take() {
            None => self.read_everything(trigger, dirty),
            Some(_) if trigger.reads_everything() => self.read_everything(trigger, dirty),
            Some(image) if trigger.is_full() => self.verify(image, trigger, dirty),
            Some(image) => self.refresh(image, reported, trigger, dirty),
        }
    }

    /// Begins or continues the comparison of a periodic sync, and returns whether it is complete, so that the sync need
    /// not wait for the kernel, which can take seconds. The sync handles an error.
    pub(crate) fn compare_ahead(&mut self, is_waited_for: impl FnMut(usize) -> bool) -> bool {
        let Some(image) = &self.image else { return true };
        let begun = self.verification.take().unwrap_or_else(|| Verification::begin(&mut self.kernel, image));
        let mut is_compared = true;
        self.verification = Some(begun.and_then(|mut verification| {
            is_compared = verification.proceed(image, is_waited_for)?;
            Ok(verification)
        }));
        is_compared
    }

    /// How long the comparison for the next periodic sync has taken so far.
    pub(crate) fn compared_for(&self) -> Duration {
        let begun = self.verification.as_ref().and_then(|it| it.as_ref().ok());
        begun.map_or(Duration::ZERO, Verification::took)
    }

    /// Compares the whole kernel with the image.
    fn verify(
        &mut self,
        mut image: Observed,
        trigger: Trigger,
        dirty: &mut Dirty,
    ) -> Result<Reading, ReadError> {
        // What was adopted will be verified. What the start has missed there is not another program's change.
        let part = self.adopted.is_empty().then(|| self.deep_verify.next_part());
        let is_first = part.is_some_and(DeepVerify::is_first);
        if is_first {
            // Once a round the tables are read, whatever their generation.
            image.netfilter.generation = None;
        }
        let verification =
            self.verification.take().unwrap_or_else(|| Verification::begin(&mut self.kernel, &image));
        let deeply = |of: &ServiceAddress| part.is_some_and(|part| part.contains(of));
        let found = match verification.and_then(|it| it.finish(&mut image, &mut self.kernel, deeply)) {
            Ok(found) => found,
            Err(SummaryError::Unread(error)) => return Err(error),
            Err(error) => {
                debug!("{}: everything is read", one_line(&error));
                return self.read_everything(trigger, dirty);
            }
        };
        // Mostly a lease was renewed, and no address has changed.
        dirty.merge(self.update_node_addresses(&image));
        self.verify_adopted(&mut image, trigger, dirty)?;
        // After a verification a comparison of everything can find only a fault in what is kept here, which
        // would last for ever otherwise.
        let drift = if is_first {
            let mut drift = self.differing(&mut image);
            drift.virtual_servers.extend(found.virtual_servers);
            drift
        } else {
            differing_in(found, &self.state, &image, &self.ownership)
        };
        Ok(Reading { image, full: true, drift })
    }

    /// Reads again what the kernel reported.
    fn refresh(
        &mut self,
        mut image: Observed,
        mut reported: Drift,
        trigger: Trigger,
        dirty: &mut Dirty,
    ) -> Result<Reading, ReadError> {
        if reported.tables {
            image.refresh_tables(&mut self.kernel)?;
        }
        // Whether a tunnel may go depends on what has come out of it by now.
        reported.links |= !dirty.tunnels.is_empty();
        if reported.links {
            image.refresh_links(&mut self.kernel)?;
            dirty.merge(self.update_node_addresses(&image));
        }
        self.verify_adopted(&mut image, trigger, dirty)?;
        let drift = differing_in(reported, &self.state, &image, &self.ownership);
        Ok(Reading { image, full: false, drift })
    }

    /// All keys that are not as desired. Virtual servers that are share the desired state's copy from now on.
    fn differing(&self, image: &mut Observed) -> Dirty {
        image.virtual_servers.share(self.state.virtual_servers());
        differing(&self.state, image, &self.ownership)
    }

    /// Reads some of the virtual servers that the start has adopted, fewer beside other work. They count as changed, so
    /// that what the start has missed does not look like a change of another program.
    fn verify_adopted(
        &mut self,
        image: &mut Observed,
        trigger: Trigger,
        dirty: &mut Dirty,
    ) -> Result<(), ReadError> {
        let begin = Instant::now();
        let has_time = trigger == Trigger::Continue && dirty.is_empty();
        let most = if has_time { VERIFIED_FOR } else { VERIFIED_BESIDE };
        while let Some(of) = self.adopted.pop() {
            image.refresh_real_servers(&mut self.kernel, of)?;
            dirty.virtual_servers.insert(of);
            if begin.elapsed() >= most {
                break;
            }
        }
        Ok(())
    }

    fn read_everything(&mut self, trigger: Trigger, dirty: &mut Dirty) -> Result<Reading, ReadError> {
        self.adopted.clear();
        self.verification = None;
        let mut image = self.read_anew(trigger == Trigger::Start, dirty)?;
        if !mem::replace(&mut self.has_adopted_tunnels, true) {
            dirty.merge(self.state.apply(Change::TunnelledBefore(image.virtual_servers.tunnels())));
        }
        let drift = self.differing(&mut image);
        Ok(Reading { image, full: true, drift })
    }

    /// Reads everything, real servers as text if that is enough.
    pub(super) fn read_anew(&mut self, as_text: bool, dirty: &mut Dirty) -> Result<Observed, ReadError> {
        let adopted = if as_text { self.adopt()? } else { None };
        let is_summary = adopted.is_some();
        let mut image = adopted.map_or_else(|| Observed::read(&mut self.kernel), Ok)?;
        // The virtual servers of NodePorts, and which of their real servers leave, are known only with the
        // node's addresses.
        dirty.merge(self.update_node_addresses(&image));
        if is_summary {
            let all: Vec<_> = image.virtual_servers.keys().copied().collect();
            for address in &all {
                if self.lacks_in_summary(&image, address) {
                    image.refresh_real_servers(&mut self.kernel, *address)?;
                }
            }
            self.adopted = all;
        }
        Ok(image)
    }

    /// Reads a summary of the kernel; `None` if that is not possible.
    fn adopt(&mut self) -> Result<Option<Observed>, ReadError> {
        match Observed::adopt(&mut self.kernel) {
            Ok(image) => Ok(Some(image)),
            Err(SummaryError::Unread(error)) => Err(error),
            Err(error) => {
                debug!("{}: everything is read by netlink", one_line(&error));
                Ok(None)
            }
        }
    }

    /// Whether a virtual server wants thresholds or has kinds of tunnels: a summary shows neither.
    fn lacks_in_summary(&self, image: &Observed, address: &ServiceAddress) -> bool {
        let has_more = |real: &RealServer| real.upper_threshold != 0 || real.tunnel != Tunnel::default();
        let wanted = self.state.virtual_server(address);
        wanted.is_some_and(|it| it.real_servers.iter().any(has_more))
            || image.virtual_servers.get(address).is_some_and(VirtualServerImage::has_tunnels)
    }

    /// Updates which addresses the node has, which it lost a moment ago, how large packets may be, which
    /// tunnels are in use and which gateways there are, in the desired state. The same as before touches
    /// nothing.
    fn update_node_addresses(&mut self, image: &Observed) -> Dirty {
        let now = Instant::now();
        let links = &image.dummy_interface;
        let new = self.lost_addresses.update(&links.node_addresses, now);
        self.rerouted.record_local_addresses(new);
        self.tunnels_in_use.update(&links.tunnels, now);
        let changes = [self.lost_addresses.to_change(), self.tunnels_in_use.to_change(now)]
            .into_iter()
            .chain(links.link_mtu.map(Change::LinkMtu))
            .chain([Change::Gateways(links.gateways.clone())]);
        let mut dirty = Dirty::default();
        changes.for_each(|change| dirty.merge(self.state.apply(change)));
        dirty
    }
}

/// How many periodic syncs it takes until each virtual server was verified in every detail: an hour, with the
/// default period of 30 seconds.
///
/// Only this finds changed scheduler flags, persistence engines, thresholds, kinds of tunnels, one-packet
/// scheduling for IPv6, and a real server that is bypassed and not masqueraded: these are changed only on
/// purpose, and an operator can ask for a comparison of everything (`kube-ipvs diff`, `kube-ipvs resync`).
/// One part costs little beside the rest of the sync; all at once would block the writer.
const PARTS: u64 = 120;

/// How long one sync verifies adopted virtual servers: a change can wait for that. A thousand take 30 ms with five
/// real servers each (docs/evidence/performance.md), and 0.8 s with fifty.
const VERIFIED_FOR: Duration = Duration::from_millis(30);

/// How long a sync that has more to do verifies them, so that changes that never pause do not put it off.
const VERIFIED_BESIDE: Duration = Duration::from_millis(5);

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
