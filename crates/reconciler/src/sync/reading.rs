//! The first half of a sync: read what must be read.

use std::{borrow::Cow, mem, time::Instant};

use ipvs::{RealServer, ServiceAddress, Tunnel};
use service::{Change, Touched, one_line};
use tracing::debug;
use watcher::{
    AdoptError, Drift, Observed, ReadError, VerifyError, VirtualServerImage, Whole, departing_real_servers,
};

use super::{Reconciler, deep_verify::Adopted};
use crate::Trigger;

/// The parts of the kernel that must be read again because the kernel reported a change.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reread {
    /// The parts that are compared as a whole then.
    pub(super) whole: Whole,
    /// Whether the node's own addresses are among them.
    pub(super) node_addresses: bool,
}

/// The image of the kernel that a sync works with, and how it was read.
pub(super) struct Snapshot {
    pub(super) image: Observed,
    /// Whether the whole kernel was checked, by reading it or by comparing it with the image.
    pub(super) full: bool,
    /// Whether everything is compared with the desired state. Otherwise only the touched keys and the drift are.
    pub(super) compare_all: bool,
    /// Where the kernel differed from the image.
    pub(super) drift: Drift,
}

impl Snapshot {
    /// Returns the keys to compare: the touched ones, and those that have drifted.
    pub(super) fn compared<'a>(&self, touched: &'a Touched) -> Cow<'a, Touched> {
        let mut compared = Cow::Borrowed(touched);
        if !self.drift.virtual_servers.is_empty() {
            compared.to_mut().virtual_servers.extend(&self.drift.virtual_servers);
        }
        compared
    }
}

impl Reconciler {
    /// Reads everything, compares everything with the image, or updates the image where the kernel reported a
    /// change. The node's addresses are an input of the desired state; the keys that they touch are added to
    /// `touched`.
    pub(super) fn read(
        &mut self,
        image: Option<Observed>,
        trigger: Trigger,
        mut reread: Reread,
        touched: &mut Touched,
    ) -> Result<Snapshot, ReadError> {
        let Some(mut image) = image else { return self.read_everything(trigger, touched) };
        // Whether a tunnel may go depends on what has come out of it by now.
        reread.whole.dummy_interface |= !touched.tunnels.is_empty();
        let full = trigger == Trigger::Period;
        let drift = if full {
            let deep_verify = self.deep_verify.next_part();
            match image.verify(&mut self.kernel, |of| deep_verify.contains(of)) {
                Ok(drift) => drift,
                Err(VerifyError::Unread(error)) => return Err(error),
                Err(error) => {
                    debug!("{}: everything is read", one_line(&error));
                    return self.read_everything(trigger, touched);
                }
            }
        } else {
            if reread.whole.tables {
                image.refresh_tables(&mut self.kernel)?;
            }
            if reread.whole.dummy_interface {
                image.refresh_links(&mut self.kernel)?;
            } else if reread.node_addresses {
                image.refresh_node_addresses(&mut self.kernel)?;
            }
            Drift { whole: reread.whole, ..Drift::default() }
        };
        if full || reread.whole.dummy_interface || reread.node_addresses {
            // Mostly a lease was renewed, and no address has changed.
            touched.merge(self.update_node_addresses(&image));
        }
        self.count_connections(&mut image, touched.virtual_servers.iter().copied())?;
        // Touched, so that what the start has missed does not count as a change of another program.
        for of in self.adopted.take_some() {
            image.refresh_real_servers(&mut self.kernel, of)?;
            touched.virtual_servers.insert(of);
        }
        // After a verification a comparison of everything can find only a fault in what is kept here, which would
        // last for ever otherwise.
        Ok(Snapshot { image, full, compare_all: full && self.deep_verify.is_first(), drift })
    }

    fn read_everything(&mut self, trigger: Trigger, touched: &mut Touched) -> Result<Snapshot, ReadError> {
        self.adopted = Adopted::default();
        let image = self.read_anew(trigger == Trigger::Start, touched)?;
        if !mem::replace(&mut self.has_adopted_tunnels, true) {
            touched.merge(self.state.apply(Change::TunnelledBefore(image.virtual_servers.tunnels())));
        }
        Ok(Snapshot { image, full: true, compare_all: true, drift: Drift::default() })
    }

    /// Reads everything, real servers as text if that will do.
    pub(super) fn read_anew(&mut self, as_text: bool, touched: &mut Touched) -> Result<Observed, ReadError> {
        let adopted = if as_text { self.adopt()? } else { None };
        let is_summary = adopted.is_some();
        let mut image = adopted.map_or_else(|| Observed::read(&mut self.kernel), Ok)?;
        // The virtual servers of NodePorts, and which of their real servers leave, are known only with the node's
        // addresses.
        touched.merge(self.update_node_addresses(&image));
        if is_summary {
            let all: Vec<_> = image.virtual_servers.keys().copied().collect();
            self.count_connections(&mut image, all.iter().copied())?;
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

    /// Reads the real servers of those virtual servers again of which one leaves: only the kernel knows whether it has
    /// connections.
    fn count_connections(
        &mut self,
        image: &mut Observed,
        of: impl IntoIterator<Item = ServiceAddress>,
    ) -> Result<(), ReadError> {
        for address in of {
            if departing_real_servers(&self.state, image, &address).next().is_some() {
                image.refresh_real_servers(&mut self.kernel, address)?;
            }
        }
        Ok(())
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
    pub(super) fn update_node_addresses(&mut self, image: &Observed) -> Touched {
        let now = Instant::now();
        let new = self.lost_addresses.update(&image.dummy_interface.node_addresses, now);
        self.rerouted.record_local_addresses(new);
        let mut touched = self.state.apply(self.lost_addresses.to_change());
        self.tunnels_in_use.update(&image.dummy_interface.tunnels, now);
        touched.merge(self.state.apply(self.tunnels_in_use.to_change(now)));
        if let Some(mtu) = image.dummy_interface.link_mtu {
            touched.merge(self.state.apply(Change::LinkMtu(mtu)));
        }
        touched.merge(self.state.apply(Change::Gateways(image.dummy_interface.gateways.clone())));
        touched
    }
}
