//! Opens and prepares the kernel, and follows what others change in it.

pub(super) mod kube_ipvs0;
pub(super) mod notifications;
pub(super) mod way_to_api_server;

use std::{collections::BTreeSet, time::Duration};

use dummy_interface::VipBinding;
use ipnet::IpNet;
use ipvs::{Family, Info, KernelIpvs};
use netfilter::{Feature, KernelNetfilter, Policy};
use watcher::Kernel;

use crate::{
    config::Settings,
    node::{families::vip_binding, init, sysctl::Sysctl},
    serve::control,
};

/// The kernel's connections for the writer thread, and what others need to know about it.
pub(super) struct OpenedKernel {
    pub(super) kernel: Kernel,
    /// The netlink port that identifies our own changes to nf_tables.
    pub(super) nf_tables_port: u32,
    pub(super) binding: VipBinding,
    pub(super) families: BTreeSet<Family>,
    pub(super) policy: Policy,
    /// When IPVS forgets an idle TCP connection.
    pub(super) tcp_timeout: Duration,
    /// A description of the kernel, for `kube-ipvs status`.
    pub(super) found: control::KernelInfo,
}

/// Sets the kernel's parameters and makes kube-ipvs0. No Service is touched yet.
pub(super) fn open(
    settings: &Settings,
    mut ipvs: KernelIpvs,
    mut policy: Policy,
    families: BTreeSet<Family>,
) -> anyhow::Result<OpenedKernel> {
    let netfilter = init::prepare(settings, &mut ipvs, &policy, &families)?;
    // Services learn from the policy what the kernel cannot leave out of conntrack.
    let lacks = |range: &IpNet| netfilter.missing_features(Family::from(range.addr()));
    policy.untracked_pods.retain(|range| !lacks(range).contains(&Feature::Untracking));
    let found = found(settings, ipvs.info()?, &families, &netfilter);
    let nf_tables_port = netfilter.port();
    let tcp_timeout = Duration::from_secs(ipvs.timeouts()?.tcp.into());
    let binding = vip_binding(settings.vip_binding)?;
    let kernel = Kernel {
        ipvs: Box::new(ipvs.on_reload(init::after_reload(settings))),
        netfilter: Box::new(netfilter),
        dummy_interface: Box::new(kube_ipvs0::open(binding, policy.gue)?),
    };
    Ok(OpenedKernel { kernel, nf_tables_port, binding, families, policy, tcp_timeout, found })
}

fn found(
    settings: &Settings,
    info: Info,
    families: &BTreeSet<Family>,
    netfilter: &KernelNetfilter,
) -> control::KernelInfo {
    let (major, minor, patch) = info.version;
    let lacks = |family: &Family| {
        let features = netfilter.missing_features(*family).iter();
        features.map(|feature| format!("{feature}, {family}")).collect::<Vec<_>>()
    };
    control::KernelInfo {
        release: Sysctl::default().release(),
        ipvs: format!("{major}.{minor}.{patch}"),
        families: families.clone(),
        vip_binding: settings.vip_binding,
        scheduler: settings.services.scheduler,
        lacks: families.iter().flat_map(lacks).collect(),
    }
}
