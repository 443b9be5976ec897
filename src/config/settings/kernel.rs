//! The settings that the start gives to the kernel.

use ipvs::Timeouts;

/// The kernel parameters that the configuration decides about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelParameters {
    /// Whether ARP is answered only on the interface that has the address.
    pub strict_arp: bool,
    /// Whether Services may be answered directly.
    pub direct_return: bool,
    /// Limits and timeouts of connection tracking.
    pub conntrack: ConntrackSettings,
}

/// Parameters of connection tracking. A zero leaves the kernel's value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConntrackSettings {
    /// The entries that the table may hold per CPU; with 0 `min` is ignored too.
    pub max_per_core: u32,
    /// The entries that it may hold at least.
    pub min: u32,
    /// Seconds until an established TCP connection without a packet is forgotten.
    pub tcp_established_timeout: u32,
    /// Seconds until a TCP connection that one side has closed is forgotten.
    pub tcp_close_wait_timeout: u32,
    /// Whether TCP packets outside the window are part of their connection.
    pub tcp_be_liberal: bool,
    /// Seconds until a UDP flow without an answer is forgotten.
    pub udp_timeout: u32,
    /// Seconds until a UDP exchange is forgotten.
    pub udp_stream_timeout: u32,
}

/// When IPVS forgets idle connections, in seconds; 0 leaves the kernel's timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpvsTimeouts {
    /// TCP; `None`: when conntrack does.
    pub tcp: Option<u32>,
    /// TCP after FIN.
    pub tcp_fin: u32,
    /// UDP.
    pub udp: u32,
}

impl IpvsTimeouts {
    /// The timeouts, where conntrack forgets an idle TCP connection after so many seconds, if that is known.
    pub(crate) fn resolve(self, conntrack: Option<u32>) -> Timeouts {
        let tcp = self.tcp.or(conntrack).unwrap_or_default();
        Timeouts::UNCHANGED.tcp(tcp).tcp_fin(self.tcp_fin).udp(self.udp)
    }
}
