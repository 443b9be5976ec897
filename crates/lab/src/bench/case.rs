//! What is measured, and the results. Both go in and out of the guest as JSON.

use std::fmt;

use dummy_interface::VipBinding;
use serde::{Deserialize, Serialize};
use testkit::floor::Size;
use testkit::kube_proxy;

/// One measurement: a guest is booted for it alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Case {
    /// What.
    pub subject: Subject,
    /// With how many Services.
    pub size: Size,
}

/// What is measured, of which program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Subject {
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
pub enum Program {
    /// Ours.
    KubeIpvs(Binding),
    /// Kubernetes' own.
    KubeProxy(Mode),
}

/// `--vip-binding`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Binding {
    /// VIPs are local routes.
    Route,
    /// VIPs are addresses of kube-ipvs0.
    Address,
}

/// `--proxy-mode` of kube-proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// ipvs
    Ipvs,
    /// nftables
    Nftables,
    /// iptables
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
pub enum Figures {
    /// Of [`Subject::Floor`].
    Floor {
        /// To write everything.
        write: f64,
        /// To read virtual and real servers by netlink.
        read_ipvs_by_netlink: f64,
        /// To read them as text.
        read_ipvs_as_text: f64,
        /// To read everything else.
        read_rest: f64,
    },
    /// Of [`Subject::ColdSync`].
    ColdSync {
        /// From both lists complete to the last write.
        seconds: f64,
    },
    /// Of [`Subject::EndpointChange`].
    EndpointChange {
        /// Until the kernel has it.
        kernel: Percentiles,
        /// Until a client that does nothing with it has been sent it.
        watch: Percentiles,
    },
    /// Of [`Subject::Reconcile`].
    Reconcile {
        /// By the clock.
        wall: f64,
        /// Of the processor.
        processor: f64,
    },
    /// Of [`Subject::Restart`].
    Restart {
        /// Until both lists are complete.
        list_transfer: f64,
        /// Until it is ready.
        ready: f64,
    },
    /// Of [`Subject::Memory`].
    Memory {
        /// At rest.
        steady: u64,
        /// The most.
        peak: u64,
    },
    /// Of [`Subject::FirstVip`].
    FirstVip {
        /// From the start of the program.
        from_start: f64,
        /// From the first byte of a list.
        from_first_byte: f64,
    },
    /// Of [`Subject::RollingUpdate`].
    RollingUpdate {
        /// How many endpoints were replaced.
        changes: usize,
        /// How far the kernel was behind.
        lag: Percentiles,
        /// The most that it was behind.
        greatest: f64,
    },
    /// Of [`Subject::Growth`].
    Growth(Phases),
}

/// What each phase takes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Phases {
    /// From the first request for a list to the last object of the later one.
    pub lists: f64,
    /// From there to the last write.
    pub sync: f64,
    /// A full comparison with nothing to do, requested by an operator.
    pub resync: f64,
    /// One endpoint: the median.
    pub change: f64,
    /// Memory at rest.
    pub steady: u64,
    /// The most memory.
    pub peak: u64,
}

/// Of times in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    /// The median.
    pub p50: f64,
    /// What one of a hundred exceeds.
    pub p99: f64,
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

impl Subject {
    /// Whether the real kube-proxy is measured.
    pub fn is_of_kube_proxy(self) -> bool {
        matches!(
            self,
            Self::ColdSync(Program::KubeProxy(_))
                | Self::EndpointChange(Program::KubeProxy(_), _)
                | Self::Memory(Program::KubeProxy(_))
        )
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
