//! Our rules as the kernel has them, and the way of a packet through them.

use std::fmt;

use testkit::lab::Host;

use super::trace::{Event, Trace, Verdict, What};

/// The rules of our table of one family, chain by chain.
pub(crate) struct Rules(Vec<Rule>);

#[derive(Clone, Debug)]
struct Rule {
    chain: String,
    handle: u64,
    /// Its comment, without the fingerprint.
    purpose: String,
}

/// A rule that a packet was compared with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Evaluated {
    pub(crate) chain: String,
    pub(crate) purpose: String,
    /// What it made of the packet; `None` if it did not match.
    pub(crate) verdict: Option<Verdict>,
}

/// How far a packet has come in a chain.
struct Place<'a> {
    rest: std::vec::IntoIter<&'a Rule>,
    /// Whether it left the chain by a `return`.
    left: bool,
}

impl Rules {
    /// Reads them; `family` as nft has it.
    pub(crate) fn read(node: &Host, family: &str) -> Self {
        let listing = node.run("nft", &["-a", "list", "table", family, "kube-ipvs"]).unwrap();
        let (mut rules, mut chain) = (Vec::new(), "");
        for line in listing.lines().map(str::trim) {
            if let Some(name) = line.strip_prefix("chain ").and_then(|rest| rest.split(' ').next()) {
                chain = name;
            } else if let Some((rule, handle)) = line.rsplit_once(" # handle ") {
                let Some((_, comment)) = rule.rsplit_once("comment \"") else { continue };
                let (purpose, _) = comment.rsplit_once(" #").unwrap();
                let handle = handle.parse().unwrap();
                rules.push(Rule { chain: chain.to_owned(), handle, purpose: purpose.to_owned() });
            }
        }
        Self(rules)
    }

    /// The chain and the purpose of each.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|rule| (&*rule.chain, &*rule.purpose))
    }

    fn in_chain(&self, chain: &str) -> Place<'_> {
        let rules: Vec<_> = self.0.iter().filter(|rule| rule.chain == chain).collect();
        Place { rest: rules.into_iter(), left: false }
    }

    /// What was evaluated since the trace was asked last.
    pub(crate) fn evaluated(&self, trace: &Trace) -> Vec<Evaluated> {
        let (mut evaluated, mut places) = (Vec::new(), Vec::new());
        for Event { chain, what } in trace.events() {
            if places.is_empty() {
                places.push(self.in_chain(&chain));
            }
            let in_base_chain = places.len() == 1;
            let place = places.last_mut().unwrap();
            let until = |it: &Rule| matches!(what, What::Matched(handle, _) if it.handle == handle);
            if !place.left {
                evaluated.extend(place.evaluated(until));
            }
            match what {
                What::Matched(_, verdict) => {
                    evaluated.last_mut().unwrap().verdict = Some(verdict.clone());
                    match verdict {
                        Verdict::Continue => {}
                        Verdict::Jump(chain) => places.push(self.in_chain(&chain)),
                        Verdict::Goto(chain) => *place = self.in_chain(&chain),
                        Verdict::Return if in_base_chain => place.left = true,
                        Verdict::Return => drop(places.pop()),
                        Verdict::Accept | Verdict::Drop => places.clear(),
                    }
                }
                // The policy of a base chain is reported separately.
                What::ChainEnds if in_base_chain => {}
                What::ChainEnds => drop(places.pop()),
                What::Policy => places.clear(),
            }
        }
        assert!(places.is_empty(), "a packet has no end: {evaluated:?}");
        evaluated
    }
}

impl Place<'_> {
    /// The rules from here to the one that it is, or to the end of the chain.
    fn evaluated(&mut self, is_last: impl Fn(&Rule) -> bool) -> Vec<Evaluated> {
        let mut evaluated = Vec::new();
        for rule in self.rest.by_ref() {
            let Rule { chain, purpose, .. } = rule.clone();
            evaluated.push(Evaluated { chain, purpose, verdict: None });
            if is_last(rule) {
                break;
            }
        }
        evaluated
    }
}

impl fmt::Display for Evaluated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = match &self.verdict {
            None => "–".to_owned(),
            Some(Verdict::Continue) => "goes on".to_owned(),
            Some(Verdict::Jump(chain) | Verdict::Goto(chain)) => format!("to {chain}"),
            Some(Verdict::Return) => "returns".to_owned(),
            Some(Verdict::Accept) => "decides".to_owned(),
            Some(Verdict::Drop) => "drops".to_owned(),
        };
        write!(f, "{:<17} {verdict:<17} {}", self.chain, self.purpose)
    }
}
