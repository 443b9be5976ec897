//! Limits and timeouts that the kernel is given.

use ipvs::Timeouts;

use super::{
    Error, GoDuration, Origin, Problem,
    checks::{at_least_zero, duration},
    file::{
        defaults,
        v1alpha1::{Conntrack, Ipvs},
    },
};

/// Parameters of connection tracking. A zero leaves the kernel's value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConntrackSettings {
    /// The entries that the table may hold per CPU; with 0 the least number means nothing either.
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

pub(super) fn conntrack(conntrack: &Conntrack, origin: Origin) -> Result<ConntrackSettings, Error> {
    let count =
        |field, value: Option<i32>, usual: i32| origin.check(field, at_least_zero(value.unwrap_or(usual)));
    let timeout = |field, value| origin.check(field, seconds(value));
    Ok(ConntrackSettings {
        max_per_core: count("conntrack.maxPerCore", conntrack.max_per_core, defaults::MAX_PER_CORE)?,
        min: count("conntrack.min", conntrack.min, defaults::CONNTRACK_MIN)?,
        tcp_established_timeout: timeout(
            "conntrack.tcpEstablishedTimeout",
            conntrack.tcp_established_timeout.unwrap_or(defaults::ESTABLISHED_TIMEOUT),
        )?,
        tcp_close_wait_timeout: timeout(
            "conntrack.tcpCloseWaitTimeout",
            conntrack.tcp_close_wait_timeout.unwrap_or(defaults::CLOSE_WAIT_TIMEOUT),
        )?,
        tcp_be_liberal: conntrack.tcp_be_liberal,
        udp_timeout: timeout("conntrack.udpTimeout", conntrack.udp_timeout)?,
        udp_stream_timeout: timeout("conntrack.udpStreamTimeout", conntrack.udp_stream_timeout)?,
    })
}

pub(super) fn ipvs_timeouts(ipvs: &Ipvs, origin: Origin) -> Result<Timeouts, Error> {
    let timeout = |field, value| origin.check(field, seconds(value));
    Ok(Timeouts::UNCHANGED
        .tcp(timeout("ipvs.tcpTimeout", ipvs.tcp_timeout)?)
        .tcp_fin(timeout("ipvs.tcpFinTimeout", ipvs.tcp_fin_timeout)?)
        .udp(timeout("ipvs.udpTimeout", ipvs.udp_timeout)?))
}

/// The timeout in whole seconds, which is what the kernel counts in. Half a second is one, for 0 would mean
/// something else.
fn seconds(timeout: GoDuration) -> Result<u32, Problem> {
    let duration = duration(timeout)?;
    let seconds = duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0));
    // Kept as an int everywhere, in ticks.
    i32::try_from(seconds).map(i32::unsigned_abs).map_err(|_| Problem::TimeoutTooLong(timeout))
}
