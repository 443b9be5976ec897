//! One look at the node: reads what the checks need, in the order of the report.

use std::net::SocketAddr;

use dummy_interface::{DummyInterface, KernelDummyInterface, VipBinding};
use host_rules::host_firewall::{FirewallChains as _, HostChains, LegacyChains};
use ipvs::{Info, Ipvs, KernelIpvs};
use netfilter::{HostFirewall, KernelNetfilter, LocalTraffic, Netfilter, Policy};
use reconciler::NodeUsage;
use serde::Serialize;
use service::one_line;
use watcher::Observed;

use super::{
    Finding, Verdict, arp, firewall,
    kernel::{self, DirectReturnFacts, KernelFacts, SchedulerFacts},
    modules::{Modules, Presence},
    parameters,
    plan::{self, Wanted},
    ports::{self, WantedPort},
    proxy::{self, Proxies},
    read, refused,
};
use crate::{
    config::{self, Settings, file::defaults::MASQUERADE_BIT},
    daemon::WithoutDaemon,
    node::{
        advice::NodeSettings,
        families, requirements,
        sysctl::{Change, Sysctl},
    },
    takeover::{
        leftovers::{NodeRules, RuleSource},
        live_proxy::{self, LiveProxy},
    },
};

/// What was found, in the order of the checks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The name of the node, if the daemon's flags are known.
    pub node: Option<String>,
    /// The worst of the verdicts.
    pub verdict: Verdict,
    /// The findings.
    pub findings: Vec<Finding>,
}

impl Report {
    /// The report with these findings.
    pub fn new(node: Option<String>, findings: Vec<Finding>) -> Self {
        let verdict = findings.iter().map(|finding| finding.verdict).max().unwrap_or_default();
        Self { node, verdict, findings }
    }

    /// The report after the reason why a daemon would not start at all.
    #[must_use]
    pub fn after(self, error: &config::Error) -> Self {
        let problem = Finding::problem("configuration", one_line(error));
        Self::new(self.node, [problem].into_iter().chain(self.findings).collect())
    }
}

/// Looks at this node, for a daemon with these settings. Without settings only what needs neither them nor an API server
/// is looked at.
pub fn look(settings: Option<&Settings>) -> Report {
    let mut look = Look { settings, findings: Vec::new() };
    match requirements::net_admin() {
        Ok(()) => look.at_everything(),
        // The kernel would answer no question.
        Err(error) => look.findings.push(Finding::problem("rights", one_line(&error))),
    }
    Report::new(settings.map(|settings| settings.node_name.clone()), look.findings)
}

const NF_TABLES: &str = "nf_tables";

/// What nf_tables answers. Nothing is in it where it is not loaded yet; `None` where that is not known.
fn of_nf_tables<T: Default, E>(
    modules: &Modules,
    ask: impl FnOnce() -> Result<T, E>,
) -> Option<Result<T, E>> {
    if modules.may_ask(NF_TABLES) {
        Some(ask())
    } else {
        (modules.presence(NF_TABLES) != Presence::Unknown).then(|| Ok(T::default()))
    }
}

struct Look<'a> {
    settings: Option<&'a Settings>,
    findings: Vec<Finding>,
}

/// What was read of the kernel; empty where nothing is there or could be read.
struct Seen {
    release: String,
    modules: Modules,
    ipvs: Option<(KernelIpvs, Info)>,
    observed: Observed,
    /// Whether nf_tables has answered.
    nf_tables: bool,
}

