//! What was seen.

use std::fmt;

use ipvs::Family;
use serde::{Deserialize, Serialize};
use testkit::kube_proxy::Mode;

use super::way::{Traffic, Way};
use crate::{
    bench::case::{Binding, Program},
    statistics::median,
};

/// Who set the node up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Variant {
    /// Not set up: the client asks the pod itself.
    Straight,
    /// IPVS by hand, without conntrack.
    ByHandWithoutConntrack,
    /// IPVS by hand, with conntrack, and one rule that masquerades what does not come from pods.
    ByHand,
    /// A proxy.
    Program(Program),
    /// kube-ipvs with VIPs as addresses, where conntrack leaves out what pods send to the Service.
    Untracked,
}

impl Variant {
    pub(crate) const ALL: [Self; 9] = [
        Self::Straight,
        Self::ByHandWithoutConntrack,
        Self::ByHand,
        Self::Program(Program::KubeIpvs(Binding::Address)),
        Self::Program(Program::KubeIpvs(Binding::Route)),
        Self::Untracked,
        Self::Program(Program::KubeProxy(Mode::Ipvs)),
        Self::Program(Program::KubeProxy(Mode::Nftables)),
        Self::Program(Program::KubeProxy(Mode::Iptables)),
    ];
}

/// Of one number of Services.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct DataPlane {
    /// A row for each traffic on each way in each family.
    pub rows: Vec<Row>,
    /// Variants that were not measured.
    pub missing: Vec<Missing>,
    /// What estimators cost, if the kernel can do without.
    pub estimation: Option<Estimation>,
}

/// A variant that was not measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Missing {
    /// Which.
    pub variant: Variant,
    /// Why.
    pub reason: String,
}

/// The part of a processor that an idle node takes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimation {
    /// Without `run_estimation`.
    pub without: f64,
    /// With it.
    pub with: f64,
}

/// One kind of traffic on one way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// What was sent.
    pub traffic: Traffic,
    /// From where to where.
    pub way: Way,
    /// By IPv4 or IPv6.
    pub family: Family,
    /// What it cost with each variant.
    pub costs: Vec<Cost>,
}

/// What it cost with one variant.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Who set the node up.
    pub variant: Variant,
    /// Seconds of the processor for each operation: the median of the rounds.
    pub seconds: f64,
    /// How many times that of [`Variant::ByHand`] in the same round: the median.
    pub to_by_hand: f64,
}

impl Row {
    pub(crate) fn cost(&self, variant: Variant) -> Option<Cost> {
        self.costs.iter().find(|cost| cost.variant == variant).copied()
    }
}

/// What each round took, variant by variant.
#[derive(Debug, Default)]
pub(super) struct Rounds(Vec<(Variant, Vec<f64>)>);

impl Rounds {
    pub(super) fn note(&mut self, variant: Variant, seconds: f64) {
        match self.0.iter_mut().find(|(known, _)| *known == variant) {
            Some((_, rounds)) => rounds.push(seconds),
            None => self.0.push((variant, vec![seconds])),
        }
    }

    pub(super) fn costs(&self) -> Vec<Cost> {
        let by_hand = self.0.iter().find(|(variant, _)| *variant == Variant::ByHand);
        let by_hand = by_hand.map_or(&[][..], |(_, rounds)| rounds);
        let cost = |(variant, rounds): &(Variant, Vec<f64>)| {
            // A clock that is too coarse for a few packets shows nothing.
            let ratios = rounds.iter().zip(by_hand).map(|(of, to)| of / to).filter(|ratio| ratio.is_finite());
            let ratios = ratios.collect();
            Some(Cost { variant: *variant, seconds: median(rounds.clone())?, to_by_hand: median(ratios)? })
        };
        self.0.iter().filter_map(cost).collect()
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Straight => f.write_str("straight to the pod"),
            Self::Untracked => f.write_str("kube-ipvs, flows of pods untracked"),
            Self::ByHandWithoutConntrack => f.write_str("IPVS by hand, no conntrack"),
            Self::ByHand => f.write_str("IPVS by hand"),
            Self::Program(program) => program.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_is_compared_with_what_the_floor_took_in_the_same_round() {
        let mut rounds = Rounds::default();
        for (by_hand, straight) in [(1.0, 2.0), (10.0, 20.0), (100.0, 200.0)] {
            rounds.note(Variant::ByHand, by_hand);
            rounds.note(Variant::Straight, straight);
        }
        let cost = |variant, seconds, to_by_hand| Cost { variant, seconds, to_by_hand };
        assert_eq!(rounds.costs(), [cost(Variant::ByHand, 10.0, 1.0), cost(Variant::Straight, 20.0, 2.0)]);
    }
}
