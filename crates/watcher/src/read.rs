//! Reading the kernel: all of it, and parts of it.

use std::{fmt, io};

use dummy_interface::DummyInterface;
use ipvs::{
    Family, Forwarding, Ipvs, ObservedVirtualServer, RealServer, Scheduler, ServiceAddress, VirtualServerId,
    proc_net::{RealServerSummary, VirtualServerSummary},
};
use netfilter::Netfilter;
use rustc_hash::FxHashMap;

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

impl Observed {
    /// Reads everything.
    pub fn read(kernel: &mut Kernel) -> Result<Self, ReadError> {
        let servers = kernel.ipvs.virtual_servers()?;
        Self::with(kernel, servers, FxHashMap::default())
    }

    /// Reads the virtual servers alone, with their real servers.
    pub fn virtual_servers(ipvs: &mut dyn Ipvs) -> Result<VirtualServerImages, ReadError> {
        let servers = ipvs.virtual_servers()?;
        Ok(images(ipvs, servers, FxHashMap::default())?)
    }

    /// Reads everything but these virtual servers, and the real servers that are known already.
    fn with(
        kernel: &mut Kernel,
        servers: Vec<ObservedVirtualServer>,
        known: FxHashMap<ServiceAddress, RealServerImages>,
    ) -> Result<Self, ReadError> {
        Ok(Self {
            virtual_servers: images(&mut *kernel.ipvs, servers, known)?,
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
        // The virtual servers themselves cost one dump. The text may omit some.
        let servers = kernel.ipvs.virtual_servers().map_err(ReadError::from)?;
        let v4 = servers.iter().find(|server| server.config.id.family() == Family::V4);
        widen_summaries(kernel, servers.len(), 0, v4.map(|server| server.config.scheduler));
        let mut shown = FxHashMap::default();
        for server in kernel.ipvs.summaries().map_err(SummaryError::NoSummary)? {
            let server = server.map_err(SummaryError::NoSummary)?;
            shown.extend(from_summary(&server).map(|real_servers| (server.address, real_servers)));
        }
        Ok(Self::with(kernel, servers, shown)?)
    }

    /// Reads one virtual server again, with its real servers.
    pub(crate) fn refresh_virtual_server(
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

/// From this many virtual servers on, preparing the kernel for summaries saves time.
const MANY: usize = 5_000;

/// For how many servers, real ones included, the kernel is prepared at most: for so many that takes a second, in which
/// nothing else is done.
const TOO_MANY: usize = 1_000_000;

/// Prepares the kernel for summaries of so many servers, if that saves time, with a scheduler of an IPv4 virtual server: on
/// nodes without IPv4 nothing would remove what a crash leaves behind. If it fails, summaries only take longer.
pub(crate) fn widen_summaries(
    kernel: &mut Kernel,
    virtual_servers: usize,
    real_servers: usize,
    scheduler: Option<Scheduler>,
) {
    let saves_time = virtual_servers >= MANY && virtual_servers + real_servers <= TOO_MANY;
    if let Some(scheduler) = scheduler.filter(|_| saves_time) {
        drop(kernel.ipvs.widen_summaries(scheduler));
    }
}

/// Images of these virtual servers. Reads the real servers of those of which they are not known.
fn images(
    ipvs: &mut dyn Ipvs,
    servers: Vec<ObservedVirtualServer>,
    mut known: FxHashMap<ServiceAddress, RealServerImages>,
) -> Result<VirtualServerImages, ipvs::Error> {
    let mut found = VirtualServerImages::default();
    for server in servers {
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