impl<'a> Look<'a> {
    fn at_everything(&mut self) {
        let mut node = self.services();
        let policy = self.policy(node.as_ref());
        let binding = self.vip_binding(node.as_ref());
        let mut seen = self.kernel(&policy, binding);
        if let Some(node) = &mut node {
            node.adopt_tunnels(&seen.observed.virtual_servers);
        }
        self.requirements(node.as_ref(), policy.gue, &mut seen);
        self.proxy(&seen, &policy);
        if let Some(node) = &node {
            self.first_sync(node, &seen.observed);
        }
        let direct_return = node.as_ref().is_some_and(|node| !node.unpacks().is_empty());
        let changes = self.settings.map(|settings| self.parameters(settings, direct_return, &mut seen));
        self.firewall(&seen, &policy);
        if let (Some(node), Some(settings)) = (&node, self.settings) {
            self.node_settings(node, settings, changes.unwrap_or_default(), &mut seen);
        }
        match self.settings {
            Some(settings) => self.ports(settings, node.as_ref()),
            None => self.rest(&seen.observed),
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
        let node = self.kept("Services", WithoutDaemon::look(settings))?;
        self.findings.extend(node.doubts().into_iter().map(|doubt| Finding::warning("Node", doubt)));
        Some(node)
    }

    /// The policy of our tables; where it is not known, one with the same mark.
    fn policy(&mut self, node: Option<&WithoutDaemon<'_>>) -> Policy {
        let nothing_known = LocalTraffic::Source { ipv4: None, ipv6: None };
        let policy = node.and_then(|node| self.kept("Node", node.policy()));
        policy.unwrap_or_else(|| match self.settings {
            Some(settings) => settings.policy(nothing_known),
            None => Policy {
                masquerade_all: false,
                mark: 1 << MASQUERADE_BIT,
                local_traffic: nothing_known,
                host_firewall: HostFirewall::Warn,
                gue: false,
            },
        })
    }

    fn vip_binding(&mut self, node: Option<&WithoutDaemon<'_>>) -> VipBinding {
        node.and_then(|node| self.kept("kube-ipvs0", node.vip_binding())).unwrap_or_default()
    }

    /// Reads the kernel, as far as that loads no module.
    fn kernel(&mut self, policy: &Policy, binding: VipBinding) -> Seen {
        let release = read::release();
        let modules = Modules::read("/".as_ref(), &release);
        let open = || -> Result<_, requirements::Error> {
            let mut ipvs = requirements::open_ipvs()?;
            let info = ipvs.info()?;
            Ok((ipvs, info))
        };
        let mut ipvs = read::has_ipvs().then(|| self.kept("IPVS", open())).flatten();
        let virtual_servers = ipvs
            .as_mut()
            .and_then(|(ipvs, _)| self.kept("IPVS", Observed::virtual_servers(ipvs)))
            .unwrap_or_default();
        let missing = kernel::missing_features(&modules, &release);
        let observe = || KernelNetfilter::open_unprobed(policy, missing)?.observe();
        let netfilter = of_nf_tables(&modules, observe).and_then(|read| self.kept("nf_tables", read));
        let observe = || KernelDummyInterface::open(binding)?.with_gue(policy.gue).observe();
        let dummy_interface = self.kept("kube-ipvs0", observe()).unwrap_or_default();
        let nf_tables = netfilter.is_some() && modules.may_ask(NF_TABLES);
        let netfilter = netfilter.unwrap_or_default();
        let observed = Observed { virtual_servers, dummy_interface, netfilter };
        Seen { release, modules, ipvs, observed, nf_tables }
    }

    fn requirements(&mut self, node: Option<&WithoutDaemon<'_>>, gue: bool, seen: &mut Seen) {
        let Seen { release, modules, ipvs, observed, nf_tables } = seen;
        let scheduler = self.settings.map(|settings| settings.scheduler).map(|scheduler| SchedulerFacts {
            scheduler,
            in_use: observed.virtual_servers.values().any(|server| server.config().scheduler == scheduler),
            may_load: ipvs.as_mut().is_none_or(|(ipvs, _)| ipvs.may_load(scheduler)),
        });
        self.findings.extend(kernel::check(&KernelFacts {
            release,
            modules,
            ipvs: ipvs.as_ref().map(|(_, info)| info.version),
            scheduler,
            nf_tables: *nf_tables,
            families: &families::families(),
            device: observed.dummy_interface.device,
            direct_return: DirectReturnFacts {
                families: node.map(WithoutDaemon::unpacks).unwrap_or_default(),
                gue,
            },
        }));
    }

    fn proxy(&mut self, seen: &Seen, policy: &Policy) {
        let netfilter = &seen.observed.netfilter;
        let find = || NodeRules::new(policy.clone()).find();
        let leftovers = match of_nf_tables(&seen.modules, find) {
            Some(found) => self.kept("kube-proxy's rules", found),
            None => {
                self.findings.push(proxy::not_looked_for());
                None
            }
        };
        let proxies = Proxies {
            kube_ipvs: read::kube_ipvs(self.settings),
            locks: read::locks(self.settings),
            live: LiveProxy::find(),
            our_tables: !(netfilter.installed.is_empty() && netfilter.elements.is_empty()),
            leftovers,
        };
        self.findings.extend(proxy::check(&proxies));
    }

    fn first_sync(&mut self, node: &WithoutDaemon<'_>, observed: &Observed) {
        let state = node.state();
        let wanted = Wanted {
            virtual_servers: state.virtual_servers().count(),
            real_servers: state.virtual_servers().map(|server| server.real_servers.len()).sum(),
            vips: state.vips().count(),
        };
        let kept = node.ours().kept(state, observed).collect();
        let bound = &observed.dummy_interface.bound;
        self.findings.extend(plan::check(&node.compare_with(observed), wanted, &kept, bound));
        self.findings.extend(refused::check(state.reports().refused()));
    }

    /// Reports the parameters that the start would set, and returns them.
    fn parameters(&mut self, settings: &Settings, direct_return: bool, seen: &mut Seen) -> Vec<Change> {
        let sysctl = Sysctl::default();
        let may_tunnel = settings.external_forwarding_method.may_tunnel();
        let needed = sysctl.to_set(settings.strict_arp, may_tunnel).into_iter().map(|differing| Change {
            key: differing.key,
            found: differing.found,
            wanted: differing.wanted.to_owned(),
        });
        let mut changes: Vec<_> = needed.chain(sysctl.ipvs_table_changes()).collect();
        match sysctl.conntrack_changes(&settings.conntrack) {
            Ok(of_conntrack) => changes.extend(of_conntrack),
            Err(error) => {
                let what =
                    format!("not known before the module nf_conntrack is loaded: {}", one_line(&error));
                self.findings.push(Finding::note("conntrack", what));
            }
        }
        self.findings.extend(sysctl.loose_conntrack().filter(|_| direct_return).map(|it| {
            Finding::warning(it.key, format!("{} and not {}: {}", it.found, it.wanted, it.otherwise))
                .remedy(format!("sysctl -w {}={}", it.key, it.wanted))
        }));
        if seen.ipvs.is_none() {
            let what = "not known before the module ip_vs is loaded; the daemon sets what it needs of them";
            self.findings.push(Finding::note("net.ipv4.vs", what));
        }
        let timeouts = seen.ipvs.as_mut().and_then(|(ipvs, _)| self.kept("IPVS", ipvs.timeouts()));
        let timeouts = timeouts.and_then(|found| requirements::different(found, settings.ipvs_timeouts));
        self.findings.extend(parameters::check(&changes, timeouts));
        changes
    }

    fn firewall(&mut self, seen: &Seen, policy: &Policy) {
        let nf_tables = of_nf_tables(&seen.modules, || HostChains::open()?.closed_chains(policy));
        let legacy = LegacyChains::open()
            .and_then(|mut chains| Ok((chains.closed_chains(policy)?, chains.unseen().to_vec())));
        self.findings.extend(firewall::check(nf_tables, legacy, policy));
    }

    /// What of the node's settings, as the start leaves them, hurts the Services that are known.
    fn node_settings(
        &mut self,
        node: &WithoutDaemon<'_>,
        settings: &Settings,
        changes: Vec<Change>,
        seen: &mut Seen,
    ) {
        let in_use = NodeUsage::from_state(node.state());
        let timeouts = seen.ipvs.as_mut().and_then(|(ipvs, _)| ipvs.timeouts().ok());
        let timeouts = timeouts.map(|found| requirements::resulting(found, settings.ipvs_timeouts));
        let on_node = NodeSettings::of_this_node().with(changes);
        let advice = on_node.check(&in_use, settings.masquerade_all, timeouts);
        self.findings.extend(advice.into_iter().map(Finding::from));
        if !settings.strict_arp
            && let Some(networks) = self.kept("interfaces", read::networks())
        {
            self.findings.extend(arp::check(&networks, &read::external(node.state())));
        }
    }

    fn ports(&mut self, settings: &Settings, node: Option<&WithoutDaemon<'_>>) {
        let hard_fail = settings.bind_address_hard_fail;
        let configured =
            [("health checks", settings.healthz_bind_address), ("metrics", settings.metrics_bind_address)];
        let configured = configured.into_iter().filter_map(|(what, address)| {
            Some(WantedPort { what: what.to_owned(), address: address?, hard_fail })
        });
        let of_services = node.into_iter().flat_map(|node| node.state().reports().health_checks());
        let of_services = of_services.map(|(service, health_check)| WantedPort {
            what: format!("health checks of {service}"),
            address: SocketAddr::from(([0; 4], health_check.port.get())),
            hard_fail: false,
        });
        let wanted: Vec<_> = configured.chain(of_services).collect();
        self.findings.extend(ports::check(&wanted, &read::listening(), live_proxy::listens));
    }

    /// What is known without the daemon's flags, and what is not.
    fn rest(&mut self, observed: &Observed) {
        let count = observed.virtual_servers.len();
        self.findings.push(Finding::note(
            "virtual servers",
            format!("{count} in IPVS; which of them no Service made is not known without the daemon's flags"),
        ));
        self.findings.push(Finding::note(
            "the rest",
            "what would be removed and written, kernel parameters, ports and Services need the daemon's flags: \
             kube-ipvs preflight -- FLAGS",
        ));
    }
}
