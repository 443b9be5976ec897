//! The first half of a sync: read what must be read.

use std::{hash::BuildHasher as _, mem, time::Instant};

use ipvs::{RealServer, ServiceAddress, Tunnel};
use rustc_hash::FxBuildHasher;
use service::{Change, Dirty, one_line};
use tracing::debug;
use watcher::{
    AdoptError, Observed, ReadError, VerifyError, VirtualServerImage, differing, differing_links,
    differing_tables,
};

use super::Reconciler;
use crate::Trigger;

/// The parts of the kernel that must be read again because the kernel reported a change.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reread {
    /// Devices and VIPs.
    pub(super) links: bool,
    /// Our tables.
    pub(super) tables: bool,
    /// The node's own addresses.
    pub(super) node_addresses: bool,
}

/// The image of the kernel that a sync works with, and how it was read.
pub(super) struct Reading {
    pub(super) image: Observed,
    /// Whether the whole kernel was checked, by reading it or by comparing it with the image.
    pub(super) full: bool,
    /// Whether everything was compared with the desired state.
    pub(super) everything: bool,
    /// What differs from the image, or from the desired state without a known reason.
    pub(super) drift: Dirty,
}

impl Reconciler {
    /// Reads everything, compares everything with the image, or updates the image where the kernel reported a change. The
    /// node's addresses are an input of the desired state; the keys that they change are added to `dirty`.
    pub(super) fn read(
        &mut self,
        image: Option<Observed>,
        trigger: Trigger,
        reread: Reread,
        dirty: &mut Dirty,
    ) -> Result<Reading, ReadError> {
        let Some(image) = image else { return self.read_everything(trigger, dirty) };
        if trigger == Trigger::Period {
            self.verify(image, trigger, dirty)
        } else {
            self.refresh(image, reread, dirty)
        }
    }

    /// Compares the whole kernel with the image.
    fn verify(
        &mut self,
        mut image: Observed,
        trigger: Trigger,
        dirty: &mut Dirty,
    ) -> Result<Reading, ReadError> {
        let deep_verify = self.deep_verify.next_part();
        let found = match image.verify(&mut self.kernel, |of| deep_verify.contains(of)) {
            Ok(found) => found,
            Err(VerifyError::Unread(error)) => return Err(error),
            Err(error) => {
                debug!("{}: everything is read", one_line(&error));
                return self.read_everything(trigger, dirty);
            }
        };
        // Mostly a lease was renewed, and no address has changed.
        dirty.merge(self.update_node_addresses(&image));
        self.verify_adopted(&mut image, dirty)?;
        // After a verification a comparison of everything can find only a fault in what is kept here, which would
        // last for ever otherwise.
        let everything = self.deep_verify.is_first();
        let mut drift = if everything {
            differing(&self.state, &image, &self.ownership)
        } else {
            self.differing(&image, found.links, found.tables)
        };
        drift.virtual_servers.extend(found.virtual_servers);
        Ok(Reading { image, full: true, everything, drift })
    }

    /// Reads again what the kernel reported.
    fn refresh(
        &mut self,
        mut image: Observed,
        reread: Reread,
        dirty: &mut Dirty,
    ) -> Result<Reading, ReadError> {
        if reread.tables {
            image.refresh_tables(&mut self.kernel)?;
        }
        // Whether a tunnel may go depends on what has come out of it by now.
        let links = reread.links || !dirty.tunnels.is_empty();
        if links {
            image.refresh_links(&mut self.kernel)?;
        } else if reread.node_addresses {
            image.refresh_node_addresses(&mut self.kernel)?;
        }
        if links || reread.node_addresses {
            dirty.merge(self.update_node_addresses(&image));
        }
        self.verify_adopted(&mut image, dirty)?;
        let drift = self.differing(&image, links, reread.tables);
        Ok(Reading { image, full: false, everything: false, drift })
    }

    /// What is not as desired in these parts.
    fn differing(&self, image: &Observed, links: bool, tables: bool) -> Dirty {
        let mut drift = Dirty::default();
        if links {
            drift.merge(differing_links(&self.state, image, &self.ownership));
        }
        if tables {
            drift.merge(differing_tables(&self.state, image, &self.ownership));
        }
        drift
    }

