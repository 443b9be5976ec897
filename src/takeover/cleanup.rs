//! Removing from this node what proxies have programmed: our own state, and what kube-proxy has left behind.

use std::collections::BTreeSet;

use dummy_interface::{
    DEVICE, count_routes, has_removable_device, remove_device, remove_routes, remove_tunnels, tunnels,
};
use host_rules::{
    host_firewall::{self, FirewallChains, HostChains, LegacyChains},
    leftovers::{self, Leftovers, Scope},
};
use ipvs::{Command, Family, Ipvs, KernelIpvs, ServiceAddress, VirtualServerId};
use serde::Serialize;
use service::one_line;

use super::hand_over::{OpenConnections, Served};
use crate::{config::Excluded, node::requirements::has_ipvs};

/// What to keep, and what to remove beyond the usual.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CleanupScope {
    /// Virtual servers, kube-ipvs0 and kube-proxy's rules stay: a kube-proxy in ipvs mode has taken them
    /// over.
    pub keep_ipvs: bool,
    /// The tables of kube-proxy's nftables mode go too.
    pub kube_proxy_nftables: bool,
    /// Nothing is written: what would be removed is reported.
    pub dry_run: bool,
}

/// The report on a cleanup, one line for each thing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CleanupReport {
    /// Nothing was written: `removed` is what would be removed, as far as reading shows.
    pub dry_run: bool,
    /// What was removed.
    pub removed: Vec<String>,
    /// What could not be removed, each with its cause.
    pub stayed: Vec<String>,
    /// Places that could not be inspected.
    pub unknown: Vec<String>,
    /// Connections that were open and have been cut, by virtual server.
    pub cut: Vec<String>,
    /// What a hand-over would wait for before it removes anything; only when nothing is written.
    pub waits: Vec<String>,
    /// What would interrupt traffic in a hand-over, or keep it from ending; only when nothing is written.
    pub warnings: Vec<String>,
}

/// Removes everything: the VIPs first, since without them no client reaches the rest; kube-proxy's rules
/// last. A failure does not stop the rest.
pub fn clean(excluded: &Excluded, extent: CleanupScope) -> CleanupReport {
    let mut cleaned = CleanupReport { dry_run: extent.dry_run, ..CleanupReport::default() };
    if !extent.keep_ipvs {
        let device = if extent.dry_run { has_removable_device() } else { remove_device() };
        cleaned.note(DEVICE, device.map(|was_there| was_there.then(|| DEVICE.to_owned())));
    }
    cleaned.routes();
    if !extent.keep_ipvs {
        let kernel = if cleaned.dry_run { open_if_loaded() } else { KernelIpvs::open() };
        cleaned.virtual_servers(kernel, |address| !excluded.contains(address.ip));
    }
    cleaned.rules();
    cleaned.tunnels();
    if !extent.keep_ipvs {
        cleaned.leftovers(Scope { nftables_tables: extent.kube_proxy_nftables, forwarding_needed_in: None });
    }
    cleaned
}

/// Removes our virtual servers after new connections were [handed over](super::hand_over). With them IPVS
/// forgets what is still open, and so does conntrack: the client's next packet goes to the other proxy, and
/// is answered by a reset, as long as there are the VIPs from which the node itself has connected.
pub fn cut(served: &Served, open: &OpenConnections<impl Ipvs>) -> CleanupReport {
    let mut cleaned = CleanupReport::default();
    cleaned.cuts(open);
    cleaned.virtual_servers(KernelIpvs::open(), |address| served.has(address));
    cleaned
}

/// What a hand-over would remove in the end. Writes nothing.
pub fn foreseen(served: &Served) -> CleanupReport {
    let mut cleaned = CleanupReport { dry_run: true, ..CleanupReport::default() };
    cleaned.note(DEVICE, has_removable_device().map(|is_there| is_there.then(|| DEVICE.to_owned())));
    cleaned.virtual_servers(open_if_loaded(), |address| served.has(address));
    cleaned.after_the_cut();
    cleaned
}

/// Opens IPVS, which would load it, only if it is loaded.
pub(super) fn open_if_loaded() -> Result<KernelIpvs, ipvs::Error> {
    if has_ipvs() { KernelIpvs::open() } else { Err(ipvs::Error::NoIpvs) }
}

impl CleanupReport {
    /// Removes what is left after that. As long as virtual servers are, our tables are too: they say whose
    /// those are.
    pub fn after_the_cut(&mut self) {
        self.routes();
        if self.is_complete() {
            self.rules();
            self.tunnels();
        }
    }

