//! The chains of the old iptables, which the host's own programs read and change.

use ipvs::Family;
use netfilter::Policy;

use super::{
    ClosedChain, Error, FirewallChains,
    chain::{BaseChain, Hook, HostChain, TableFamily},
    our_rules::{self, Accepted, OUR_COMMENT, wanted},
    rule::{Effect, End, Rule},
};
use crate::{
    Backend,
    legacy::{Programs, tables_in_use, words},
};

const FILTER: &str = "filter";

/// The chains INPUT and FORWARD of the old iptables (`iptables-legacy`), in the network namespace of the
/// thread that opened this.
///
/// Such tables are not part of nf_tables. They are only seen where the host's own programs can be run.
#[derive(Debug)]
pub struct LegacyChains {
    programs: Vec<(Family, Programs)>,
    unseen: Vec<Family>,
}

impl LegacyChains {
    /// Finds the families that have such a table `filter`, and the programs. Loads nothing into the kernel.
    pub fn open() -> Result<Self, Error> {
        let mut chains = Self { programs: Vec::new(), unseen: Vec::new() };
        for family in Family::BOTH {
            if !tables_in_use(family)?.lines().any(|table| table == FILTER) {
                continue;
            }
            match Programs::find(family) {
                Some(programs) => chains.programs.push((family, programs)),
                None => chains.unseen.push(family),
            }
        }
        Ok(chains)
    }

    /// The families that have a table `filter` which cannot be read, because its programs are not here.
    pub fn unseen(&self) -> &[Family] {
        &self.unseen
    }

