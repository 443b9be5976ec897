//! What is measured, and the results. Both go in and out of the guest as JSON.

use std::fmt;

use dummy_interface::VipBinding;
use serde::{Deserialize, Serialize};
use testkit::floor::Size;
use testkit::kube_proxy;

/// One measurement: a guest is booted for it alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Case {
    pub(super) subject: Subject,
    pub(super) size: Size,
}

/// What is measured, of which program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Subject {
    /// What the kernel needs to write and to read everything.
    Floor(Binding),
    /// From both lists complete to the last write.
    ColdSync(Program),
    /// From an EndpointSlice's change to the kernel, this many times.
    EndpointChange(Program, u32),
    /// The periodic comparison of everything, with nothing to do, this many times.
    Reconcile(Binding, u32),
    /// A second start over what the first has written.
    Restart(Binding),
    /// Resident memory: at rest, and the peak.
    Memory(Program),
    /// From the start to the Service of the API server itself.
    FirstVip(Binding),
    /// A tenth of all endpoints replaced, one after the other.
    RollingUpdate(Binding),
    /// Every phase, in one of several sizes.
    Growth(Binding),
}

/// The programs that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Program {
    KubeIpvs(Binding),
    KubeProxy(Mode),
}

/// `--vip-binding`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Binding {
    Route,
    Address,
}

/// `--proxy-mode` of kube-proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Mode {
    Ipvs,
    Nftables,
    Iptables,
}

/// A case and what was seen, or why nothing was.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Measured {
    #[serde(flatten)]
    pub(super) case: Case,
    pub(super) outcome: Result<Figures, String>,
}

/// Times in seconds, memory in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Figures {
    Floor { write: f64, read_ipvs_by_netlink: f64, read_ipvs_as_text: f64, read_rest: f64 },
    ColdSync { seconds: f64 },
    EndpointChange { kernel: Percentiles, watch: Percentiles },
    Reconcile { wall: f64, processor: f64 },
    Restart { list_transfer: f64, ready: f64 },
    Memory { steady: u64, peak: u64 },
    FirstVip { from_start: f64, from_first_byte: f64 },
    RollingUpdate { changes: usize, lag: Percentiles, greatest: f64 },
    Growth(Phases),
}

/// What each phase takes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct Phases {
    /// From the first request for a list to the last object of the later one.
    pub(super) lists: f64,
    /// From there to the last write.
    pub(super) sync: f64,
    /// A full comparison with nothing to do, requested by an operator.
    pub(super) resync: f64,
    /// One endpoint: the median.
    pub(super) change: f64,
    pub(super) steady: u64,
    pub(super) peak: u64,
}

/// Of times in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Percentiles {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
}

impl Figures {
    /// The seconds by which two runs are compared; `None` if one run is many measurements.
    fn seconds(&self) -> Option<f64> {
        match self {
            Self::Floor { write, read_ipvs_as_text, read_rest, .. } => {
                Some(write + read_ipvs_as_text + read_rest)
            }
            Self::ColdSync { seconds } => Some(*seconds),
            Self::Reconcile { wall, .. } => Some(*wall),
            Self::Restart { ready, .. } => Some(*ready),
            Self::FirstVip { from_first_byte, .. } => Some(*from_first_byte),
            Self::EndpointChange { .. }
            | Self::Memory { .. }
            | Self::RollingUpdate { .. }
            | Self::Growth(_) => None,
        }
    }

    /// Whether another run is worth it.
    pub(super) fn vary(&self) -> bool {
        self.seconds().is_some()
    }

    /// The faster of two runs of the same.
    pub(super) fn faster(self, other: Self) -> Self {
        if other.seconds() < self.seconds() { other } else { self }
    }
}

impl Percentiles {
    /// Of at least one time.
    pub(crate) fn of(mut times: Vec<f64>) -> Option<Self> {
        times.sort_by(f64::total_cmp);
        let rank = |percent: usize| (times.len() * percent).div_ceil(100).saturating_sub(1);
        Some(Self { p50: *times.get(rank(50))?, p99: *times.get(rank(99))? })
    }
}

impl Binding {
    pub(super) const BOTH: [Self; 2] = [Self::Route, Self::Address];

    pub(super) fn flag(self) -> &'static str {
        match self {
            Self::Route => "--vip-binding=route",
            Self::Address => "--vip-binding=address",
        }
    }
}

impl From<Binding> for VipBinding {
    fn from(binding: Binding) -> Self {
        match binding {
            Binding::Route => Self::Route { source_v4: None, source_v6: None },
            Binding::Address => Self::Address,
        }
    }
}

impl Mode {
    pub(super) const ALL: [Self; 3] = [Self::Ipvs, Self::Nftables, Self::Iptables];
}

impl From<Mode> for kube_proxy::Mode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Ipvs => Self::Ipvs,
            Mode::Nftables => Self::Nftables,
            Mode::Iptables => Self::Iptables,
        }
    }
}

impl fmt::Display for Binding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Route => "routes",
            Self::Address => "addresses",
        })
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::KubeIpvs(binding) => write!(f, "kube-ipvs, VIPs as {binding}"),
            Self::KubeProxy(Mode::Ipvs) => f.write_str("kube-proxy ipvs"),
            Self::KubeProxy(Mode::Nftables) => f.write_str("kube-proxy nftables"),
            Self::KubeProxy(Mode::Iptables) => f.write_str("kube-proxy iptables"),
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.subject {
            Subject::Floor(binding) => write!(f, "floor, VIPs as {binding}")?,
            Subject::ColdSync(program) => write!(f, "cold sync of {program}")?,
            Subject::EndpointChange(program, times) => write!(f, "{times} endpoint changes with {program}")?,
            Subject::Reconcile(binding, times) => write!(f, "{times} reconciles, VIPs as {binding}")?,
            Subject::Restart(binding) => write!(f, "restart, VIPs as {binding}")?,
            Subject::Memory(program) => write!(f, "memory of {program}")?,
            Subject::FirstVip(binding) => write!(f, "first VIP, VIPs as {binding}")?,
            Subject::RollingUpdate(binding) => write!(f, "rolling update, VIPs as {binding}")?,
            Subject::Growth(binding) => write!(f, "growth, VIPs as {binding}")?,
        }
        write!(f, ", {} Services × {}", self.size.services, self.size.endpoints)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_times_that_were_seen_and_there_are_none_of_nothing() {
        let hundred = (1..=100).rev().map(f64::from).collect();
        assert_eq!(Percentiles::of(hundred), Some(Percentiles { p50: 50.0, p99: 99.0 }));
        assert_eq!(Percentiles::of(vec![7.0]), Some(Percentiles { p50: 7.0, p99: 7.0 }));
        assert_eq!(Percentiles::of(Vec::new()), None);
    }
}
