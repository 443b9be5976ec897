//! The settings that the start gives to the kernel.

use ipvs::Timeouts;

use super::Origin;
use crate::config::{
    Error, Flags, GoDuration, KubeProxyConfiguration, Problem, checks,
    options::{Conntrack, Ipvs},
    values::TcpTimeout,
};

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

impl KernelParameters {
    pub(super) fn new(
        flags: &Flags,
        configuration: &KubeProxyConfiguration,
        origin: Origin,
    ) -> Result<Self, Error> {
        Ok(Self {
            strict_arp: configuration.ipvs.strict_arp,
            direct_return: flags.external_forwarding_method.may_tunnel(),
            conntrack: ConntrackSettings::new(&configuration.conntrack, origin)?,
        })
    }
}

impl ConntrackSettings {
    fn new(conntrack: &Conntrack, origin: Origin) -> Result<Self, Error> {
        // Every default has been filled in.
        let count =
            |field, value: Option<i32>| origin.check(field, checks::at_least_zero(value.unwrap_or_default()));
        let timeout = |field, value| origin.check(field, seconds(value));
        Ok(Self {
            max_per_core: count("conntrack.maxPerCore", conntrack.max_per_core)?,
            min: count("conntrack.min", conntrack.min)?,
            tcp_established_timeout: timeout(
                "conntrack.tcpEstablishedTimeout",
                conntrack.tcp_established_timeout.unwrap_or_default(),
            )?,
            tcp_close_wait_timeout: timeout(
                "conntrack.tcpCloseWaitTimeout",
                conntrack.tcp_close_wait_timeout.unwrap_or_default(),
            )?,
            tcp_be_liberal: conntrack.tcp_be_liberal,
            udp_timeout: timeout("conntrack.udpTimeout", conntrack.udp_timeout)?,
            udp_stream_timeout: timeout("conntrack.udpStreamTimeout", conntrack.udp_stream_timeout)?,
        })
    }
}

impl IpvsTimeouts {
    pub(super) fn new(ipvs: &Ipvs, origin: Origin) -> Result<Self, Error> {
        let timeout = |field, value| origin.check(field, seconds(value));
        let tcp = match ipvs.tcp_timeout {
            TcpTimeout::After(duration) => Some(timeout("ipvs.tcpTimeout", duration)?),
            TcpTimeout::Auto => None,
        };
        let tcp_fin = timeout("ipvs.tcpFinTimeout", ipvs.tcp_fin_timeout)?;
        Ok(Self { tcp, tcp_fin, udp: timeout("ipvs.udpTimeout", ipvs.udp_timeout)? })
    }

    /// The timeouts, where conntrack forgets an idle TCP connection after so many seconds, if that is known.
    pub(crate) fn resolve(self, conntrack: Option<u32>) -> Timeouts {
        let tcp = self.tcp.or(conntrack).unwrap_or_default();
        Timeouts::UNCHANGED.tcp(tcp).tcp_fin(self.tcp_fin).udp(self.udp)
    }
}

/// The timeout in whole seconds, which is what the kernel counts in. Half a second is one, for 0 would mean
/// something else.
fn seconds(timeout: GoDuration) -> Result<u32, Problem> {
    let duration = checks::duration(timeout)?;
    let seconds = duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0));
    // Kept as an int everywhere, in ticks.
    let most = "at most 2147483647 s, which the kernel can count";
    i32::try_from(seconds).map(i32::unsigned_abs).map_err(|_| Problem::number(timeout, most))
}