    fn read<T>(&self, judge: impl Fn(Listed<'_>) -> Option<T>) -> Result<Vec<T>, Error> {
        let mut found = Vec::new();
        for (family, programs) in &self.programs {
            found.extend(parse(&programs.save(FILTER)?, *family).into_iter().filter_map(&judge));
        }
        Ok(found)
    }

    fn change(&self, chain: &HostChain, wanted: &[Accepted]) -> Result<bool, Error> {
        for (family, programs) in &self.programs {
            let listed = programs.save(FILTER)?;
            let listed = parse(&listed, *family).into_iter().find(|listed| listed.base.chain == *chain);
            if let Some(script) = listed.and_then(|listed| listed.script(wanted)) {
                programs.restore(&script)?;
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl FirewallChains for LegacyChains {
    fn closed_chains(&mut self, policy: &Policy) -> Result<Vec<ClosedChain>, Error> {
        self.read(|Listed { base, rules, .. }| {
            let wanted = wanted(policy, &base.chain);
            our_rules::judge(base, &rules, &wanted)
        })
    }

    fn chains_with_our_rules(&mut self) -> Result<Vec<HostChain>, Error> {
        self.read(|Listed { base, rules, .. }| rules.iter().any(our_rules::is_ours).then_some(base.chain))
    }

    fn settle(&mut self, chain: &HostChain, policy: &Policy) -> Result<bool, Error> {
        self.change(chain, &wanted(policy, chain))
    }

    fn withdraw(&mut self, chain: &HostChain) -> Result<bool, Error> {
        self.change(chain, &[])
    }
}

/// The input of `iptables-restore --noflush` that makes our rules those that the policy asks for, wherever
/// what `iptables-save -t filter` has printed is closed.
pub fn settling(saved: &str, family: Family, policy: &Policy) -> String {
    let scripts = parse(saved, family).into_iter().filter_map(|listed| {
        let wanted = wanted(policy, &listed.base.chain);
        our_rules::judge(listed.base.clone(), &listed.rules, &wanted)?;
        listed.script(&wanted)
    });
    scripts.collect()
}

/// A chain as `iptables-save` lists it. The handle of a rule is the position of its text.
struct Listed<'a> {
    base: BaseChain,
    rules: Vec<Rule>,
    texts: Vec<&'a str>,
}

impl Listed<'_> {
    /// The input of `iptables-restore --noflush` that makes our rules in the chain these; `None` if they are.
    fn script(&self, wanted: &[Accepted]) -> Option<String> {
        if our_rules::is_settled(&self.rules, wanted) {
            return None;
        }
        let ours = self.rules.iter().zip(&self.texts).filter(|(rule, _)| our_rules::is_ours(rule));
        let delete = ours.map(|(_, text)| format!("-D {text}\n"));
        // Each goes to the head, so the first comes last.
        let insert = wanted.iter().rev().map(|accepted| {
            let matches = as_text(*accepted);
            let name = &self.base.chain.name;
            format!("-I {name} {matches} -m comment --comment \"{OUR_COMMENT}\" -j ACCEPT\n")
        });
        let lines: String = delete.chain(insert).collect();
        Some(format!("*{FILTER}\n{lines}COMMIT\n"))
    }
}

/// Reads what `iptables-save -t filter` prints.
fn parse(saved: &str, family: Family) -> Vec<Listed<'_>> {
    let lists = |hook: Hook| {
        let chain = place(family, hook);
        let policy = format!(":{} ", chain.name);
        let of_chain = format!("-A {} ", chain.name);
        let policy = saved.lines().find_map(|line| line.strip_prefix(&*policy))?;
        let base = BaseChain { chain, drops_by_policy: policy.starts_with("DROP") };
        let rules = saved.lines().filter(|line| line.starts_with(&*of_chain));
        let texts: Vec<_> = rules.filter_map(|line| line.strip_prefix("-A ")).collect();
        let rules = (0..).zip(&texts).map(|(handle, text)| rule(handle, text)).collect();
        Some(Listed { base, rules, texts })
    };
    [Hook::Input, Hook::Forward].into_iter().filter_map(lists).collect()
}

fn place(family: Family, hook: Hook) -> HostChain {
    let family = match family {
        Family::V4 => TableFamily::Ip,
        Family::V6 => TableFamily::Ip6,
    };
    let (table, name) = (FILTER.into(), hook.chain_of_iptables().into());
    HostChain { backend: Backend::Legacy, family, table, name, hook, priority: 0 }
}

/// Reads one rule, which begins with the name of its chain.
fn rule(handle: u64, text: &str) -> Rule {
    const COMMENT: [&str; 3] = ["-m", "comment", "--comment"];
    let mut words = words(text).split_off(1);
    let comment = words.windows(COMMENT.len()).position(|window| window == COMMENT);
    let comment = comment.and_then(|at| words.drain(at..words.len().min(at + COMMENT.len() + 1)).next_back());
    let comment = comment.unwrap_or_default().trim_matches('"').into();
    Rule { handle, comment, effect: effect(&words) }
}

/// The effect of a rule with these words, its comment left out.
fn effect(words: &[&str]) -> Effect {
    match words {
        ["-j", "DROP"] | ["-j", "REJECT", ..] => Effect::Ends(End::Drop),
        ["-j", "ACCEPT"] => Effect::Ends(End::Accept),
        ["-j", "RETURN"] | ["-g", _] => Effect::Ends(End::Policy),
        [matches @ .., "-j", "ACCEPT"] => {
            let matches = matches.join(" ");
            accepted(&matches).map_or(Effect::Other, Effect::Accepts)
        }
        _ => Effect::Other,
    }
}

const KNOWN: &str = "-m conntrack --ctstate RELATED,ESTABLISHED";
const MARKED: &str = "-m mark --mark ";

/// As `iptables-save` writes it.
fn as_text(accepted: Accepted) -> String {
    match accepted {
        Accepted::Marked(bits) => format!("{MARKED}{bits:#x}/{bits:#x}"),
        Accepted::Known => KNOWN.to_owned(),
    }
}

/// What these matches accept, if a rule of ours can have them.
fn accepted(matches: &str) -> Option<Accepted> {
    if matches == KNOWN {
        return Some(Accepted::Known);
    }
    let (mark, mask) = matches.strip_prefix(MARKED)?.split_once('/')?;
    let bits = u32::from_str_radix(mark.strip_prefix("0x")?, 16).ok()?;
    (mark == mask).then_some(Accepted::Marked(bits))
}

#[cfg(test)]
mod tests {
    use netfilter::{HostFirewall, LocalTraffic};

    use super::*;
    use crate::host_firewall::{Accepts, How};

    fn policy(host_firewall: HostFirewall) -> Policy {
        let local_traffic = LocalTraffic::Source { ipv4: None, ipv6: None };
        Policy { host_firewall, ..Policy::new(local_traffic) }
    }

    /// What `iptables-legacy-save -t filter` prints of a host that forwards nothing and lets in what its last
    /// rule does not reject.
    const SAVED: &str = r#"# Generated by iptables-save v1.8.9 on Tue Nov 24 22:00:00 2026
*filter
:INPUT ACCEPT [7:420]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
:MINE - [0:0]
-A INPUT -m conntrack --ctstate ESTABLISHED -j ACCEPT
-A INPUT -m comment --comment "kube-ipvs: \"mine\" -j ACCEPT" -j LOG
-A INPUT -j REJECT --reject-with icmp-port-unreachable
-A FORWARD -i docker0 -j MINE
-A MINE -j DROP
COMMIT
"#;

    /// The same as the kernel has it after this input.
    fn restored(saved: &str, script: &str) -> String {
        let mut lines: Vec<_> = saved.lines().map(str::to_owned).collect();
        for line in script.lines() {
            if let Some(text) = line.strip_prefix("-D ") {
                let position = lines.iter().position(|line| line.strip_prefix("-A ") == Some(text)).unwrap();
                lines.remove(position);
            } else if let Some(text) = line.strip_prefix("-I ") {
                let of_chain = format!("-A {} ", text.split(' ').next().unwrap());
                let position = lines.iter().position(|line| line.starts_with(&of_chain)).unwrap();
                lines.insert(position, format!("-A {text}"));
            }
        }
        lines.join("\n") + "\n"
    }

    #[test]
    fn a_closed_chain_gets_what_kube_proxy_accepts_as_iptables_writes_it_and_only_once() {
        let as_kube_proxy = policy(HostFirewall::AsKubeProxy);
        let script = settling(SAVED, Family::V4, &as_kube_proxy);
        assert_eq!(
            script,
            r#"*filter
-I INPUT -m mark --mark 0x1000/0x1000 -m comment --comment "kube-ipvs: what it forwards" -j ACCEPT
COMMIT
*filter
-I FORWARD -m mark --mark 0x4000/0x4000 -m comment --comment "kube-ipvs: what it forwards" -j ACCEPT
-I FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -m comment --comment "kube-ipvs: what it forwards" -j ACCEPT
COMMIT
"#
        );
        let settled = restored(SAVED, &script);
        assert_eq!(settling(&settled, Family::V4, &as_kube_proxy), "");
        let others = settling(&settled, Family::V4, &policy(HostFirewall::Accept));
        assert_eq!(others.matches("-D FORWARD ").count(), 2, "{others}");
        assert_eq!(others.matches("-I FORWARD -m mark --mark 0x1000/0x1000 ").count(), 1, "{others}");
        let none = settling(&settled, Family::V4, &policy(HostFirewall::Warn));
        assert_eq!(restored(&settled, &none), SAVED);
    }

    #[test]
    fn a_chain_is_closed_by_its_policy_or_its_last_rule() {
        let judged = |saved: &str| -> Vec<_> {
            let judge = |listed: Listed<'_>| our_rules::judge(listed.base, &listed.rules, &[]);
            parse(saved, Family::V6).into_iter().filter_map(judge).collect()
        };
        let closed = judged(SAVED);
        let seen: Vec<_> =
            closed.iter().map(|closed| (closed.chain.to_string(), closed.how, closed.accepts)).collect();
        let expected = [
            ("INPUT of ip6tables-legacy".to_owned(), How::LastRule, Accepts::ByHand),
            ("FORWARD of ip6tables-legacy".to_owned(), How::Policy, Accepts::Nothing),
        ];
        assert_eq!(seen, expected);
        for open in
            ["", ":INPUT ACCEPT [0:0]\n-A FORWARD -j DROP\n", ":FORWARD DROP [0:0]\n-A FORWARD -j ACCEPT\n"]
        {
            assert_eq!(judged(open), [], "{open}");
        }
    }

    #[test]
    fn what_a_rule_does_is_read_from_its_text() {
        for (text, expected) in [
            ("-j DROP", Effect::Ends(End::Drop)),
            ("-m comment --comment x -j REJECT --reject-with tcp-reset", Effect::Ends(End::Drop)),
            ("-m comment --comment \"-j DROP\" -j RETURN", Effect::Ends(End::Policy)),
            ("-g MINE", Effect::Ends(End::Policy)),
            ("-p tcp -j DROP", Effect::Other),
            ("-j LOG --log-prefix x", Effect::Other),
            ("-j MINE", Effect::Other),
            ("", Effect::Other),
            ("-m comment --comment", Effect::Other),
            ("-m mark --mark 0x4000/0x4000 -j ACCEPT", Effect::Accepts(Accepted::Marked(0x4000))),
            ("-m mark ! --mark 0x4000/0x4000 -j ACCEPT", Effect::Other),
            ("-m mark --mark 0x4000/0xffff -j ACCEPT", Effect::Other),
            ("-m mark --mark 0x4000/0x4000 -j DROP", Effect::Other),
            ("-m mark --mark 0x4000 -j ACCEPT", Effect::Other),
            ("-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", Effect::Accepts(Accepted::Known)),
            ("-m conntrack --ctstate ESTABLISHED -j ACCEPT", Effect::Other),
            ("-i eth0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", Effect::Other),
        ] {
            assert_eq!(rule(0, &format!("FORWARD {text}")).effect, expected, "{text}");
        }
    }
}
