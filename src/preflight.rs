//! The preflight: what would happen on this node if a daemon started, found out without changing anything.

use dummy_interface::{DummyInterface, KernelDummyInterface, VipBinding};
use netfilter::{HostFirewall, KernelNetfilter, LocalTraffic, Netfilter, Policy};
use serde::{Serialize, Serializer};
use service::one_line;
use watcher::Observed;

use crate::{
    checks::{self, BeforeStart, FirstSync, KernelRead, Modules, missing_features},
    config::Settings,
    daemon::WithoutDaemon,
    finding::{Finding, Severity},
    node::{families, requirements, sysctl::Sysctl},
};

/// What was found, in the order of the checks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The name of the node, if the daemon's flags are known.
    pub node: Option<String>,
    /// The worst severity.
    pub verdict: Severity,
    /// The findings.
    #[serde(serialize_with = "with_verdicts")]
    pub findings: Vec<Finding>,
}

/// A finding as `preflight -o json` prints it.
#[derive(Serialize)]
struct Printed<'a> {
    verdict: Severity,
    subject: &'a str,
    what: &'a str,
    remedy: Option<&'a str>,
}

fn with_verdicts<S: Serializer>(findings: &[Finding], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(findings.iter().map(|Finding { severity, subject, what, remedy, .. }| Printed {
        verdict: *severity,
        subject,
        what,
        remedy: remedy.as_deref(),
    }))
}

impl Report {
    /// The report with these findings.
    pub fn new(node: Option<String>, findings: Vec<Finding>) -> Self {
        let verdict = findings.iter().map(|finding| finding.severity).max().unwrap_or_default();
        Self { node, verdict, findings }
    }

    /// The report after a finding about the configuration.
    #[must_use]
    pub fn after(self, finding: Finding) -> Self {
        Self::new(self.node, [finding].into_iter().chain(self.findings).collect())
    }
}

/// Checks this node for a daemon with these settings. Without settings only what needs neither them nor an
/// API server is checked.
pub fn preflight(settings: Option<&Settings>) -> Report {
    let mut preflight = Preflight { settings, findings: Vec::new() };
    match requirements::net_admin() {
        Ok(()) => preflight.check(),
        // The kernel would refuse every request.
        Err(error) => preflight.findings.push(Finding::problem("rights", one_line(&error))),
    }
    Report::new(settings.map(|settings| settings.services.node_name.to_string()), preflight.findings)
}

struct Preflight<'a> {
    settings: Option<&'a Settings>,
    findings: Vec<Finding>,
}

impl<'a> Preflight<'a> {
    /// Reads what the checks need, and runs them.
    fn check(&mut self) {
        let mut services = self.services();
        let policy = self.policy(services.as_ref());
        let binding = self.vip_binding(services.as_ref());
        let kernel = self.kernel(&policy, binding);
        if let Some(services) = &mut services {
            services.adopt_tunnels(&kernel.observed.virtual_servers);
        }
        let state = services.as_ref().map(WithoutDaemon::state);
        let first_sync = services.as_ref().map(|services| FirstSync {
            plan: services.compare_with(&kernel.observed),
            kept: services.ours().kept(services.state(), &kernel.observed).collect(),
        });
        let virtual_servers = kernel.observed.virtual_servers.len();
        let mut node = BeforeStart::new(self.settings, state, first_sync, policy, kernel);
        self.findings.extend(checks::before_start(&mut node));
        if self.settings.is_none() {
            self.unchecked(virtual_servers);
        }
    }

    /// Keeps a value that could be read, and reports what could not.
    fn kept<T>(&mut self, subject: &str, read: Result<T, impl Into<anyhow::Error>>) -> Option<T> {
        match read {
            Ok(value) => Some(value),
            Err(error) => {
                self.findings.push(Finding::problem(subject, one_line(error.into().as_ref())));
                None
            }
        }
    }

    /// Lists the Services, if it is known where they come from.
    fn services(&mut self) -> Option<WithoutDaemon<'a>> {
        let settings = self.settings?;
        self.findings.extend(settings.warnings.iter().map(|warning| Finding::note("configuration", warning)));
        let serves = families::serves(&families::families(), settings.effective.bind_address());
        self.kept("configuration", serves);
        let services = self.kept("Services", WithoutDaemon::read(settings))?;
        self.findings.extend(services.doubts().into_iter().map(|doubt| Finding::warning("Node", doubt)));
        Some(services)
    }

    /// The policy of our tables; where it is not known, one with the same mark.
    fn policy(&mut self, services: Option<&WithoutDaemon<'_>>) -> Policy {
        let nothing_known = LocalTraffic::Source { ipv4: None, ipv6: None };
        let policy = services.and_then(|services| self.kept("Node", services.policy()));
        policy.unwrap_or_else(|| match self.settings {
            Some(settings) => settings.policy(nothing_known),
            None => Policy { host_firewall: HostFirewall::Warn, ..Policy::new(nothing_known) },
        })
    }

    fn vip_binding(&mut self, services: Option<&WithoutDaemon<'_>>) -> VipBinding {
        services.and_then(|services| self.kept("kube-ipvs0", services.vip_binding())).unwrap_or_default()
    }

    /// Reads the kernel, as far as that loads no module.
    fn kernel(&mut self, policy: &Policy, binding: VipBinding) -> KernelRead {
        let release = Sysctl::default().release();
        let modules = Modules::read("/".as_ref(), &release);
        let open = requirements::open_ipvs_with_info;
        let mut ipvs = requirements::has_ipvs().then(|| self.kept("IPVS", open())).flatten();
        let ipvs_timeouts = ipvs.as_mut().and_then(|(ipvs, _)| self.kept("IPVS", ipvs.timeouts()));
        let virtual_servers = ipvs
            .as_mut()
            .and_then(|(ipvs, _)| self.kept("IPVS", Observed::virtual_servers(ipvs)))
            .unwrap_or_default();
        let missing = missing_features(&modules, &release);
        let observe = || KernelNetfilter::open_unprobed(policy, missing)?.observe();
        let netfilter = modules.ask_nf_tables(observe).and_then(|read| self.kept("nf_tables", read));
        let observe = || KernelDummyInterface::open(binding)?.with_gue(policy.gue).observe();
        let dummy_interface = self.kept("kube-ipvs0", observe()).unwrap_or_default();
        let nf_tables = netfilter.is_some() && modules.may_ask_nf_tables();
        let netfilter = netfilter.unwrap_or_default();
        let observed = Observed { virtual_servers, dummy_interface, netfilter };
        KernelRead { release, modules, ipvs, ipvs_timeouts, observed, nf_tables }
    }

    /// What needs the daemon's flags.
    fn unchecked(&mut self, virtual_servers: usize) {
        self.findings.push(Finding::note(
            "virtual servers",
            format!(
                "{virtual_servers} in IPVS; which of them belong to no Service is not known without the daemon's flags"
            ),
        ));
        self.findings.push(Finding::note(
            "the rest",
            "not checked without the daemon's flags: planned changes, kernel parameters, ports and Services; try: \
             kube-ipvs preflight -- FLAGS",
        ));
    }
}
