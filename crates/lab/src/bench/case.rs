//! What is measured. It goes into the guest as JSON.

use std::fmt;

use dummy_interface::VipBinding;
use serde::{Deserialize, Serialize};
use testkit::{kernel_baseline::Size, kube_proxy::Mode};

use super::data_plane::Effort;

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
    KernelBaseline(Binding),
    /// Until a kernel that has nothing has everything.
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
    RollingUpdate,
    /// One tenant's costly changes, and who waits meanwhile. The tenant has as many ports as the size has Services.
    Fairness,
    /// Every phase, in one of several sizes.
    Growth,
    /// What others publish: the first sync, a restart, and one Service more, this many times.
    Published(Program, u32),
    /// From decoded objects to netlink messages, without a kernel.
    Core,
    /// What the processor does for packets, with every program and without.
    DataPlane(Effort),
    /// What it costs to know whether endpoints answer, and to eject those that do not.
    Ejection(Ejecting, Effort),
    /// How schedulers spread connections. There are as many client nodes as the size has Services.
    Schedulers(Effort),
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

/// Which Services eject failing endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ejecting {
    /// None.
    None,
    /// Those with clients.
    Active,
    /// All.
    All,
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

impl Subject {
    /// Whether the real kube-proxy is measured.
    pub fn is_of_kube_proxy(self) -> bool {
        matches!(
            self,
            Self::ColdSync(Program::KubeProxy(_))
                | Self::EndpointChange(Program::KubeProxy(_), _)
                | Self::Memory(Program::KubeProxy(_))
                | Self::Published(Program::KubeProxy(_), _)
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

impl fmt::Display for Binding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Route => "routes",
            Self::Address => "addresses",
        })
    }
}

impl fmt::Display for Ejecting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Active => "those with clients",
            Self::All => "all",
        })
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::KubeIpvs(binding) => write!(f, "kube-ipvs, VIPs as {binding}"),
            Self::KubeProxy(mode) => write!(f, "kube-proxy {mode}"),
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.subject {
            Subject::KernelBaseline(binding) => write!(f, "kernel baseline, VIPs as {binding}")?,
            Subject::ColdSync(program) => write!(f, "cold sync of {program}")?,
            Subject::EndpointChange(program, times) => write!(f, "{times} endpoint changes with {program}")?,
            Subject::Reconcile(binding, times) => write!(f, "{times} reconciles, VIPs as {binding}")?,
            Subject::Restart(binding) => write!(f, "restart, VIPs as {binding}")?,
            Subject::Memory(program) => write!(f, "memory of {program}")?,
            Subject::FirstVip(binding) => write!(f, "first VIP, VIPs as {binding}")?,
            Subject::RollingUpdate => f.write_str("rolling update")?,
            Subject::Fairness => return write!(f, "fairness, ports × endpoints: {}", self.size),
            Subject::Schedulers(_) => return write!(f, "schedulers, nodes × pods: {}", self.size),
            Subject::Growth => f.write_str("growth")?,
            Subject::Published(program, _) => write!(f, "published figures of {program}")?,
            Subject::Core => f.write_str("published figures of the core")?,
            Subject::Ejection(ejecting, _) => write!(f, "ejection, by {ejecting}")?,
            Subject::DataPlane(_) => f.write_str("data-plane")?,
        }
        let Size { services, endpoints } = self.size;
        write!(f, ", {services} Services × {endpoints}")
    }
}
