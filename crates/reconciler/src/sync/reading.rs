//! The first half of a sync: reading what must be read.

use std::{borrow::Cow, time::Instant};

use ipvs::ServiceAddress;
use service::{Touched, one_line};
use tracing::debug;
use watcher::{AdoptError, Drift, Observed, ReadError, VerifyError, Whole, departing_real_servers};

use super::Reconciler;
use crate::Trigger;

/// The parts of the kernel that the kernel has told of, so that they are to be read again.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reread {
    /// The parts that are compared as a whole then.
    pub(super) whole: Whole,
    /// Whether the node's own addresses are among them.
    pub(super) node_addresses: bool,
}

/// The kernel as read for a sync.
pub(super) struct Snapshot {
    pub(super) image: Observed,
    /// Whether all of the kernel was looked at, by reading it or by comparing it with the image.
    pub(super) full: bool,
    /// Whether everything is to be compared with the desired state. Otherwise it is what is touched, and the
    /// drift.
    pub(super) everything: bool,
    /// Where the kernel was not as in the image.
    pub(super) drift: Drift,
}

impl Snapshot {
    /// Returns the keys that are to be compared: the touched ones, and those that have drifted.
    pub(super) fn compared<'a>(&self, touched: &'a Touched) -> Cow<'a, Touched> {
        let mut compared = Cow::Borrowed(touched);
        if !self.drift.virtual_servers.is_empty() {
            compared.to_mut().virtual_servers.extend(&self.drift.virtual_servers);
        }
        compared
    }
}

impl Reconciler {
    /// Reads everything, compares everything with the image, or brings the image up to date where the kernel
    /// has told of something. The node's addresses are news to the desired state; the keys that they touch
    /// are added to `touched`.
    pub(super) fn read(
        &mut self,
        image: Option<Observed>,
        trigger: Trigger,
        reread: Reread,
        touched: &mut Touched,
    ) -> Result<Snapshot, ReadError> {
        let Some(mut image) = image else { return self.read_everything(trigger, touched) };
        let full = trigger == Trigger::Period;
        let drift = if full {
            let sample = self.sample.next();
            match image.verify(&mut self.kernel, |of| sample.contains(of)) {
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
            // Mostly a lease was renewed, and nothing has changed at all.
            touched.merge(self.hear_node_addresses(&image));
        }
        self.count_connections(&mut image, touched.virtual_servers.iter().copied())?;
        // After a verification a comparison of everything can find nothing but a fault in what is kept here,
        // which would stay for ever otherwise.
        Ok(Snapshot { image, full, everything: full && self.sample.begins_anew(), drift })
    }

    fn read_everything(&mut self, trigger: Trigger, touched: &mut Touched) -> Result<Snapshot, ReadError> {
        let adopted = if trigger == Trigger::Start { self.adopt()? } else { None };
        let in_short = adopted.is_some();
        let mut image = adopted.map_or_else(|| Observed::read(&mut self.kernel), Ok)?;
        // What NodePorts want is known only with the node's addresses, and so is which of their real servers
        // leave.
        touched.merge(self.hear_node_addresses(&image));
        if in_short {
            let all: Vec<_> = image.virtual_servers.keys().copied().collect();
            self.count_connections(&mut image, all.iter().copied())?;
            self.read_thresholds(&mut image, all)?;
        }
        Ok(Snapshot { image, full: true, everything: true, drift: Drift::default() })
    }

    /// Reads the kernel for the first time, in short; `None` if that is not possible.
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

    /// Reads the real servers of these virtual servers again, where one leaves: only the kernel knows whether
    /// that has connections.
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

    /// Reads the real servers of these virtual servers again, where thresholds are wanted: a reading in short
    /// does not show them.
    fn read_thresholds(
        &mut self,
        image: &mut Observed,
        of: impl IntoIterator<Item = ServiceAddress>,
    ) -> Result<(), ReadError> {
        for address in of {
            let wanted = self.state.virtual_server(&address);
            if wanted.is_some_and(|it| it.real_servers.iter().any(|real| real.upper_threshold != 0)) {
                image.refresh_real_servers(&mut self.kernel, address)?;
            }
        }
        Ok(())
    }

    /// Tells the desired state which addresses the node has, and which it had a moment ago. The same addresses as
    /// before touch nothing.
    pub(super) fn hear_node_addresses(&mut self, image: &Observed) -> Touched {
        let came = self.lost_addresses.seen(&image.dummy_interface.node_addresses, Instant::now());
        self.rerouted.came(came);
        self.state.apply(self.lost_addresses.news())
    }
}
