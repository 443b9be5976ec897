//! Whether the kernel is still as in its image.

use std::{collections::BTreeSet, io};

use ipvs::{Forwarding, ObservedVirtualServer, ServiceAddress, proc_net::VirtualServerSummary};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{Kernel, Observed, ReadError, VirtualServerImage, Whole, observed::real_servers};

/// Where the kernel was not as in its image. The image has been brought up to date.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drift {
    /// Virtual servers that were changed, added or removed, and those of the sample: all that were read by
    /// netlink.
    pub virtual_servers: BTreeSet<ServiceAddress>,
    /// Whether kube-ipvs0 and our tables were not as in the image.
    pub whole: Whole,
}

/// Why the kernel could not be compared with its image.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// The kernel does not show its virtual servers in short, or not in a form that is understood.
    #[error("cannot read IPVS in short")]
    NoSummary(#[source] io::Error),
    /// So much is different from the image that one reading of everything costs less.
    #[error("most virtual servers are not as they were, or not shown in short")]
    AllDifferent,
    /// The kernel could not be read.
    #[error(transparent)]
    Unread(#[from] ReadError),
}

/// Up to this many virtual servers are read one by one in no time.
const FEW: usize = 100;

impl Observed {
    /// Looks at the whole kernel, and brings the image up to date where it is not as the kernel is.
    ///
    /// Most of the time nothing has changed. So virtual and real servers are read in short, and compared as
    /// they come in ([`ipvs::proc_net`]). Virtual servers of which anything is different are read again by
    /// netlink, which is the truth. So are those of the `sample`, for the sake of what a reading in short
    /// does not show.
    ///
    /// On `Err` the image may be wrong.
    pub fn verify(
        &mut self,
        kernel: &mut Kernel,
        sample: impl Fn(&ServiceAddress) -> bool,
    ) -> Result<Drift, VerifyError> {
        let mut comparison =
            Comparison { image: &self.virtual_servers, same: FxHashSet::default(), other: BTreeSet::new() };
        kernel.ipvs.for_each_summary(&mut |shown| comparison.take(shown)).map_err(VerifyError::NoSummary)?;
        let virtual_servers = comparison.finish(sample);
        if virtual_servers.len() > FEW && virtual_servers.len() > self.virtual_servers.len() / 4 {
            return Err(VerifyError::AllDifferent);
        }
        for address in &virtual_servers {
            self.refresh_virtual_server(kernel, *address)?;
        }

        let dummy_interface = kernel.dummy_interface.observe().map_err(ReadError::from)?;
        let netfilter = kernel.netfilter.observe().map_err(ReadError::from)?;
        let whole = Whole {
            dummy_interface: dummy_interface != self.dummy_interface,
            tables: netfilter != self.netfilter,
        };
        (self.dummy_interface, self.netfilter) = (dummy_interface, netfilter);
        Ok(Drift { virtual_servers, whole })
    }

    /// Reads one virtual server again, with its real servers.
    fn refresh_virtual_server(
        &mut self,
        kernel: &mut Kernel,
        address: ServiceAddress,
    ) -> Result<(), ReadError> {
        match kernel.ipvs.virtual_server(address.into())? {
            Some(ObservedVirtualServer { config, .. }) => {
                let real_servers = real_servers(kernel, address)?;
                self.virtual_servers.insert(address, VirtualServerImage { config, real_servers });
            }
            None => _ = self.virtual_servers.remove(&address),
        }
        Ok(())
    }
}

/// Compares the image of the virtual servers with what comes in, in whatever order.
///
/// The kernel can repeat or omit something while somebody changes the table, and while it moves the table to
/// a larger one. Kernels that keep the virtual servers of all network namespaces in one table can do so
/// wherever other namespaces have virtual servers too (docs/kernel.md).
struct Comparison<'a> {
    image: &'a FxHashMap<ServiceAddress, VirtualServerImage>,
    /// The virtual servers that were shown as they are in the image.
    same: FxHashSet<ServiceAddress>,
    /// The virtual servers that were shown differently, or are not in the image.
    other: BTreeSet<ServiceAddress>,
}

impl Comparison<'_> {
    fn take(&mut self, shown: &VirtualServerSummary) {
        let image = self.image.get(&shown.address);
        if image.is_some_and(|image| is_as_shown(image, shown)) {
            self.same.insert(shown.address);
        } else {
            self.other.insert(shown.address);
        }
    }

    /// Returns the virtual servers that may be different, and those of the sample.
    fn finish(self, sample: impl Fn(&ServiceAddress) -> bool) -> BTreeSet<ServiceAddress> {
        let mut these = self.other;
        these.extend(self.image.keys().filter(|of| sample(of) || !self.same.contains(of)));
        these
    }
}

/// Whether a virtual server is shown as it is in the image. Both have their real servers in the order of the
/// addresses. What the kernel classifies as local it was told to masquerade.
fn is_as_shown(image: &VirtualServerImage, shown: &VirtualServerSummary) -> bool {
    let forwarding = |shown| if shown == Forwarding::Local { Forwarding::Masquerade } else { shown };
    shown.matches(&image.config)
        && image.real_servers.len() == shown.real_servers.len()
        && image.real_servers.iter().zip(&shown.real_servers).all(|(image, shown)| {
            let image = &image.config;
            image.address == shown.address
                && image.weight == shown.weight
                && forwarding(image.forwarding) == forwarding(shown.forwarding)
        })
}