    /// Reads some of the virtual servers that the start has adopted. They count as changed, so that what the start has missed
    /// does not look like a change of another program.
    fn verify_adopted(&mut self, image: &mut Observed, dirty: &mut Dirty) -> Result<(), ReadError> {
        for of in self.adopted.take_some() {
            image.refresh_real_servers(&mut self.kernel, of)?;
            dirty.virtual_servers.insert(of);
        }
        Ok(())
    }

    fn read_everything(&mut self, trigger: Trigger, dirty: &mut Dirty) -> Result<Reading, ReadError> {
        self.adopted = Adopted::default();
        let image = self.read_anew(trigger == Trigger::Start, dirty)?;
        if !mem::replace(&mut self.has_adopted_tunnels, true) {
            dirty.merge(self.state.apply(Change::TunnelledBefore(image.virtual_servers.tunnels())));
        }
        let drift = differing(&self.state, &image, &self.ownership);
        Ok(Reading { image, full: true, everything: true, drift })
    }

    /// Reads everything, real servers as text if that will do.
    pub(super) fn read_anew(&mut self, as_text: bool, dirty: &mut Dirty) -> Result<Observed, ReadError> {
        let adopted = if as_text { self.adopt()? } else { None };
        let is_summary = adopted.is_some();
        let mut image = adopted.map_or_else(|| Observed::read(&mut self.kernel), Ok)?;
        // The virtual servers of NodePorts, and which of their real servers leave, are known only with the node's
        // addresses.
        dirty.merge(self.update_node_addresses(&image));
        if is_summary {
            let all: Vec<_> = image.virtual_servers.keys().copied().collect();
            self.read_what_a_summary_lacks(&mut image, all.iter().copied())?;
            self.adopted = Adopted::new(all);
        }
        Ok(image)
    }

    /// Reads a summary of the kernel; `None` if that is not possible.
    fn adopt(&mut self) -> Result<Option<Observed>, ReadError> {
        match Observed::adopt(&mut self.kernel) {
            Ok(image) => Ok(Some(image)),
            Err(AdoptError::Unread(error)) => Err(error),
            Err(error @ AdoptError::NoSummary(_)) => {
                debug!("{}: everything is read by netlink", one_line(&error));
                Ok(None)
            }
        }
    }

    /// Reads the real servers of those virtual servers again that want thresholds or have kinds of tunnels: a summary shows
    /// neither.
    fn read_what_a_summary_lacks(
        &mut self,
        image: &mut Observed,
        of: impl IntoIterator<Item = ServiceAddress>,
    ) -> Result<(), ReadError> {
        for address in of {
            let wanted = self.state.virtual_server(&address);
            let has_more = |real: &RealServer| real.upper_threshold != 0 || real.tunnel != Tunnel::default();
            let is_more = wanted.is_some_and(|it| it.real_servers.iter().any(has_more));
            let has_tunnels =
                image.virtual_servers.get(&address).is_some_and(VirtualServerImage::has_tunnels);
            if is_more || has_tunnels {
                image.refresh_real_servers(&mut self.kernel, address)?;
            }
        }
        Ok(())
    }

    /// Updates which addresses the node has, which it lost a moment ago, how large packets may be, which tunnels are in
    /// use and which gateways there are, in the desired state. The same as before touches nothing.
    pub(super) fn update_node_addresses(&mut self, image: &Observed) -> Dirty {
        let now = Instant::now();
        let new = self.lost_addresses.update(&image.dummy_interface.node_addresses, now);
        self.rerouted.record_local_addresses(new);
        let mut dirty = self.state.apply(self.lost_addresses.to_change());
        self.tunnels_in_use.update(&image.dummy_interface.tunnels, now);
        dirty.merge(self.state.apply(self.tunnels_in_use.to_change(now)));
        if let Some(mtu) = image.dummy_interface.link_mtu {
            dirty.merge(self.state.apply(Change::LinkMtu(mtu)));
        }
        dirty.merge(self.state.apply(Change::Gateways(image.dummy_interface.gateways.clone())));
        dirty
    }
}

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
