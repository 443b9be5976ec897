//! The kernel: whether it has what the daemon asks of it. Nothing is tried, because that would load modules
//! and write; what only a try would show is reported as unknown.

use std::collections::{BTreeMap, BTreeSet};

use dummy_interface::DEVICE;
use ipvs::{Family, Ipvs as _, Scheduler};
use netfilter::{Feature, tunnel};
use service::State;

use super::{
    BeforeStart,
    modules::{Modules, Presence},
};
use crate::{
    finding::Finding,
    node::{families, requirements, sysctl::parse_release},
};

/// What is known of the kernel.
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
struct KernelFacts<'a> {
    /// As `uname -r` has it.
    release: &'a str,
    modules: &'a Modules,
    /// The version of IPVS, if it is there.
    ipvs: Option<(u8, u8, u8)>,
    scheduler: Option<SchedulerFacts>,
    /// Whether nf_tables has answered.
    nf_tables: bool,
    families: &'a BTreeSet<Family>,
    /// Whether there is a kube-ipvs0.
    device: bool,
    /// The families in which a Service is answered directly.
    unpacking: BTreeSet<Family>,
    /// Whether tunnels are those of generic UDP encapsulation.
    gue: bool,
    /// Whether conntrack is to leave out connections of pods.
    untracked: bool,
}

/// The scheduler that is configured.
struct SchedulerFacts {
    scheduler: Scheduler,
    /// Whether a virtual server has it.
    in_use: bool,
    /// Whether it can be loaded without harm.
    may_load: bool,
}

/// What our table of a family can use of nf_tables.
const FEATURES: [Feature; 9] = [
    Feature::Tables,
    Feature::IntervalSets,
    Feature::NatChains,
    Feature::Conntrack,
    Feature::DestinationNat,
    Feature::Masquerade,
    Feature::Reject,
    Feature::Counters,
    Feature::Untracking,
];

/// The module that a feature is in, on a kernel of this release.
fn module_of(feature: Feature, family: Family, release: &str) -> &'static str {
    match (feature, family) {
        (Feature::Counters, _) if parse_release(release).is_some_and(|it| it < COUNTERS_BUILT_IN) => {
            "nft_objref"
        }
        (Feature::Tables | Feature::IntervalSets | Feature::Counters, _) => "nf_tables",
        (Feature::NatChains, _) => "nft_chain_nat",
        (Feature::Conntrack, _) => "nft_ct",
        (Feature::DestinationNat, _) => "nft_nat",
        (Feature::Masquerade, _) => "nft_masq",
        (Feature::Reject, Family::V4) => "nft_reject_ipv4",
        (Feature::Reject, Family::V6) => "nft_reject_ipv6",
        (Feature::Untracking, Family::V4) => "nft_fib_ipv4",
        (Feature::Untracking, Family::V6) => "nft_fib_ipv6",
    }
}

/// The first kernel with interval sets.
const INTERVAL_SETS: (u32, u32) = (5, 6);
/// The first kernel in which nf_tables itself refers to counters from rules (net/netfilter/Makefile).
const COUNTERS_BUILT_IN: (u32, u32) = (6, 2);

const INSTALL: &str = "install the package with the modules of this kernel; docs/node.md lists them";

/// The features that the kernel is known to lack.
pub(crate) fn missing_features(modules: &Modules, release: &str) -> BTreeMap<Family, Vec<Feature>> {
    let missing = |family| {
        let is_missing =
            |feature: &Feature| presence(*feature, family, modules, release) == Presence::Missing;
        (family, FEATURES.into_iter().filter(is_missing).collect())
    };
    Family::BOTH.into_iter().map(missing).collect()
}

fn presence(feature: Feature, family: Family, modules: &Modules, release: &str) -> Presence {
    let is_too_old = feature == Feature::IntervalSets
        && parse_release(release).is_some_and(|release| release < INTERVAL_SETS);
    if is_too_old { Presence::Missing } else { modules.presence(module_of(feature, family, release)) }
}

/// Whether the kernel has what the daemon asks of it, with the configured scheduler where it is known.
pub(super) fn check(node: &mut BeforeStart<'_>) -> Vec<Finding> {
    let kernel = &mut node.kernel;
    let servers = &kernel.observed.virtual_servers;
    let scheduler =
        node.settings.map(|settings| settings.services.scheduler).map(|scheduler| SchedulerFacts {
            scheduler,
            in_use: servers.values().any(|server| server.config().scheduler == scheduler),
            may_load: kernel.ipvs.as_mut().is_none_or(|(ipvs, _)| ipvs.may_load(scheduler)),
        });
    parts(&KernelFacts {
        release: &kernel.release,
        modules: &kernel.modules,
        ipvs: kernel.ipvs.as_ref().map(|(_, info)| info.version),
        scheduler,
        nf_tables: kernel.nf_tables,
        families: &families::families(),
        device: kernel.observed.dummy_interface.device,
        unpacking: node.state.map(State::unpacking).unwrap_or_default(),
        gue: node.policy.gue,
        untracked: !node.policy.untracked_pods.is_empty(),
    })
}

