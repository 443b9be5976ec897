//! Which proxy serves this node now, and what an earlier one left.

use std::{collections::BTreeSet, path::Path};

use host_rules::leftovers::{Leftover, Outcome};
use service::one_line;

use super::BeforeStart;
use crate::{
    config::Settings,
    finding::Finding,
    serve::control::{Client, Control as _, SOCKET},
    takeover::{
        instance_lock,
        leftovers::{NodeRules, RuleSource as _},
        live_proxy::LiveProxy,
    },
};

/// What is known of proxies on this node.
#[derive(Debug, Default)]
struct Proxies {
    /// The version of the kube-ipvs that answers at its control socket.
    kube_ipvs: Option<String>,
    /// The locks of a kube-ipvs that are held, and their holders.
    locks: Vec<String>,
    /// A proxy that answers where kube-proxy shows its metrics.
    live: Option<LiveProxy>,
    /// Whether our tables are there.
    our_tables: bool,
    /// The rules of kube-proxy, if they could be read.
    leftovers: Option<Outcome>,
}

const SUBJECT: &str = "proxy";
const RULES: &str = "kube-proxy's rules";

/// Which proxy serves, and what becomes of its rules.
pub(super) fn check(node: &mut BeforeStart<'_>) -> Vec<Finding> {
    let (mut unread, mut leftovers) = (None, None);
    match node.kernel.modules.ask_nf_tables(|| NodeRules::new(node.policy.clone()).find()) {
        Some(Ok(found)) => leftovers = Some(found),
        Some(Err(error)) => unread = Some(Finding::problem(RULES, one_line(&error))),
        None => unread = Some(Finding::note(RULES, "not checked: querying would load nf_tables")),
    }
    let (netfilter, socket) = (&node.kernel.observed.netfilter, socket(node.settings));
    let proxies = Proxies {
        kube_ipvs: kube_ipvs(socket),
        locks: instance_lock::held(socket),
        live: LiveProxy::find(),
        our_tables: !(netfilter.installed.is_empty() && netfilter.elements.is_empty()),
        leftovers,
    };
    unread.into_iter().chain(found(&proxies)).collect()
}

fn socket(settings: Option<&Settings>) -> &Path {
    settings.map_or(Path::new(SOCKET), |settings| &settings.control_socket)
}

/// The version of the kube-ipvs that answers at its control socket, if one does.
fn kube_ipvs(socket: &Path) -> Option<String> {
    Some(Client::new(socket).status().ok()?.daemon.version)
}

fn found(proxies: &Proxies) -> Vec<Finding> {
    let mut findings = vec![serving(proxies)];
    findings.extend(locked(proxies));
    findings.extend(proxies.leftovers.iter().flat_map(rules));
    findings.extend(policies(proxies));
    findings
}

/// What a node that comes from another mode may lose without a sign: a pod's request to a ClusterIP passes `input` and
/// `output` in IPVS mode, and not `forward` (`ip_vs_in_hook` in net/netfilter/ipvs/ip_vs_core.c).
fn policies(Proxies { live, leftovers, .. }: &Proxies) -> Option<Finding> {
    let live = live.as_ref().is_some_and(|live| ["iptables", "nftables"].contains(&live.mode()));
    let left = leftovers.iter().flat_map(|outcome| &outcome.leftovers);
    let modes: Vec<_> = left.map(mode).collect();
    let is_other = live || modes.iter().any(|mode| [IPTABLES, NFTABLES].contains(mode));
    let what = "this node comes from another mode: with IPVS a pod's requests to Services do not pass the chains in \
                forward of the client's node. A network plugin that enforces NetworkPolicies only there no longer \
                enforces them for such requests";
    let remedy = "docs/network-policies.md says how each plugin enforces them, and how to test that";
    is_other.then(|| Finding::warning("NetworkPolicies", what).remedy(remedy))
}

fn serving(Proxies { kube_ipvs, live, our_tables, .. }: &Proxies) -> Finding {
    match (kube_ipvs, live) {
        (Some(version), _) => Finding::note(
            SUBJECT,
            format!("kube-ipvs {version} runs on this node; another one waits until it has ended"),
        ),
        (None, Some(live)) if live.mode() == "ipvs" => Finding::ok(SUBJECT, live.to_string()),
        (None, Some(live)) => Finding::warning(SUBJECT, live.to_string()).remedy(
            "follow the steps of docs/migration.md for this mode in order: its rules serve until kube-ipvs has its own",
        ),
        (None, None) if *our_tables => {
            Finding::note(SUBJECT, "no proxy answers; a kube-ipvs that served before has left its tables kube-ipvs")
        }
        (None, None) => Finding::note(SUBJECT, "no proxy answers at 127.0.0.1:10249 or [::1]:10249"),
    }
}

