//! The kernel features that our tables need, and which of them are missing.

use std::fmt;

use ipvs::Family;
use netlink::{Errno, Error, FailedRequest, Socket, if_exists};

use super::transaction::{Request, Transaction};
use crate::{
    Element, PacketCounter, Policy, Ruleset,
    nft::{
        chain::{Chain, Hook, Kind, Point},
        message,
        rule::Rule,
        statement::{CtState, Statement},
    },
};

/// The kernel's answers to an unknown family, chain type, set flag or expression.
const UNKNOWN: [Errno; 4] = [Errno::EAFNOSUPPORT, Errno::EOPNOTSUPP, Errno::ENOENT, Errno::EINVAL];

/// A part of the kernel that our tables need and that can be missing. What nf_tables always has, such as sets
/// without intervals, is not listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Feature {
    /// nf_tables itself, with tables of the family.
    Tables,
    /// Sets in which one field of several is an interval. Without them a table has no `allowed-sources`.
    IntervalSets,
    /// Chains of type nat.
    NatChains,
    /// The state of connections.
    Conntrack,
    /// Replacing a destination.
    DestinationNat,
    /// Replacing a source by the node's own.
    Masquerade,
    /// Dropping a packet with an answer to its sender.
    Reject,
    /// Counters that are objects of the table.
    Counters,
    /// Leaving packets out of conntrack, unless they are for the node itself. Needed where a policy asks for it.
    Untracking,
}

impl Feature {
    /// What does not work without it; `None` if nothing does.
    pub fn lost_without(self) -> Option<&'static str> {
        match self {
            Self::IntervalSets => Some("an address with loadBalancerSourceRanges is closed to all clients"),
            Self::Counters => Some("dropped packets are not counted"),
            Self::Untracking => Some("conntrack tracks every connection"),
            _ => None,
        }
    }
}

/// The feature, and where it comes from.
impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tables => {
                "nf_tables (module nf_tables, with CONFIG_NF_TABLES_IPV4 or CONFIG_NF_TABLES_IPV6)"
            }
            Self::IntervalSets => "sets of intervals of concatenations (nft_set_pipapo, Linux 5.6)",
            Self::NatChains => "chains of type nat (module nft_chain_nat)",
            Self::Conntrack => "the state of connections in rules (module nft_ct)",
            Self::DestinationNat => "destination NAT in rules (module nft_nat)",
            Self::Masquerade => "masquerading in rules (module nft_masq)",
            Self::Reject => "rejecting in rules (module nft_reject_ipv4 or nft_reject_ipv6)",
            Self::Counters => "counters in rules (modules nft_counter and nft_objref)",
            Self::Untracking => {
                "leaving packets out of conntrack (modules nft_ct, nft_fib_ipv4 or nft_fib_ipv6)"
            }
        })
    }
}

/// The features that the kernel lacks for a table of `family`. They are found by a rehearsal: nothing is
/// changed, but available modules are loaded.
pub(crate) fn missing_features(
    socket: &mut Socket,
    policy: &Policy,
    family: Family,
) -> Result<Vec<Feature>, Error> {
    // Without nf_tables the kernel has no handler for the message (`nfnetlink_rcv_msg`).
    if if_exists(message::generation(socket), &[Errno::EINVAL])?.is_none() {
        return Ok(vec![Feature::Tables]);
    }
    let nat = Hook { kind: Kind::Nat, point: Point::Postrouting, priority: 100 };
    let [plain, nat] =
        [("probe", None), ("probe-nat", Some(nat))].map(|(name, hook)| Chain { name, hook, rules: vec![] });
    let counter = PacketCounter::NoService;
    let rules = [
        (Feature::Counters, Statement::Count(counter)),
        (Feature::Conntrack, Statement::CtState(CtState::New)),
        (Feature::DestinationNat, Statement::DnatToDaddr),
        (Feature::Masquerade, Statement::Masquerade { fully_random: true }),
        (Feature::Reject, Statement::Reject),
    ]
    .map(|(feature, statement)| (feature, Rule::new("probe", [statement])));
    let untracking = policy
        .untracked_pods_of(family)
        .map(|_| (Feature::Untracking, Rule::new("probe", [Statement::DaddrElsewhere, Statement::Notrack])));
    let rules: Vec<_> = rules.into_iter().chain(untracking).collect();
    let intervals = Ruleset::known_sets().filter(|set| set.name == Element::ALLOWED_SOURCES);

    let mut trials = vec![
        (Feature::Tables, Request::AddTable(family)),
        (Feature::Tables, Request::AddChain(family, &plain)),
        (Feature::NatChains, Request::AddChain(family, &nat)),
    ];
    trials.extend(intervals.map(|set| (Feature::IntervalSets, Request::AddSet(family, set))));
    trials.push((Feature::Counters, Request::AddCounter(family, counter)));
    trials.extend(rules.iter().map(|(feature, rule)| (*feature, Request::AddRule(family, plain.name, rule))));

    let (tried, requests): (Vec<_>, Vec<_>) = trials.into_iter().unzip();
    let failures = socket.pipeline(&mut Transaction::from(requests).encode_rehearsal())?;
    Ok(not_understood(&tried, &failures))
}

/// The features whose trial the kernel does not understand. Without tables nothing is known of the others.
/// Other failures, such as a table with another owner, are reported when a table is installed.
fn not_understood(tried: &[Feature], failures: &[FailedRequest]) -> Vec<Feature> {
    let mut missing: Vec<_> = failures
        .iter()
        .filter(|failure| UNKNOWN.contains(&failure.error.errno))
        // Request 0 is the begin.
        .filter_map(|failure| tried.get(failure.index.checked_sub(1)?).copied())
        .collect();
    if missing.contains(&Feature::Tables) {
        missing = vec![Feature::Tables];
    }
    // A feature can have more than one trial.
    missing.dedup();
    missing
}

#[cfg(test)]
mod tests {
    use netlink::KernelError;

    use super::*;

    const TRIED: [Feature; 4] = [Feature::Tables, Feature::Tables, Feature::IntervalSets, Feature::Reject];

    fn missing(failures: &[(usize, Errno)]) -> Vec<Feature> {
        let failure = |(index, errno)| FailedRequest { index, error: KernelError::new(errno) };
        not_understood(&TRIED, &failures.iter().copied().map(failure).collect::<Vec<_>>())
    }

    #[test]
    fn what_the_kernel_does_not_understand_is_missing() {
        assert_eq!(missing(&[]), []);
        // As 5.4 answers to a flag of a set, and any kernel to an expression without a module.
        let answers = [(3, Errno::EINVAL), (4, Errno::ENOENT)];
        assert_eq!(missing(&answers), [Feature::IntervalSets, Feature::Reject]);
    }

    #[test]
    fn a_refusal_for_another_reason_says_nothing_about_the_kernel() {
        assert_eq!(
            missing(&[(0, Errno::EINVAL), (1, Errno::EPERM), (3, Errno::EEXIST), (5, Errno::ENOENT)]),
            []
        );
    }

    #[test]
    fn without_tables_of_the_family_that_is_all_there_is_to_say() {
        let answers = [(1, Errno::EAFNOSUPPORT), (2, Errno::EAFNOSUPPORT), (3, Errno::ENOENT)];
        assert_eq!(missing(&answers), [Feature::Tables]);
    }

    #[test]
    fn only_intervals_counters_and_untracking_can_be_done_without() {
        for feature in TRIED {
            assert_eq!(feature.lost_without().is_none(), feature != Feature::IntervalSets);
        }
        assert!(Feature::Counters.lost_without().is_some() && Feature::Untracking.lost_without().is_some());
    }
}
