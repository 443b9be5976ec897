//! The requirements: what the kernel and the process must have before anything is programmed.

use std::{fs, io, path::Path};

use ipvs::{
    Family, Info, Ipvs, KernelError, KernelIpvs, PROBE_ADDRESS, Scheduler, SchedulerSupport, Timeouts,
    probe_scheduler,
};
use netfilter::Feature;
use tracing::{info, warn};

/// Why this machine or container cannot run the proxy.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The process lacks the right to change the network.
    #[error("CAP_NET_ADMIN is missing: run as root, or in a privileged container")]
    NotPermitted,
    /// The process cannot find out about itself.
    #[error("cannot read /proc/self/status")]
    Status(#[source] io::Error),
    /// The kernel has no IPVS, or does not let this process use it.
    #[error(transparent)]
    Ipvs(#[from] ipvs::Error),
    /// The kernel refuses the timeouts.
    #[error("the kernel refuses the IPVS timeouts of {} s (TCP), {} s (TCP after FIN), {} s (UDP)", .0.tcp, .0.tcp_fin, .0.udp)]
    Timeouts(Timeouts, #[source] ipvs::Error),
    /// nf_tables cannot hold our table.
    #[error("the kernel lacks {feature}, without which {family} cannot be served")]
    NfTables {
        /// The family.
        family: Family,
        /// What is missing.
        feature: Feature,
    },
    /// The kernel refuses the scheduler.
    #[error("the kernel refuses the scheduler {scheduler}: {}", .refusal.cause())]
    Scheduler {
        /// Its name.
        scheduler: Scheduler,
        /// The kernel's answer.
        refusal: KernelError,
    },
    /// The kernel has no module of the scheduler.
    #[error("there is no scheduler {scheduler}: the kernel has no module {module}")]
    NoScheduler {
        /// Its name.
        scheduler: Scheduler,
        /// The name of its module.
        module: String,
    },
    /// The scheduler's module must be loaded before it is used.
    #[error("{0} is not loaded, and loading it on demand can hang IPVS: load the module ip_vs_{0} at boot")]
    SchedulerNotLoaded(Scheduler),
}

/// Refuses to go on without the right to change the network.
pub fn net_admin() -> Result<(), Error> {
    let status = fs::read_to_string("/proc/self/status").map_err(Error::Status)?;
    if has_net_admin(&status) { Ok(()) } else { Err(Error::NotPermitted) }
}

/// Whether the kernel has IPVS already: only then can it be asked without loading it.
pub(crate) fn has_ipvs() -> bool {
    Path::new("/proc/thread-self/net/ip_vs").exists()
}

/// Opens IPVS, which also makes the kernel load it and show its parameters, and writes nothing.
pub fn open_ipvs() -> Result<KernelIpvs, Error> {
    open_ipvs_with_info().map(|(kernel, _)| kernel)
}

/// Opens IPVS, and reads its version.
pub fn open_ipvs_with_info() -> Result<(KernelIpvs, Info), Error> {
    net_admin()?;
    let mut kernel = KernelIpvs::open()?;
    // Asks whether the capability holds where IPVS wants it: in the initial user namespace.
    let info = kernel.info()?;
    Ok((kernel, info))
}

/// Refuses a kernel that lacks what our table of a family cannot do without, and warns of what else it lacks.
pub fn nf_tables(family: Family, missing: &[Feature]) -> Result<(), Error> {
    for &feature in missing {
        let Some(lost) = feature.lost_without() else { return Err(Error::NfTables { family, feature }) };
        warn!("the kernel lacks {feature} for {family}: {lost}");
    }
    Ok(())
}

/// Refuses a scheduler whose module the kernel certainly lacks. The kernel is not asked, so that this may be called while
/// another daemon runs.
pub(crate) fn scheduler_module(scheduler: Scheduler, lacks: impl Fn(&str) -> bool) -> Result<(), Error> {
    let module = format!("ip_vs_{scheduler}").replace('-', "_");
    if lacks(&module) { Err(Error::NoScheduler { scheduler, module }) } else { Ok(()) }
}

/// Refuses a kernel that does not take a scheduler. To be called before there is a writer thread, which is
/// asked afterwards ([`reconciler::Handle::probe_scheduler`]).
pub fn scheduler(kernel: &mut impl Ipvs, scheduler: Scheduler) -> Result<(), Error> {
    let servers = kernel.virtual_servers()?;
    let in_use = servers.iter().map(|server| server.config.scheduler);
    takes(scheduler, probe_scheduler(kernel, scheduler, in_use)?)
}

/// Refuses a kernel that, by what was found out, does not take a scheduler.
pub fn takes(scheduler: Scheduler, found: SchedulerSupport) -> Result<(), Error> {
    match found {
        SchedulerSupport::Supported => Ok(()),
        SchedulerSupport::Refused(refusal) => Err(Error::Scheduler { scheduler, refusal }),
        SchedulerSupport::NotLoaded => Err(Error::SchedulerNotLoaded(scheduler)),
        SchedulerSupport::NotProbed => {
            warn!("cannot probe the scheduler {scheduler} before it is used: {PROBE_ADDRESS} is in use");
            Ok(())
        }
    }
}

/// Brings the timeouts of IPVS to what is wanted; 0 leaves one as it is, and what is right is not written.
pub fn ipvs_timeouts(kernel: &mut KernelIpvs, wanted: Timeouts) -> Result<(), Error> {
    let found = kernel.timeouts()?;
    let Some(different) = different(found, wanted) else { return Ok(()) };
    kernel.set_timeouts(different).map_err(|source| Error::Timeouts(different, source))?;
    info!(from = ?found, to = ?different, "set the timeouts of IPVS");
    Ok(())
}

/// The wanted timeouts that have to be written; the others are 0.
pub(crate) fn different(found: Timeouts, wanted: Timeouts) -> Option<Timeouts> {
    let unless_right = |found, wanted| if found == wanted { 0 } else { wanted };
    let different = Timeouts::UNCHANGED
        .tcp(unless_right(found.tcp, wanted.tcp))
        .tcp_fin(unless_right(found.tcp_fin, wanted.tcp_fin))
        .udp(unless_right(found.udp, wanted.udp));
    Some(different).filter(|different| *different != Timeouts::UNCHANGED)
}

/// The timeouts after those that are wanted were written.
pub(crate) fn resulting(found: Timeouts, wanted: Timeouts) -> Timeouts {
    let either = |found, wanted| if wanted == 0 { found } else { wanted };
    Timeouts::UNCHANGED
        .tcp(either(found.tcp, wanted.tcp))
        .tcp_fin(either(found.tcp_fin, wanted.tcp_fin))
        .udp(either(found.udp, wanted.udp))
}

/// Whether the effective capabilities in /proc/PID/status have the bit of `CAP_NET_ADMIN`, 12 in
/// include/uapi/linux/capability.h.
fn has_net_admin(status: &str) -> bool {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
    bits.is_some_and(|bits| bits & (1 << 12) != 0)
}

#[cfg(test)]
mod tests {
    use ipvs::{Command, Protocol, ServiceAddress, VirtualServer};
    use testkit::FakeKernel;

    use super::*;

    #[test]
    fn a_scheduler_is_probed_with_a_virtual_server_that_is_gone_again() {
        let mut kernel = FakeKernel::new();
        scheduler(&mut kernel, Scheduler::LC).unwrap();
        assert_eq!(
            kernel.writes(),
            "add virtual server TCP 198.51.100.0:20000 lc\ndelete virtual server TCP 198.51.100.0:20000\n"
        );
        assert!(kernel.state().virtual_servers.is_empty());
    }

    #[test]
    fn a_scheduler_that_is_in_use_needs_no_write() {
        let mut kernel = FakeKernel::new();
        let vip = ServiceAddress { protocol: Protocol::Udp, ip: [10, 96, 0, 10].into(), port: 53 };
        kernel.apply(&[Command::AddVirtualServer(VirtualServer::new(vip, Scheduler::LC))]).unwrap();
        kernel.heal();
        scheduler(&mut kernel, Scheduler::LC).unwrap();
        assert_eq!(kernel.writes(), "");
    }

    #[test]
    fn a_scheduler_that_the_kernel_lacks_is_named_and_nothing_is_written() {
        let mut kernel = FakeKernel::new();
        kernel.state().missing_schedulers.insert(Scheduler::MH);
        let error = scheduler(&mut kernel, Scheduler::MH).unwrap_err();
        assert!(error.to_string().starts_with("the kernel refuses the scheduler mh: "), "{error}");
        assert!(kernel.state().virtual_servers.is_empty());
    }

    #[test]
    fn a_scheduler_without_a_module_is_refused_before_the_kernel_is_asked() {
        let lacks = |module: &str| module != "ip_vs_rr";
        scheduler_module(Scheduler::RR, lacks).unwrap();
        let error = scheduler_module("my-own".parse().unwrap(), lacks).unwrap_err();
        assert_eq!(error.to_string(), "there is no scheduler my-own: the kernel has no module ip_vs_my_own");
    }

    #[test]
    fn a_scheduler_that_is_dangerous_to_load_is_refused_unless_it_is_loaded() {
        let mut kernel = FakeKernel::new();
        kernel.state().dangerous_schedulers.insert(Scheduler::LBLC);
        let error = scheduler(&mut kernel, Scheduler::LBLC).unwrap_err();
        assert_eq!(
            error.to_string(),
            "lblc is not loaded, and loading it on demand can hang IPVS: load the module ip_vs_lblc at boot"
        );
        assert_eq!(kernel.writes(), "", "it was not asked for");
        kernel.state().dangerous_schedulers.clear();
        scheduler(&mut kernel, Scheduler::LBLC).unwrap();
    }

    #[test]
    fn a_virtual_server_where_schedulers_are_tried_stays_as_it_is() {
        let mut kernel = FakeKernel::new();
        kernel.apply(&[Command::AddVirtualServer(VirtualServer::new(PROBE_ADDRESS, Scheduler::RR))]).unwrap();
        kernel.heal();
        scheduler(&mut kernel, Scheduler::LC).unwrap();
        assert_eq!(kernel.writes(), "");
        assert_eq!(kernel.state().virtual_servers.len(), 1);
    }

    #[test]
    fn a_kernel_without_an_expression_that_is_needed_is_refused_by_its_module() {
        let error = nf_tables(Family::V6, &[Feature::IntervalSets, Feature::Masquerade]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the kernel lacks masquerading in rules (module nft_masq), without which IPv6 cannot be served"
        );
        assert!(nf_tables(Family::V4, &[Feature::IntervalSets]).is_ok());
    }

    #[test]
    fn of_the_timeouts_those_that_differ_are_written() {
        let found = Timeouts::UNCHANGED.tcp(900).tcp_fin(120).udp(300);
        let wanted = Timeouts::UNCHANGED.tcp(7_200).tcp_fin(120);
        assert_eq!(different(found, wanted), Some(Timeouts::UNCHANGED.tcp(7_200)));
        assert_eq!(different(found, found), None);
        assert_eq!(different(found, Timeouts::UNCHANGED), None, "0 leaves them");
        assert_eq!(resulting(found, wanted), Timeouts::UNCHANGED.tcp(7_200).tcp_fin(120).udp(300));
    }

    #[test]
    fn net_admin_is_bit_12_of_the_effective_capabilities() {
        assert!(has_net_admin("Name:\tx\nCapPrm:\t0000000000000000\nCapEff:\t0000000000001000\n"));
        assert!(has_net_admin("CapEff:\t000001ffffffffff\n"));
        assert!(!has_net_admin("CapPrm:\t0000000000001000\nCapEff:\t0000000000000fff\n"));
        assert!(!has_net_admin("CapEff:\t\n") && !has_net_admin(""));
    }
}