/// The holders of locks of a kube-ipvs that does not answer.
fn locked(Proxies { kube_ipvs, locks, .. }: &Proxies) -> Option<Finding> {
    (kube_ipvs.is_none() && !locks.is_empty()).then(|| {
        let what = format!("no kube-ipvs answers, but one of its locks is held: {}", locks.join("; "));
        Finding::warning(SUBJECT, what)
            .remedy("stop a kube-ipvs of other manifests, or wait until `kube-ipvs cleanup` has ended; end any other process")
    })
}

/// What kube-proxy has written: sets are counted, since there are dozens.
fn rules(outcome: &Outcome) -> Vec<Finding> {
    let sets = outcome.leftovers.iter().filter(|leftover| matches!(leftover, Leftover::Set(_))).count();
    let others = outcome.leftovers.iter().filter(|leftover| !matches!(leftover, Leftover::Set(_)));
    let mut found: Vec<_> = others.map(ToString::to_string).collect();
    found.extend((sets > 0).then(|| format!("ipsets of ipvs mode: {sets}")));
    let mut findings = Vec::new();
    if found.is_empty() {
        findings.push(Finding::ok(RULES, "none"));
    } else {
        findings.push(Finding::note(
            RULES,
            format!(
                "of {}, removed after the first full sync: {}",
                modes(&outcome.leftovers),
                found.join("; ")
            ),
        ));
    }
    let left = outcome.stayed.iter().map(|stayed| (stayed, "stays"));
    for (one, what) in left.chain(outcome.unknown.iter().map(|unknown| (unknown, "not checked"))) {
        findings.push(Finding::note(RULES, format!("{what}: {one}: {}", one_line(&one.why))));
    }
    findings
}

const IPTABLES: &str = "iptables mode";
const NFTABLES: &str = "nftables mode";

/// The mode that writes such rules.
fn mode(leftover: &Leftover) -> &'static str {
    match leftover {
        Leftover::NftablesTable(_) => NFTABLES,
        Leftover::Set(_) => "ipvs mode",
        Leftover::Rules(rules) if rules.chains.iter().any(|chain| chain.starts_with("KUBE-SVC-")) => IPTABLES,
        Leftover::Rules(_) => "a mode with iptables",
    }
}

/// The modes that write such rules.
fn modes(leftovers: &[Leftover]) -> String {
    let mut modes: BTreeSet<_> = leftovers.iter().map(mode).collect();
    if modes.len() > 1 {
        // Its other chains say no more.
        modes.remove("a mode with iptables");
    }
    modes.into_iter().collect::<Vec<_>>().join(" and ")
}

#[cfg(test)]
mod tests {
    use host_rules::{
        Backend,
        leftovers::{Error, Rules, Stayed},
    };
    use ipvs::Family;

    use super::*;
    use crate::finding::Severity;

    fn rules_with(chains: &[&str]) -> Leftover {
        let chains = chains.iter().map(|&chain| chain.into()).collect();
        Leftover::Rules(Rules { backend: Backend::Nft, family: Family::V4, table: "nat", jumps: 2, chains })
    }

    fn said(proxies: &Proxies) -> Vec<(Severity, String)> {
        found(proxies).into_iter().map(|finding| (finding.severity, finding.what)).collect()
    }

    fn with(leftovers: Vec<Leftover>) -> Proxies {
        Proxies { leftovers: Some(Outcome { leftovers, ..Outcome::default() }), ..Proxies::default() }
    }

    #[test]
    fn proxy_in_ipvs_mode_is_ok_and_in_another_mode_the_order_of_steps_matters() {
        let live = |mode: &str| Proxies { live: Some(LiveProxy::in_mode(mode)), ..with(Vec::new()) };
        assert_eq!(said(&live("ipvs"))[0].0, Severity::Ok);
        let findings = found(&live("iptables"));
        assert_eq!(findings[0].severity, Severity::Warning);
        assert!(findings[0].what.starts_with("a proxy in iptables mode runs on this node"), "{findings:?}");
        assert!(findings[0].remedy.as_ref().unwrap().contains("docs/migration.md"));
    }