    /// Notes the open connections as cut.
    pub fn cuts(&mut self, open: &OpenConnections<impl Ipvs>) {
        self.cut.extend(open.by_virtual_server().map(|(address, count)| format!("{count} to {address}")));
    }

    /// Whether everything that was found is removed.
    pub fn is_complete(&self) -> bool {
        self.stayed.is_empty()
    }

    fn note<E: std::error::Error + 'static>(&mut self, what: &str, removed: Result<Option<String>, E>) {
        match removed {
            Ok(removed) => self.removed.extend(removed),
            Err(error) => self.stays(what, &error),
        }
    }

    fn stays(&mut self, what: impl std::fmt::Display, why: &(dyn std::error::Error + 'static)) {
        self.stayed.push(format!("{what}: {}", one_line(why)));
    }

    fn tunnels(&mut self) {
        match if self.dry_run { tunnels() } else { remove_tunnels() } {
            Ok(removed) => self.removed.extend(removed.into_iter().map(str::to_owned)),
            Err(error) => self.stays("our tunnel devices", &error),
        }
    }

    fn routes(&mut self) {
        let remove = if self.dry_run { count_routes } else { remove_routes };
        let removed = remove(&BTreeSet::new());
        self.note("our routes", removed.map(|count| counted(count, "route to a VIP", "routes to VIPs")));
    }

    /// Our rules in the host's chains, and our tables.
    fn rules(&mut self) {
        self.our_rules(HostChains::open());
        self.our_rules(LegacyChains::open());
        for family in Family::BOTH {
            let table = format!("our nf_tables table of {family}");
            let remove = if self.dry_run { netfilter::is_installed } else { netfilter::uninstall };
            self.note(&table, remove(family).map(|was_there| was_there.then(|| table.clone())));
        }
    }

    /// Every virtual server with an address that `goes`.
    fn virtual_servers(
        &mut self,
        kernel: Result<impl Ipvs, ipvs::Error>,
        goes: impl Fn(&ServiceAddress) -> bool,
    ) {
        let goes = |id: &VirtualServerId| matches!(id, VirtualServerId::Address(address) if goes(address));
        let delete = || -> Result<(), ipvs::Error> {
            let mut kernel = match kernel {
                // Where there is no IPVS there are no virtual servers.
                Err(ipvs::Error::NoIpvs) => return Ok(()),
                kernel => kernel?,
            };
            let mut found: Vec<_> = kernel.virtual_servers()?.into_iter().map(|it| it.config.id).collect();
            // The kernel lists them in the order of a random hash.
            found.sort_unstable();
            let commands: Vec<_> = found.into_iter().filter(goes).map(Command::DeleteVirtualServer).collect();
            if self.dry_run {
                self.removed.extend(named(&commands));
                return Ok(());
            }
            let failed = kernel.apply(&commands)?;
            let deleted = commands.len().saturating_sub(failed.len());
            self.removed.extend(counted(deleted, "virtual server", "virtual servers"));
            for failed in failed {
                let server = commands.get(failed.index).map(|command| command.virtual_server().to_string());
                self.stayed.push(format!(
                    "virtual server {}: {}",
                    server.unwrap_or_default(),
                    failed.error.cause()
                ));
            }
            Ok(())
        };
        if let Err(error) = delete() {
            self.stays("the virtual servers", &error);
        }
    }

    /// Our rules in the host's own chains, which are known by their comment.
    fn our_rules(&mut self, chains: Result<impl FirewallChains, host_firewall::Error>) {
        let withdraw = || -> Result<(), host_firewall::Error> {
            let mut chains = chains?;
            for chain in chains.chains_with_our_rules()? {
                let rules = format!("our rules in the host's chain {chain}");
                let gone = if self.dry_run { Ok(true) } else { chains.withdraw(&chain) };
                self.note(&rules, gone.map(|was_there| was_there.then(|| rules.clone())));
            }
            Ok(())
        };
        if let Err(error) = withdraw() {
            self.stays("our rules in the host's chains", &error);
        }
    }

    fn leftovers(&mut self, scope: Scope) {
        let leftovers::Outcome { leftovers, stayed, unknown } = match Leftovers::open(scope) {
            Ok(mut leftovers) if self.dry_run => leftovers.find(),
            Ok(mut leftovers) => leftovers.remove(),
            Err(error) => return self.stays("what kube-proxy has left", &error),
        };
        self.removed.extend(leftovers.iter().map(|leftover| format!("kube-proxy's {leftover}")));
        for stayed in stayed {
            self.stays(&stayed, &stayed.why);
        }
        self.unknown.extend(unknown.iter().map(|one| format!("{one}: {}", one_line(&one.why))));
    }
}

