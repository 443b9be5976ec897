//! The kernel, opened and prepared.

use std::collections::BTreeSet;

use dummy_interface::VipBinding;
use ipvs::{Family, KernelIpvs};
use netfilter::Policy;
use watcher::Kernel;

use super::links;
use crate::{config::Settings, init};

/// The kernel as the writer thread needs it, and what others need to know of it.
pub(super) struct Opened {
    pub(super) kernel: Kernel,
    /// The netlink port by which our own changes to nf_tables are told from those of others.
    pub(super) nf_tables_port: u32,
    pub(super) binding: VipBinding,
    pub(super) families: BTreeSet<Family>,
    pub(super) policy: Policy,
}

/// Sets the kernel's parameters and makes kube-ipvs0. No Service is touched yet.
pub(super) fn open(
    settings: &Settings,
    mut ipvs: KernelIpvs,
    policy: Policy,
    families: BTreeSet<Family>,
) -> anyhow::Result<Opened> {
    let netfilter = init::prepare(settings, &mut ipvs, &policy, &families)?;
    let nf_tables_port = netfilter.port();
    let binding = links::vip_binding(settings.vip_binding)?;
    let kernel = Kernel {
        ipvs: Box::new(ipvs),
        netfilter: Box::new(netfilter),
        links: Box::new(links::open(binding)?),
    };
    Ok(Opened { kernel, nf_tables_port, binding, families, policy })
}