    #[test]
    fn kube_ipvs_that_runs_or_has_run_is_named() {
        let runs = Proxies {
            kube_ipvs: Some("0.1.0".to_owned()),
            live: Some(LiveProxy::in_mode("ipvs")),
            ..with(Vec::new())
        };
        assert!(said(&runs)[0].1.starts_with("kube-ipvs 0.1.0 runs on this node"));
        let has_run = Proxies { our_tables: true, ..with(Vec::new()) };
        assert!(said(&has_run)[0].1.contains("a kube-ipvs that served before"));
        assert!(said(&with(Vec::new()))[0].1.starts_with("no proxy answers at"));
    }

    #[test]
    fn lock_of_a_kube_ipvs_that_does_not_answer_is_a_warning_with_its_holder() {
        let locks = vec!["/run/xtables.lock (process 7, sleep, of user 65534)".to_owned()];
        let kube_ipvs = Some("0.1.0".to_owned());
        let silent = said(&Proxies { locks: locks.clone(), ..with(Vec::new()) });
        assert_eq!(silent[1].0, Severity::Warning);
        assert!(silent[1].1.ends_with(&locks[0]), "{silent:?}");
        assert_eq!(said(&Proxies { kube_ipvs, locks, ..with(Vec::new()) }).len(), silent.len() - 1);
    }

    #[test]
    fn rules_are_named_with_the_mode_that_wrote_them_and_sets_are_counted() {
        let sets = |count| (0..count).map(|_| Leftover::Set("KUBE-CLUSTER-IP".into()));
        let ipvs: Vec<_> = [rules_with(&["KUBE-SERVICES"])].into_iter().chain(sets(3)).collect();
        assert_eq!(
            said(&with(ipvs))[1].1,
            "of ipvs mode, removed after the first full sync: iptables table nat: 2 jumps, 1 chain: KUBE-SERVICES; \
             ipsets of ipvs mode: 3"
        );
        let iptables = vec![rules_with(&["KUBE-SVC-NPX46M4PTMTKRN6Y"]), rules_with(&["KUBE-FORWARD"])];
        assert!(said(&with(iptables))[1].1.starts_with("of iptables mode, "));
        assert!(
            said(&with(vec![rules_with(&["KUBE-SERVICES"])]))[1].1.starts_with("of a mode with iptables, ")
        );
        assert!(
            said(&with(vec![Leftover::NftablesTable(Family::V4)]))[1].1.starts_with("of nftables mode, ")
        );
        assert_eq!(said(&with(Vec::new()))[1], (Severity::Ok, "none".to_owned()));
    }

    #[test]
    fn a_node_that_comes_from_another_mode_is_warned_of_policies_in_forward() {
        let warns = |proxies: &Proxies| {
            let found = found(proxies).into_iter().find(|finding| finding.subject == "NetworkPolicies");
            found.is_some_and(|finding| finding.severity == Severity::Warning)
        };
        let live = |mode: &str| Proxies { live: Some(LiveProxy::in_mode(mode)), ..with(Vec::new()) };
        assert!(warns(&live("iptables")) && warns(&live("nftables")) && !warns(&live("ipvs")));
        assert!(warns(&with(vec![rules_with(&["KUBE-SVC-NPX46M4PTMTKRN6Y"])])), "it has stopped");
        assert!(warns(&with(vec![Leftover::NftablesTable(Family::V6)])));
        let ipvs = vec![rules_with(&["KUBE-SERVICES"]), Leftover::Set("KUBE-CLUSTER-IP".into())];
        assert!(!warns(&with(ipvs)) && !warns(&with(Vec::new())));
    }

    #[test]
    fn what_stays_and_what_was_not_checked_is_a_note_each() {
        let one = |what: &str| Stayed { what: what.to_owned(), why: Error::InUse };
        let outcome = Outcome {
            stayed: vec![one("ipset KUBE-LOOP-BACK")],
            unknown: vec![one("iptables-legacy, IPv4")],
            ..Outcome::default()
        };
        let said = said(&Proxies { leftovers: Some(outcome), ..Proxies::default() });
        assert!(said[2].1.starts_with("stays: ipset KUBE-LOOP-BACK: "), "{said:?}");
        assert!(said[3].1.starts_with("not checked: iptables-legacy, IPv4: "), "{said:?}");
        assert_eq!(found(&Proxies::default()).len(), 1);
    }
}