/// One finding for each part of the kernel, and for each feature of nf_tables that is missing.
fn parts(facts: &KernelFacts<'_>) -> Vec<Finding> {
    let mut findings = vec![Finding::ok("kernel", format!("Linux {}", facts.release)), ipvs(facts)];
    findings.extend(facts.scheduler.as_ref().map(|scheduler| self::scheduler(scheduler, facts)));
    for family in facts.families {
        findings.extend(nf_tables(*family, facts));
    }
    findings.push(match facts.device {
        true => Finding::ok(DEVICE, "present"),
        false => module(DEVICE, "dummy", facts),
    });
    findings.extend(direct_return(facts));
    findings
}

/// Whether the kernel has what direct return asks of it; otherwise Services are served all the same.
fn direct_return(facts: &KernelFacts<'_>) -> Vec<Finding> {
    const SUBJECT: &str = "direct return";
    const MASQUERADED: &str = "Services are served masqueraded";
    if facts.unpacking.is_empty() {
        return Vec::new();
    }
    let tunnels = facts.unpacking.iter().map(|family| (tunnel::module(*family), MASQUERADED));
    let gue = facts.gue.then_some(("fou", MASQUERADED));
    let needed = tunnels.chain(gue).chain([("ip_vs_mh", "nodes choose differently")]);
    let finding = |(name, otherwise): (&str, _)| match facts.modules.presence(name) {
        Presence::Missing => {
            let what = format!("the kernel has no module {name}: {otherwise}");
            Finding::warning(SUBJECT, what).remedy(INSTALL)
        }
        _ => module(SUBJECT, name, facts),
    };
    needed.map(finding).collect()
}

fn ipvs(facts: &KernelFacts<'_>) -> Finding {
    match facts.ipvs {
        Some((major, minor, patch)) => {
            Finding::ok("IPVS", format!("version {major}.{minor}.{patch} is loaded"))
        }
        // It would have shown itself.
        None if facts.modules.may_ask("ip_vs") => {
            Finding::problem("IPVS", "the kernel has no module ip_vs").remedy(INSTALL)
        }
        None => module("IPVS", "ip_vs", facts),
    }
}

fn scheduler(
    SchedulerFacts { scheduler, in_use, may_load }: &SchedulerFacts,
    facts: &KernelFacts<'_>,
) -> Finding {
    let subject = format!("scheduler {scheduler}");
    if *in_use {
        Finding::ok(subject, "in use by a virtual server")
    } else if *may_load {
        module(&subject, &format!("ip_vs_{scheduler}"), facts)
    } else {
        Finding::problem(subject, requirements::Error::SchedulerNotLoaded(*scheduler).to_string())
    }
}

fn nf_tables(family: Family, facts: &KernelFacts<'_>) -> Vec<Finding> {
    let subject = format!("nf_tables, {family}");
    let mut unknown = BTreeSet::new();
    let mut findings = Vec::new();
    let is_used = |feature: &Feature| *feature != Feature::Untracking || facts.untracked;
    for feature in FEATURES.into_iter().filter(is_used) {
        match presence(feature, family, facts.modules, facts.release) {
            Presence::Missing => {
                let Some(lost) = feature.lost_without() else {
                    let error = requirements::Error::NfTables { family, feature };
                    findings.push(Finding::problem(&subject, error.to_string()).remedy(INSTALL));
                    if feature == Feature::Tables {
                        return findings;
                    }
                    continue;
                };
                let what = format!("the kernel lacks {feature}: {lost}");
                findings.push(match feature {
                    Feature::IntervalSets => Finding::warning(&subject, what).remedy("Linux 5.6 or later"),
                    _ => Finding::note(&subject, what).remedy(INSTALL),
                });
            }
            // What has answered is there.
            Presence::Unknown
                if facts.nf_tables && module_of(feature, family, facts.release) == "nf_tables" => {}
            Presence::Unknown => _ = unknown.insert(module_of(feature, family, facts.release)),
            Presence::Here | Presence::Loadable => {}
        }
    }
    if !unknown.is_empty() {
        let unknown: Vec<_> = unknown.into_iter().collect();
        findings.push(not_tried(&subject, &unknown.join(", "), facts));
    }
    if findings.is_empty() {
        findings.push(Finding::ok(subject, "has every feature that is used"));
    }
    findings
}