/// How many virtual servers are named.
const MOST_NAMED: usize = 10;

/// The number of virtual servers that these would delete, and the first of them.
fn named(commands: &[Command]) -> Option<String> {
    let counted = counted(commands.len(), "virtual server", "virtual servers")?;
    let first: Vec<_> =
        commands.iter().take(MOST_NAMED).map(|command| command.virtual_server().to_string()).collect();
    let more = if commands.len() > MOST_NAMED { " …" } else { "" };
    Some(format!("{counted}: {}{more}", first.join(", ")))
}

fn counted(count: usize, one: &str, many: &str) -> Option<String> {
    match count {
        0 => None,
        1 => Some(format!("1 {one}")),
        _ => Some(format!("{count} {many}")),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use ipvs::{Protocol, Scheduler, VirtualServer};
    use netlink::Errno;
    use testkit::FakeKernel;

    use super::*;

    fn web(ip: &str) -> VirtualServerId {
        ServiceAddress { protocol: Protocol::Tcp, ip: ip.parse().unwrap(), port: 80 }.into()
    }

    fn kernel(ids: &[VirtualServerId]) -> FakeKernel {
        let kernel = FakeKernel::new();
        for id in ids {
            let server = VirtualServer::new(*id, Scheduler::RR);
            kernel.state().virtual_servers.insert(*id, (server, BTreeMap::new()));
        }
        kernel
    }

    fn left(kernel: &FakeKernel) -> Vec<VirtualServerId> {
        kernel.state().virtual_servers.keys().copied().collect()
    }

    /// What is done about the virtual servers but for those in 10.99.0.0/16.
    fn cleaned(kernel: &FakeKernel) -> CleanupReport {
        let excluded = Excluded::read(None, &["10.99.0.0/16".to_owned()]).unwrap();
        let mut cleaned = CleanupReport::default();
        cleaned.virtual_servers(Ok(kernel.clone()), |address| !excluded.contains(address.ip));
        cleaned
    }

    #[test]
    fn virtual_servers_that_are_excluded_or_of_a_firewall_mark_stay() {
        let of_others = [web("10.99.0.1"), VirtualServerId::Mark { mark: 7, family: Family::V4 }];
        let kernel = kernel(&[of_others[0], of_others[1], web("10.96.0.1"), web("fd00:96::1")]);
        let cleaned = cleaned(&kernel);
        assert_eq!((cleaned.removed, cleaned.stayed), (vec!["2 virtual servers".to_owned()], vec![]));
        let mut left = left(&kernel);
        left.sort_by_key(|id| *id != of_others[0]);
        assert_eq!(left, of_others);
    }

    #[test]
    fn a_dry_run_names_the_virtual_servers_and_removes_none() {
        let kernel = kernel(&[web("10.96.0.1"), web("10.96.0.2")]);
        let mut cleaned = CleanupReport { dry_run: true, ..CleanupReport::default() };
        cleaned.virtual_servers(Ok(kernel.clone()), |address| address.ip.is_ipv4());
        assert_eq!(cleaned.removed, ["2 virtual servers: TCP 10.96.0.1:80, TCP 10.96.0.2:80"]);
        assert_eq!((left(&kernel).len(), kernel.writes()), (2, String::new()));
    }

    #[test]
    fn one_that_is_refused_is_named_with_the_cause_and_the_others_go() {
        let kernel = kernel(&[web("10.96.0.1"), web("10.96.0.2"), web("10.96.0.3")]);
        // After the listing, the second.
        kernel.fail_call(2, Errno::ENOMEM);
        let cleaned = cleaned(&kernel);
        assert_eq!(cleaned.removed, ["2 virtual servers"]);
        let cause = Errno::ENOMEM;
        assert_eq!(cleaned.stayed, [format!("virtual server {}: {cause}", web("10.96.0.2"))]);
        assert!(!cleaned.is_complete());
        assert_eq!(left(&kernel), [web("10.96.0.2")]);
    }

    #[test]
    fn unreadable_kernel_is_reported_and_nothing_counts_as_removed() {
        let kernel = kernel(&[web("10.96.0.1")]);
        kernel.fail_call(0, Errno::EPERM);
        let cleaned = cleaned(&kernel);
        assert_eq!((cleaned.removed.len(), cleaned.stayed.len()), (0, 1));
        assert!(cleaned.stayed[0].starts_with("the virtual servers: cannot list"), "{:?}", cleaned.stayed);
    }
}
