//! Comparing the whole kernel with its image.

use std::{
    collections::BTreeSet,
    fmt,
    time::{Duration, Instant},
};

use ipvs::{Forwarding, ServiceAddress, Summaries, proc_net::VirtualServerSummary};
use rustc_hash::FxHashSet;

use crate::{Kernel, Observed, ReadError, SummaryError, VirtualServerImage, read::widen_summaries};

/// Where the kernel differed from its image, which has been brought up to date, or may differ.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drift {
    /// Virtual servers that were changed, added or removed, and those that were verified deeply: all that
    /// were read by netlink.
    pub virtual_servers: BTreeSet<ServiceAddress>,
    /// Whether kube-ipvs0, its addresses, or what is known of other interfaces were not as in the image.
    pub links: bool,
    /// Whether our tables were not as in the image.
    pub tables: bool,
}

/// Up to this many virtual servers are always read one by one, which takes no time.
const FEW: usize = 100;

/// A comparison of the whole kernel with its image.
///
/// Most of the time nothing has changed. So the summaries of `/proc/net/ip_vs` are compared as they come
/// in ([`ipvs::proc_net`]). Virtual servers that differ are read again by netlink, which is
/// authoritative. So are those that are verified deeply, because a summary does not show everything.
///
/// The kernel takes seconds to show tens of thousands of virtual servers. So this part is interruptible, and the
/// image may change meanwhile: a virtual server is compared with the image of the moment, and what the kernel has
/// omitted or repeated because of a change is read again.
pub struct Verification {
    summaries: Summaries,
    /// Those of which a summary agrees with the image.
    same: FxHashSet<ServiceAddress>,
    /// Those of which one differs, or that the image lacks: the kernel can repeat or omit something while the table
    /// changes, and while it moves the table to a larger one. Kernels that keep the virtual servers of all network
    /// namespaces in one table can do so wherever other namespaces have virtual servers too
    /// (docs/evidence/kernel.md).
    different: BTreeSet<ServiceAddress>,
    took: Duration,
}

impl fmt::Debug for Verification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verification").finish_non_exhaustive()
    }
}

impl Verification {
    /// Begins to read the summaries.
    pub fn begin(kernel: &mut Kernel, image: &Observed) -> Result<Self, SummaryError> {
        let begin = Instant::now();
        let servers = &image.virtual_servers;
        let v4 = servers.iter().find(|(at, _)| at.ip.is_ipv4()).map(|(_, server)| server.config().scheduler);
        widen_summaries(kernel, servers.len(), servers.real_server_count(), v4);
        let summaries = kernel.ipvs.summaries().map_err(SummaryError::NoSummary)?;
        let took = begin.elapsed();
        Ok(Self { summaries, same: FxHashSet::default(), different: BTreeSet::new(), took })
    }

    /// How long it has taken so far.
    pub fn took(&self) -> Duration {
        self.took
    }

    /// Compares summaries with the image, at least one, until something else waits: `is_waited_for` is called after each
    /// virtual server with the number of servers compared, itself and its real servers. Returns whether all are compared.
    pub fn proceed(
        &mut self,
        image: &Observed,
        mut is_waited_for: impl FnMut(usize) -> bool,
    ) -> Result<bool, SummaryError> {
        let begin = Instant::now();
        for shown in &mut self.summaries {
            let shown = shown.map_err(SummaryError::NoSummary)?;
            let image = image.virtual_servers.get(&shown.address);
            if image.is_some_and(|image| matches_summary(image, &shown)) {
                self.same.insert(shown.address);
            } else {
                self.different.insert(shown.address);
            }
            if is_waited_for(1 + shown.real_servers.len()) {
                self.took += begin.elapsed();
                return Ok(false);
            }
        }
        self.took += begin.elapsed();
        Ok(true)
    }

    /// Compares the rest, and brings the image up to date.
    ///
    /// After an `Err` the image may be wrong.
    pub fn finish(
        mut self,
        image: &mut Observed,
        kernel: &mut Kernel,
        deeply: impl Fn(&ServiceAddress) -> bool,
    ) -> Result<Drift, SummaryError> {
        self.proceed(image, |_| false)?;
        let Self { same, different: mut virtual_servers, .. } = self;
        virtual_servers.extend(image.virtual_servers.keys().filter(|of| deeply(of) || !same.contains(of)));
        if virtual_servers.len() > FEW && virtual_servers.len() > image.virtual_servers.len() / 4 {
            return Err(SummaryError::AllDifferent);
        }
        for address in &virtual_servers {
            image.refresh_virtual_server(kernel, *address)?;
        }

        let dummy_interface = kernel.dummy_interface.observe().map_err(ReadError::from)?;
        let links = dummy_interface != image.dummy_interface;
        image.dummy_interface = dummy_interface;
        let mut tables = kernel.netfilter.may_differ(&image.netfilter).map_err(ReadError::from)?;
        if tables {
            let netfilter = kernel.netfilter.observe().map_err(ReadError::from)?;
            tables = netfilter != image.netfilter;
            image.netfilter = netfilter;
        }
        Ok(Drift { virtual_servers, links, tables })
    }
}

/// Whether a virtual server agrees with its summary. Both have their real servers in the order of the
/// addresses. A real server that the kernel classifies as local was added as a masqueraded one.
fn matches_summary(image: &VirtualServerImage, shown: &VirtualServerSummary) -> bool {
    let forwarding = |shown| if shown == Forwarding::Local { Forwarding::Masquerade } else { shown };
    shown.matches(&image.config())
        && image.real_server_count() == shown.real_servers.len()
        && image.real_servers().zip(&shown.real_servers).all(|(image, shown)| {
            let image = &image.config;
            image.address == shown.address
                && image.weight == shown.weight
                && forwarding(image.forwarding) == forwarding(shown.forwarding)
        })
}
