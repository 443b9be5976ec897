//! Checks continuously that what can be reached would be masqueraded.

use std::{
    net::IpAddr,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use dummy_interface::RouteLookup;
use ipnet::IpNet;
use ipvs::{Family, Ipvs as _, KernelIpvs, Protocol, ServiceAddress};
use netfilter::{Element, KernelNetfilter, LocalTraffic, Netfilter as _, Observed, Policy};
use testkit::{
    daemon::eventually,
    lab::{CLUSTER_CIDR, Host},
};

use super::SERVICE;

/// The index of `lo`, by which the node reaches its own addresses.
const LOOPBACK: u32 = 1;

/// A pause between two looks.
const PAUSE: Duration = Duration::from_millis(10);

/// A thread on the node that checks until it is stopped.
pub(crate) struct Watch {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<Result<Seen>>>,
}

/// What was seen.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// How often each VIP was looked at.
    pub(crate) looks: usize,
    /// How often it was masqueraded by our table, and how often by kube-proxy's rules alone.
    pub(crate) by_ours: usize,
    pub(crate) by_kube_proxy: usize,
    /// VIPs that could be reached and would not have been masqueraded.
    pub(crate) bare: Vec<String>,
    /// VIPs that could not be reached.
    pub(crate) gone: Vec<String>,
}

impl Watch {
    pub(crate) fn start(node: &Host) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&stop);
        let thread = node.spawn(move || look_until(&seen)).unwrap();
        Self { stop, thread }
    }

    pub(crate) fn finish(self) -> Seen {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap().unwrap().unwrap()
    }
}

fn look_until(stop: &AtomicBool) -> Result<Seen> {
    let (mut kernel, mut routes) = (KernelIpvs::open()?, RouteLookup::open()?);
    let mut tables = KernelNetfilter::open(&policy()?)?;
    let mut seen = Seen::default();
    while !stop.load(Ordering::Relaxed) {
        for (cluster_ip, load_balancer) in SERVICE.cluster_ips.into_iter().zip(SERVICE.load_balancers) {
            let vips: [IpAddr; 2] = [cluster_ip.parse()?, load_balancer.parse()?];
            seen.looks += 1;
            for vip in vips {
                if !is_live(&mut kernel, &mut routes, vip)? {
                    seen.gone.push(vip.to_string());
                }
            }
            // The proxy that takes over has its rules before the other's go. So if ours are not there, and then the
            // others are not, ours must have come meanwhile.
            if by_ours(&mut tables, vips) {
                seen.by_ours += 1;
            } else if by_kube_proxy(vips)? {
                seen.by_kube_proxy += 1;
            } else if !by_ours(&mut tables, vips) {
                seen.bare.push(format!("{vips:?}"));
            }
        }
        thread::sleep(PAUSE);
    }
    Ok(seen)
}

/// What kube-ipvs runs with here.
fn policy() -> Result<Policy> {
    let ranges = CLUSTER_CIDR.split(',').map(str::parse).collect::<Result<Vec<IpNet>, _>>()?;
    let ipv4 = ranges.iter().find_map(|range| if let IpNet::V4(range) = range { Some(*range) } else { None });
    let ipv6 = ranges.iter().find_map(|range| if let IpNet::V6(range) = range { Some(*range) } else { None });
    Ok(Policy::new(LocalTraffic::Source { ipv4, ipv6 }))
}

/// Whether the VIP is an address of the node, and has a virtual server.
fn is_live(kernel: &mut KernelIpvs, routes: &mut RouteLookup, vip: IpAddr) -> Result<bool> {
    let address = ServiceAddress { protocol: Protocol::Tcp, ip: vip, port: 80 };
    Ok(routes.interface_to(vip)? == Some(LOOPBACK) && kernel.virtual_server(address.into())?.is_some())
}

/// Whether our table is there, with every rule, and has the elements that have these masqueraded. One that cannot be
/// read is just being removed, and counts as gone.
fn by_ours(tables: &mut KernelNetfilter, [cluster_ip, load_balancer]: [IpAddr; 2]) -> bool {
    let Ok(Observed { installed, elements, .. }) = tables.observe() else { return false };
    let at = |ip| ServiceAddress { protocol: Protocol::Tcp, ip, port: 80 };
    installed.contains(&Family::from(cluster_ip))
        && elements.contains(&Element::ClusterIp(at(cluster_ip)))
        && elements.contains(&Element::External(at(load_balancer)))
}

/// Whether kube-proxy's sets have the VIPs, and its rules look there, mark, and masquerade.
fn by_kube_proxy([cluster_ip, load_balancer]: [IpAddr; 2]) -> Result<bool> {
    let (prefix, save) =
        if cluster_ip.is_ipv6() { ("KUBE-6-", "ip6tables-save") } else { ("KUBE-", "iptables-save") };
    for (set, vip) in [("CLUSTER-IP", cluster_ip), ("LOAD-BALANCER", load_balancer)] {
        let entry = format!("{vip},tcp:80");
        if !succeeds(Command::new("ipset").args(["-q", "test", &format!("{prefix}{set}"), &entry]))? {
            return Ok(false);
        }
    }
    // It gives up where the rules change while it lists them, as they do at a takeover.
    let rules = eventually(save, || {
        let rules = Command::new(save).args(["-t", "nat"]).output()?;
        ensure!(rules.status.success(), "{rules:?}");
        Ok(String::from_utf8(rules.stdout)?)
    })?;
    let has = |chain: &str, words: [&str; 2]| {
        let chain = format!("-A {chain} ");
        rules.lines().any(|rule| rule.starts_with(&chain) && words.iter().all(|word| rule.contains(word)))
    };
    Ok([
        ("PREROUTING", ["-j KUBE-SERVICES", ""]),
        ("OUTPUT", ["-j KUBE-SERVICES", ""]),
        ("POSTROUTING", ["-j KUBE-POSTROUTING", ""]),
        ("KUBE-SERVICES", [&*format!("{prefix}CLUSTER-IP "), "-j KUBE-MARK-MASQ"]),
        ("KUBE-SERVICES", [&*format!("{prefix}LOAD-BALANCER "), "-j KUBE-LOAD-BALANCER"]),
        ("KUBE-LOAD-BALANCER", ["-j KUBE-MARK-MASQ", ""]),
        ("KUBE-MARK-MASQ", ["-j MARK", ""]),
        ("KUBE-POSTROUTING", ["-j MASQUERADE", ""]),
    ]
    .into_iter()
    .all(|(chain, words)| has(chain, words)))
}

fn succeeds(command: &mut Command) -> Result<bool> {
    Ok(command.output().with_context(|| format!("{command:?}"))?.status.success())
}
