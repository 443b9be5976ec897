//! Comparing the kernel with its image.

use std::{collections::BTreeSet, io};

use ipvs::{Forwarding, ObservedVirtualServer, ServiceAddress, proc_net::VirtualServerSummary};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{Kernel, Observed, ReadError, VirtualServerImage, observed::real_servers};

/// Where the kernel differed from its image. The image has been brought up to date.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drift {
    /// Virtual servers that were changed, added or removed, and those that were verified deeply: all that were
    /// read by netlink.
    pub virtual_servers: BTreeSet<ServiceAddress>,
    /// Whether kube-ipvs0, its addresses, or what is known of other interfaces were not as in the image.
    pub links: bool,
    /// Whether our tables were not as in the image.
    pub tables: bool,
}

/// Why the kernel could not be compared with its image.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// `/proc/net/ip_vs` does not exist, or cannot be parsed.
    #[error("cannot read /proc/net/ip_vs")]
    NoSummary(#[source] io::Error),
    /// So many virtual servers differ that reading everything costs less.
    #[error("most virtual servers differ from the image, or are not in /proc/net/ip_vs")]
    AllDifferent,
    /// The kernel could not be read.
    #[error(transparent)]
    Unread(#[from] ReadError),
}

/// Up to this many virtual servers are always read one by one, which takes no time.
const FEW: usize = 100;

impl Observed {
    /// Compares the whole kernel with the image, and brings the image up to date.
    ///
    /// Most of the time nothing has changed. So the summaries of `/proc/net/ip_vs` are compared as they come in
    /// ([`ipvs::proc_net`]). Virtual servers that differ are read again by netlink, which is authoritative. So are
    /// those that are verified `deeply`, because a summary does not show everything.
    ///
    /// After an `Err` the image may be wrong.
    pub fn verify(
        &mut self,
        kernel: &mut Kernel,
        deeply: impl Fn(&ServiceAddress) -> bool,
    ) -> Result<Drift, VerifyError> {
        let mut comparison = Comparison {
            image: &self.virtual_servers,
            same: FxHashSet::default(),
            different: BTreeSet::new(),
        };
        kernel
            .ipvs
            .for_each_summary(&mut |shown| comparison.compare(shown))
            .map_err(VerifyError::NoSummary)?;
        let virtual_servers = comparison.finish(deeply);
        if virtual_servers.len() > FEW && virtual_servers.len() > self.virtual_servers.len() / 4 {
            return Err(VerifyError::AllDifferent);
        }
        for address in &virtual_servers {
            self.refresh_virtual_server(kernel, *address)?;
        }

        let dummy_interface = kernel.dummy_interface.observe().map_err(ReadError::from)?;
        let netfilter = kernel.netfilter.observe().map_err(ReadError::from)?;
        let (links, tables) = (dummy_interface != self.dummy_interface, netfilter != self.netfilter);
        (self.dummy_interface, self.netfilter) = (dummy_interface, netfilter);
        Ok(Drift { virtual_servers, links, tables })
    }

    /// Reads one virtual server again, with its real servers.
    fn refresh_virtual_server(
        &mut self,
        kernel: &mut Kernel,
        address: ServiceAddress,
    ) -> Result<(), ReadError> {
        match kernel.ipvs.virtual_server(address.into())? {
            Some(ObservedVirtualServer { config, .. }) => {
                let real_servers = real_servers(&mut *kernel.ipvs, address)?;
                self.virtual_servers.insert(address, VirtualServerImage::new(config, real_servers));
            }
            None => self.virtual_servers.remove(&address),
        }
        Ok(())
    }
}

/// Compares the image of the virtual servers with summaries, in any order.
///
/// The kernel can repeat or omit something while somebody changes the table, and while it moves the table to
/// a larger one. Kernels that keep the virtual servers of all network namespaces in one table can do so
/// wherever other namespaces have virtual servers too (docs/kernel.md).
struct Comparison<'a> {
    image: &'a FxHashMap<ServiceAddress, VirtualServerImage>,
    /// The virtual servers whose summary agrees with the image.
    same: FxHashSet<ServiceAddress>,
    /// The virtual servers whose summary differs, or that are not in the image.
    different: BTreeSet<ServiceAddress>,
}

impl Comparison<'_> {
    fn compare(&mut self, shown: &VirtualServerSummary) {
        let image = self.image.get(&shown.address);
        if image.is_some_and(|image| matches_summary(image, shown)) {
            self.same.insert(shown.address);
        } else {
            self.different.insert(shown.address);
        }
    }

    /// Returns the virtual servers that may differ, and those that are verified deeply.
    fn finish(self, deeply: impl Fn(&ServiceAddress) -> bool) -> BTreeSet<ServiceAddress> {
        let mut these = self.different;
        these.extend(self.image.keys().filter(|of| deeply(of) || !self.same.contains(of)));
        these
    }
}

/// Whether a virtual server agrees with its summary. Both have their real servers in the order of the
/// addresses. A real server that the kernel classifies as local was added as a masqueraded one.
fn matches_summary(image: &VirtualServerImage, shown: &VirtualServerSummary) -> bool {
    let forwarding = |shown| if shown == Forwarding::Local { Forwarding::Masquerade } else { shown };
    shown.matches(&image.config())
        && image.real_servers().len() == shown.real_servers.len()
        && image.real_servers().zip(&shown.real_servers).all(|(image, shown)| {
            let image = &image.config;
            image.address == shown.address
                && image.weight == shown.weight
                && forwarding(image.forwarding) == forwarding(shown.forwarding)
        })
}
