//! Reading the kernel: all of it, parts of it, and where it differs from its image.

use std::{collections::BTreeSet, fmt, io};

use dummy_interface::DummyInterface;
use ipvs::{
    Forwarding, Ipvs, ObservedVirtualServer, RealServer, ServiceAddress, VirtualServerId,
    proc_net::{RealServerSummary, VirtualServerSummary},
};
use netfilter::Netfilter;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{Observed, RealServerImage, RealServerImages, VirtualServerImage, VirtualServerImages};

/// The kernel of one network namespace: the real one, or a fake that can fail at any call.
pub struct Kernel {
    /// The connection to IPVS: virtual and real servers.
    pub ipvs: Box<dyn Ipvs + Send>,
    /// The connection to our nf_tables tables.
    pub netfilter: Box<dyn Netfilter + Send>,
    /// The connection to kube-ipvs0, the VIPs on it, and the node's own addresses.
    pub dummy_interface: Box<dyn DummyInterface + Send>,
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel").finish_non_exhaustive()
    }
}

/// The part of the kernel that could not be read, and why.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// Virtual or real servers.
    #[error("cannot read IPVS")]
    Ipvs(#[from] ipvs::Error),
    /// Our nf_tables tables.
    #[error("cannot read nf_tables")]
    Netfilter(#[from] netfilter::Error),
    /// kube-ipvs0.
    #[error("cannot read kube-ipvs0")]
    DummyInterface(#[from] dummy_interface::Error),
}

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

/// Why the kernel could not be read by its own text, or compared with its image.
#[derive(Debug, thiserror::Error)]
pub enum SummaryError {
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
    /// Reads everything.
    pub fn read(kernel: &mut Kernel) -> Result<Self, ReadError> {
        Self::read_beside(kernel, FxHashMap::default())
    }

    /// Reads the virtual servers alone, with their real servers.
    pub fn virtual_servers(ipvs: &mut dyn Ipvs) -> Result<VirtualServerImages, ReadError> {
        Ok(virtual_servers(ipvs, FxHashMap::default())?)
    }

    /// Reads everything but the real servers that are known already.
    fn read_beside(
        kernel: &mut Kernel,
        known: FxHashMap<ServiceAddress, RealServerImages>,
    ) -> Result<Self, ReadError> {
        Ok(Self {
            virtual_servers: virtual_servers(&mut *kernel.ipvs, known)?,
            dummy_interface: kernel.dummy_interface.observe()?,
            netfilter: kernel.netfilter.observe()?,
        })
    }

    /// Reads kube-ipvs0 and the node's addresses again.
    pub fn refresh_links(&mut self, kernel: &mut Kernel) -> Result<(), ReadError> {
        self.dummy_interface = kernel.dummy_interface.observe()?;
        Ok(())
    }

    /// Reads our tables again.
    pub fn refresh_tables(&mut self, kernel: &mut Kernel) -> Result<(), ReadError> {
        self.netfilter = kernel.netfilter.observe()?;
        Ok(())
    }

    /// Reads the real servers of one virtual server again, for their connection counts.
    pub fn refresh_real_servers(&mut self, kernel: &mut Kernel, of: ServiceAddress) -> Result<(), ReadError> {
        if self.virtual_servers.contains_key(&of) {
            let read = real_servers(&mut *kernel.ipvs, of)?;
            self.virtual_servers.change_real_servers(&of, |servers| *servers = read);
        }
        Ok(())
    }

    /// Reads everything, but the real servers from `/proc/net/ip_vs`: a start over the state of an earlier
    /// daemon must not take long.
    ///
    /// The connections of real servers are not read, so departing ones have to be read again
    /// ([`refresh_real_servers`](Self::refresh_real_servers)). Nor are thresholds read, and a bypassed real
    /// server is taken for a masqueraded one, until the virtual server is read by netlink.
    pub fn adopt(kernel: &mut Kernel) -> Result<Self, SummaryError> {
        let mut shown = FxHashMap::default();
        let read = kernel.ipvs.for_each_summary(&mut |server| {
            shown.extend(from_summary(server).map(|real_servers| (server.address, real_servers)));
        });
        read.map_err(SummaryError::NoSummary)?;
        // The virtual servers themselves cost one dump. The text may have omitted some.
        Ok(Self::read_beside(kernel, shown)?)
    }

    /// Compares the whole kernel with the image, and brings the image up to date.
    ///
    /// Most of the time nothing has changed. So the summaries of `/proc/net/ip_vs` are compared as they come
    /// in ([`ipvs::proc_net`]). Virtual servers that differ are read again by netlink, which is
    /// authoritative. So are those that are verified `deeply`, because a summary does not show everything.
    ///
    /// After an `Err` the image may be wrong.
    pub fn verify(
        &mut self,
        kernel: &mut Kernel,
        deeply: impl Fn(&ServiceAddress) -> bool,
    ) -> Result<Drift, SummaryError> {
        // Those of which a summary agrees with the image, and those of which one differs, or that the image lacks: the
        // kernel can repeat or omit something while the table changes, and while it moves the table to a larger one.
        // Kernels that keep the virtual servers of all network namespaces in one table can do so wherever other
        // namespaces have virtual servers too (docs/evidence/kernel.md).
        let (mut same, mut virtual_servers) = (FxHashSet::default(), BTreeSet::new());
        let summaries = kernel.ipvs.for_each_summary(&mut |shown| {
            let image = self.virtual_servers.get(&shown.address);
            if image.is_some_and(|image| matches_summary(image, shown)) {
                same.insert(shown.address);
            } else {
                virtual_servers.insert(shown.address);
            }
        });
        summaries.map_err(SummaryError::NoSummary)?;
        virtual_servers.extend(self.virtual_servers.keys().filter(|of| deeply(of) || !same.contains(of)));
        if virtual_servers.len() > FEW && virtual_servers.len() > self.virtual_servers.len() / 4 {
            return Err(SummaryError::AllDifferent);
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

/// Reads the virtual servers, and the real servers of those of which they are not known.
fn virtual_servers(
    ipvs: &mut dyn Ipvs,
    mut known: FxHashMap<ServiceAddress, RealServerImages>,
) -> Result<VirtualServerImages, ipvs::Error> {
    let mut found = VirtualServerImages::default();
    for server in ipvs.virtual_servers()? {
        if let VirtualServerId::Address(address) = server.config.id {
            let real_servers = match known.remove(&address) {
                Some(real_servers) => real_servers,
                None => real_servers(ipvs, address)?,
            };
            found.insert(address, VirtualServerImage::new(server.config, real_servers));
        }
    }
    Ok(found)
}

/// Reads the real servers of one virtual server.
fn real_servers(ipvs: &mut dyn Ipvs, of: ServiceAddress) -> Result<RealServerImages, ipvs::Error> {
    let servers = ipvs.real_servers(of.into())?;
    Ok(servers.iter().map(RealServerImage::from).collect())
}

/// The real servers of a summary; `None` if one is a tunnel, of which a summary shows too little.
fn from_summary(server: &VirtualServerSummary) -> Option<RealServerImages> {
    let image = |shown: &RealServerSummary| {
        let config = RealServer::new(shown.address, shown.forwarding).weight(shown.weight);
        let known = shown.forwarding != Forwarding::Tunnel;
        known.then_some(config.into())
    };
    server.real_servers.iter().map(image).collect()
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