/// Whether the kernel has what one module does.
fn module(subject: &str, module: &str, facts: &KernelFacts<'_>) -> Finding {
    match facts.modules.presence(module) {
        Presence::Here => Finding::ok(subject, format!("{module} is loaded")),
        Presence::Loadable => {
            Finding::ok(subject, format!("the daemon makes the kernel load the module {module}"))
        }
        Presence::Missing => {
            Finding::problem(subject, format!("the kernel has no module {module}")).remedy(INSTALL)
        }
        Presence::Unknown => not_tried(subject, module, facts),
    }
}

fn not_tried(subject: &str, modules: &str, facts: &KernelFacts<'_>) -> Finding {
    let what =
        format!("unknown whether the kernel has {modules}: /lib/modules/{} does not list it", facts.release);
    Finding::note(subject, what)
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;
    use crate::finding::Severity;

    /// The modules of a kernel that has all of these, but not loaded.
    fn with(modules: &[&str]) -> Modules {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, content: &str| {
            let file = root.path().join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, content).unwrap();
        };
        write("proc/modules", "");
        write("lib/modules/6.12.0/modules.builtin", "");
        let lines: Vec<_> = modules.iter().map(|module| format!("kernel/net/{module}.ko:")).collect();
        write("lib/modules/6.12.0/modules.dep", &lines.join("\n"));
        Modules::read(root.path(), "6.12.0")
    }

    const ALL: [&str; 13] = [
        "ip_vs",
        "ip_vs_rr",
        "nf_tables",
        "nft_chain_nat",
        "nft_ct",
        "nft_nat",
        "nft_masq",
        "nft_reject_ipv4",
        "nft_reject_ipv6",
        "nft_objref",
        "nft_fib_ipv4",
        "nft_fib_ipv6",
        "dummy",
    ];

    fn said(modules: &Modules, release: &str, scheduler: Option<SchedulerFacts>) -> Vec<(Severity, String)> {
        said_where(false, modules, release, scheduler)
    }

    fn said_where(
        untracked: bool,
        modules: &Modules,
        release: &str,
        scheduler: Option<SchedulerFacts>,
    ) -> Vec<(Severity, String)> {
        let families = BTreeSet::from(Family::BOTH);
        let facts = KernelFacts {
            release,
            modules,
            ipvs: modules.may_ask("ip_vs").then_some((1, 2, 1)),
            scheduler,
            nf_tables: false,
            families: &families,
            device: false,
            unpacking: BTreeSet::new(),
            gue: false,
            untracked,
        };
        parts(&facts).into_iter().map(|it| (it.severity, format!("{}: {}", it.subject, it.what))).collect()
    }

    const RR: Option<SchedulerFacts> =
        Some(SchedulerFacts { scheduler: Scheduler::RR, in_use: false, may_load: true });

    fn worse_than_ok(said: Vec<(Severity, String)>) -> Vec<(Severity, String)> {
        said.into_iter().filter(|(severity, _)| *severity > Severity::Ok).collect()
    }

    #[test]
    fn kernel_that_can_load_everything_is_ok() {
        let said = said(&with(&ALL), "6.12.0", RR);
        assert_eq!(said.len(), 6, "{said:?}");
        assert_eq!(said[1].1, "IPVS: the daemon makes the kernel load the module ip_vs");
        assert_eq!(worse_than_ok(said), []);
    }

    #[test]
    fn what_is_missing_is_a_problem_but_for_interval_sets() {
        let modules: Vec<_> =
            ALL.into_iter().filter(|it| !["ip_vs_rr", "nft_reject_ipv6", "dummy"].contains(it)).collect();
        let said = worse_than_ok(said(&with(&modules), "6.12.0", RR));
        let problems: Vec<_> = said.iter().map(|(severity, text)| (*severity, text.as_str())).collect();
        assert_eq!(
            problems,
            [
                (Severity::Problem, "scheduler rr: the kernel has no module ip_vs_rr"),
                (
                    Severity::Problem,
                    "nf_tables, IPv6: the kernel lacks rejecting in rules (module nft_reject_ipv4 or nft_reject_ipv6), \
                     without which IPv6 cannot be served"
                ),
                (Severity::Problem, "kube-ipvs0: the kernel has no module dummy"),
            ]
        );
    }

    #[test]
    fn before_5_6_source_ranges_close_their_address_and_are_not_read() {
        let modules = with(&ALL);
        let warned = worse_than_ok(said(&modules, "5.4.0-216-generic", RR));
        assert_eq!(warned.len(), 2, "{warned:?}");
        assert!(warned.iter().all(|(severity, text)| {
            *severity == Severity::Warning && text.contains("is closed to all clients")
        }));
        let missing = missing_features(&modules, "5.4.0-216-generic");
        assert_eq!(missing[&Family::V4], [Feature::IntervalSets]);
        assert!(missing_features(&modules, "6.12.0")[&Family::V4].is_empty());
    }

    #[test]
    fn before_6_2_counters_need_a_module_of_their_own_and_can_be_done_without() {
        let modules = with(&ALL.into_iter().filter(|it| *it != "nft_objref").collect::<Vec<_>>());
        let noted = worse_than_ok(said(&modules, "5.10.0-35-amd64", RR));
        assert!(
            noted.iter().all(|(severity, text)| {
                *severity == Severity::Note && text.ends_with(": dropped packets are not counted")
            }),
            "{noted:?}"
        );
        assert_eq!(noted.len(), 2, "{noted:?}");
        assert_eq!(missing_features(&modules, "5.10.0-35-amd64")[&Family::V4], [Feature::Counters]);
        assert_eq!(worse_than_ok(said(&modules, "6.12.0", RR)), []);
    }

    #[test]
    fn what_untracked_services_lack_is_a_note_where_they_are_allowed() {
        let modules = with(&ALL.into_iter().filter(|it| !it.starts_with("nft_fib")).collect::<Vec<_>>());
        assert_eq!(worse_than_ok(said(&modules, "6.12.0", RR)), []);
        let noted = worse_than_ok(said_where(true, &modules, "6.12.0", RR));
        assert_eq!(noted.len(), 2, "{noted:?}");
        for (severity, text) in noted {
            assert_eq!(severity, Severity::Note);
            assert!(text.ends_with(": conntrack tracks every connection"), "{text}");
        }
    }

    #[test]
    fn what_direct_return_lacks_is_a_warning_where_a_service_asks_for_it() {
        let modules: Vec<_> = ALL.into_iter().chain(["ipip", "ip_vs_mh"]).collect();
        let (modules, families) = (with(&modules), BTreeSet::from(Family::BOTH));
        let facts = KernelFacts {
            release: "6.12.0",
            modules: &modules,
            ipvs: None,
            scheduler: None,
            nf_tables: false,
            families: &families,
            device: false,
            unpacking: families.clone(),
            gue: true,
            untracked: true,
        };
        let said = direct_return(&facts).into_iter().map(|it| (it.severity, it.what));
        let loaded = |name| (Severity::Ok, format!("the daemon makes the kernel load the module {name}"));
        let missing = |name| {
            (Severity::Warning, format!("the kernel has no module {name}: Services are served masqueraded"))
        };
        let expected = [loaded("ipip"), missing("ip6_tunnel"), missing("fou"), loaded("ip_vs_mh")];
        assert_eq!(said.collect::<Vec<_>>(), expected);
        assert_eq!(direct_return(&KernelFacts { unpacking: BTreeSet::new(), ..facts }), []);
    }

    #[test]
    fn what_could_only_be_tried_is_a_note() {
        let unknown = Modules::read(Path::new("/nonexistent"), "6.12.0");
        let said = worse_than_ok(said(&unknown, "6.12.0", RR));
        assert!(said.iter().all(|(severity, _)| *severity == Severity::Note), "{said:?}");
        assert_eq!(
            said[0].1,
            "scheduler rr: unknown whether the kernel has ip_vs_rr: /lib/modules/6.12.0 does not list it"
        );
        assert!(
            said[1]
                .1
                .starts_with("nf_tables, IPv4: unknown whether the kernel has nf_tables, nft_chain_nat, ")
        );
    }

    #[test]
    fn scheduler_that_is_in_use_is_there_and_one_that_is_dangerous_to_load_is_a_problem() {
        let unknown = Modules::read(Path::new("/nonexistent"), "6.12.0");
        let in_use = SchedulerFacts { scheduler: Scheduler::MH, in_use: true, may_load: true };
        assert!(
            said(&unknown, "6.12.0", Some(in_use))
                .contains(&(Severity::Ok, "scheduler mh: in use by a virtual server".to_owned()))
        );
        let dangerous = SchedulerFacts { scheduler: Scheduler::LBLC, in_use: false, may_load: false };
        let said = said(&with(&ALL), "6.12.0", Some(dangerous));
        let problem = "scheduler lblc: lblc is not loaded, and loading it on demand can hang IPVS: load the module \
                       ip_vs_lblc at boot";
        assert!(said.contains(&(Severity::Problem, problem.to_owned())), "{said:?}");
    }
}
