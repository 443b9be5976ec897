//! Sets the kernel's parameters, the only part that needs more than CAP_NET_ADMIN.

use std::collections::BTreeSet;

use ipvs::{Family, KernelIpvs};
use netfilter::{KernelNetfilter, LocalTraffic, Policy};
use service::one_line;
use tracing::warn;

use super::{
    requirements,
    sysctl::{Sysctl, conntrack::TCP_ESTABLISHED},
};
use crate::config::Settings;

/// Sets the kernel parameters and nothing else (`--init-only`): a daemon with CAP_NET_ADMIN alone and a
/// read-only /proc/sys then finds them as they have to be. kube-proxy asks the API server as well before it
/// comes to this; nothing of what it says is needed.
pub fn kernel_parameters(settings: &Settings) -> anyhow::Result<()> {
    let mut ipvs = requirements::open_ipvs()?;
    // Any policy needs the same kernel modules.
    let policy = settings.policy(LocalTraffic::Source { ipv4: None, ipv6: None });
    prepare(settings, &mut ipvs, &policy, &BTreeSet::from([Family::V4])).map(drop)
}

/// Prepares IPVS again after the module was unloaded and loaded again: its parameters and timeouts were lost
/// with it. What cannot be set is logged, and traffic goes on without.
pub(crate) fn after_reload(settings: &Settings) -> impl FnMut(&mut KernelIpvs) + Send + use<> {
    let timeouts = settings.ipvs_timeouts;
    let parameters = settings.kernel_parameters;
    move |ipvs| {
        warn!(
            "the module ip_vs was unloaded and loaded again, and its connections are lost: setting IPVS up again"
        );
        let sysctl = Sysctl::default();
        sysctl.prepare_ipvs_again(&parameters);
        sysctl.bound_ipvs_table();
        let timeouts = timeouts.resolve(sysctl.number(TCP_ESTABLISHED));
        if let Err(error) = requirements::ipvs_timeouts(ipvs, timeouts) {
            warn!("{}", one_line(&error));
        }
    }
}

/// Sets the kernel parameters that differ, and checks that nf_tables has the features these families need. Returns the
/// connection to nf_tables.
pub fn prepare(
    settings: &Settings,
    ipvs: &mut KernelIpvs,
    policy: &Policy,
    families: &BTreeSet<Family>,
) -> anyhow::Result<KernelNetfilter> {
    let sysctl = Sysctl::default();
    sysctl.prepare(&settings.kernel_parameters)?;
    let netfilter = KernelNetfilter::open(policy)?;
    for &family in families {
        requirements::nf_tables(family, netfilter.missing_features(family))?;
    }
    // Before Linux 5.12 a trace that was killed leaves an empty table.
    if let Err(error) = netfilter::trace::remove_leftovers() {
        warn!("{}", one_line(&error));
    }
    // That check has made the kernel load conntrack, so its parameters exist now.
    sysctl.set_conntrack(&settings.kernel_parameters.conntrack)?;
    sysctl.bound_ipvs_table();
    requirements::ipvs_timeouts(ipvs, settings.ipvs_timeouts.resolve(sysctl.number(TCP_ESTABLISHED)))?;
    Ok(netfilter)
}
