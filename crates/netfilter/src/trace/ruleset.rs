//! The table that marks the packets to trace.

use std::fmt;

use ipnet::IpNet;
use ipvs::{Family, ServiceAddress};
use netlink::Batch;

use super::{Followed, TRACE_TABLE};
use crate::nft::{
    chain::{
        Chain, Hook,
        Kind::Filter,
        Point::{self, Input, Output, Postrouting, Prerouting},
    },
    element::{self, Key},
    message::{self, CREATE, Message},
    rule::Rule,
    set::{Recent, Set},
    statement::{CtState, Field, Statement},
    text::write_table,
};
use crate::table::key::Coded;

/// The frontends whose packets are followed.
const FRONTENDS: &str = "frontends";
/// The clients' ends of the flows that are followed.
const FLOWS: &str = "flows";

/// How long answers to a packet are awaited. A name server's client has asked again by then, and TCP's SYN has been
/// sent five times.
const FLOW_SECONDS: u32 = 30;
const FLOWS_AT_ONCE: u32 = 1024;

/// Before everything else at the hook, conntrack and the raw tables of iptables (-300) included.
const FIRST: i32 = -350;
/// Behind conntrack (-200), which knows what a packet answers.
const BEHIND_CONNTRACK: i32 = -199;

/// The table of one family.
pub(super) struct Ruleset<'a> {
    family: Family,
    followed: &'a Followed,
    sets: [Set; 2],
    chains: Vec<Chain>,
}

impl<'a> Ruleset<'a> {
    /// The table, whose frontends time out if it has no owner.
    pub(super) fn new(family: Family, followed: &'a Followed, seconds: Option<u32>) -> Self {
        let size = u32::try_from(followed.frontends.len()).unwrap_or(u32::MAX);
        let set = |name, recent| Set { name, key: ServiceAddress::KEY, value: &[], intervals: false, recent };
        let sets = [
            set(FRONTENDS, seconds.map(|seconds| Recent { seconds, size })),
            set(FLOWS, Some(Recent { seconds: FLOW_SECONDS, size: FLOWS_AT_ONCE })),
        ];
        let requests = requests(followed);
        let chains = vec![
            chain("requests", Prerouting, FIRST, requests.clone()),
            chain("requests-of-node", Output, FIRST, requests),
            chain("answers", Prerouting, BEHIND_CONNTRACK, vec![answers(), untracked_answers()]),
            chain("answers-of-node", Output, BEHIND_CONNTRACK, vec![answers()]),
            // These show what has become of a packet at the end of its hook.
            chain("delivered", Input, i32::MAX, vec![]),
            chain("sent", Postrouting, i32::MAX, vec![]),
        ];
        Self { family, followed, sets, chains }
    }

    /// The transaction that adds it.
    pub(super) fn encode(&self, flags: u32) -> Batch {
        let mut batch = Batch::default();
        message::begin(&mut batch, None);
        message::add_table(&mut batch, self.family, TRACE_TABLE, flags);
        for (set, id) in self.sets.iter().zip(1..) {
            set.add_to(&mut batch, self.family, TRACE_TABLE, id);
        }
        for chain in &self.chains {
            chain.add_to(&mut batch, self.family, TRACE_TABLE);
            for rule in &chain.rules {
                rule.add_to(&mut batch, self.family, TRACE_TABLE, chain.name);
            }
        }
        for some in self.keys().collect::<Vec<_>>().chunks(element::PER_REQUEST) {
            let keys = some.iter().cloned();
            element::change(
                &mut batch,
                Message::NewSetElement,
                CREATE,
                self.family,
                TRACE_TABLE,
                FRONTENDS,
                keys,
            );
        }
        message::end(&mut batch);
        batch
    }

    fn keys(&self) -> impl Iterator<Item = Key> {
        let of_family = self.followed.frontends.iter().filter(|at| Family::from(at.ip) == self.family);
        of_family.map(Coded::key)
    }
}

fn chain(name: &'static str, point: Point, priority: i32, rules: Vec<Rule>) -> Chain {
    Chain { name, hook: Some(Hook { kind: Filter, point, priority }), rules }
}

/// Marks packets to the frontends: those of flows that are followed, and some of others, which are followed then.
fn requests(followed: &Followed) -> Vec<Rule> {
    const CLIENT: &[Field] = &[Field::Saddr, Field::L4Proto, Field::ThSport];
    const FRONTEND: &[Field] = &[Field::Daddr, Field::L4Proto, Field::ThDport];
    let from_client = followed.client.map(|client| Statement::Saddr(IpNet::from(client)));
    let to_frontend = Statement::InSet { fields: FRONTEND, set: FRONTENDS };
    let known = [
        Statement::InSet { fields: CLIENT, set: FLOWS },
        Statement::LimitRate { per_second: 50, burst: 20 },
        Statement::Trace,
        Statement::Return,
    ];
    let new = [
        Statement::LimitRate { per_second: 5, burst: 5 },
        Statement::AddToSet { fields: CLIENT, set: FLOWS },
        Statement::Trace,
    ];
    let rule = |about, last: &[Statement]| {
        let first = from_client.iter().chain([&to_frontend]);
        Rule::new(about, first.chain(last).cloned().collect::<Vec<_>>())
    };
    vec![rule("request of a followed flow", &known), rule("request of a flow to follow", &new)]
}

/// Marks the answers in flows that are followed. Whatever IPVS and source NAT have done to a flow, conntrack knows the
/// addresses of its first packet.
fn answers() -> Rule {
    const CLIENT: &[Field] = &[Field::OriginalSaddr, Field::OriginalProtocol, Field::OriginalSport];
    const FRONTEND: &[Field] = &[Field::OriginalDaddr, Field::OriginalProtocol, Field::OriginalDport];
    let statements = [
        Statement::IsReply,
        Statement::InSet { fields: FRONTEND, set: FRONTENDS },
        Statement::InSet { fields: CLIENT, set: FLOWS },
        Statement::LimitRate { per_second: 100, burst: 40 },
        Statement::Trace,
    ];
    Rule::new("answer in a followed flow", statements)
}

/// Marks answers to pods that conntrack leaves out (`--untracked-services`). Nothing has masqueraded their flows.
fn untracked_answers() -> Rule {
    let client = &[Field::Daddr, Field::L4Proto, Field::ThDport];
    let statements = [
        Statement::CtState(CtState::Untracked),
        Statement::InSet { fields: client, set: FLOWS },
        Statement::LimitRate { per_second: 100, burst: 40 },
        Statement::Trace,
    ];
    Rule::new("answer without conntrack in a followed flow", statements)
}

/// As nft prints it, without elements.
impl fmt::Display for Ruleset<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_table(f, self.family, TRACE_TABLE, &[], self.sets.iter(), &self.chains)
    }
}

#[cfg(test)]
mod tests {
    use ipvs::Protocol;

    use super::*;

    fn followed(ip: &str, client: Option<&str>) -> Followed {
        let at = ServiceAddress { protocol: Protocol::Tcp, ip: ip.parse().unwrap(), port: 80 };
        Followed { frontends: vec![at], client: client.map(|client| client.parse().unwrap()) }
    }

    #[test]
    fn the_table_marks_packets_and_decides_nothing_about_them() {
        let followed = followed("10.96.0.10", None);
        insta::assert_snapshot!(Ruleset::new(Family::V4, &followed, None), @r#"
        table ip kube-ipvs-trace {
        	set frontends {
        		type ipv4_addr . inet_proto . inet_service
        	}

        	set flows {
        		type ipv4_addr . inet_proto . inet_service
        		size 1024
        		flags dynamic,timeout
        		timeout 30s
        	}

        	chain requests {
        		type filter hook prerouting priority -350; policy accept;
        		ip daddr . meta l4proto . th dport @frontends ip saddr . meta l4proto . th sport @flows limit rate 50/second burst 20 packets meta nftrace set 1 return comment "request of a followed flow #6a867e07"
        		ip daddr . meta l4proto . th dport @frontends limit rate 5/second burst 5 packets add @flows { ip saddr . meta l4proto . th sport } meta nftrace set 1 comment "request of a flow to follow #9ab2ff99"
        	}

        	chain requests-of-node {
        		type filter hook output priority -350; policy accept;
        		ip daddr . meta l4proto . th dport @frontends ip saddr . meta l4proto . th sport @flows limit rate 50/second burst 20 packets meta nftrace set 1 return comment "request of a followed flow #6a867e07"
        		ip daddr . meta l4proto . th dport @frontends limit rate 5/second burst 5 packets add @flows { ip saddr . meta l4proto . th sport } meta nftrace set 1 comment "request of a flow to follow #9ab2ff99"
        	}

        	chain answers {
        		type filter hook prerouting priority -199; policy accept;
        		ct direction reply ct original ip daddr . ct original protocol . ct original proto-dst @frontends ct original ip saddr . ct original protocol . ct original proto-src @flows limit rate 100/second burst 40 packets meta nftrace set 1 comment "answer in a followed flow #e7c079dd"
        		ct state untracked ip daddr . meta l4proto . th dport @flows limit rate 100/second burst 40 packets meta nftrace set 1 comment "answer without conntrack in a followed flow #219caa4b"
        	}

        	chain answers-of-node {
        		type filter hook output priority -199; policy accept;
        		ct direction reply ct original ip daddr . ct original protocol . ct original proto-dst @frontends ct original ip saddr . ct original protocol . ct original proto-src @flows limit rate 100/second burst 40 packets meta nftrace set 1 comment "answer in a followed flow #e7c079dd"
        	}

        	chain delivered {
        		type filter hook input priority 2147483647; policy accept;
        	}

        	chain sent {
        		type filter hook postrouting priority 2147483647; policy accept;
        	}
        }
        "#);
    }

    #[test]
    fn without_an_owner_the_table_stops_marking_packets_by_itself() {
        let followed = followed("fd00::10", Some("fd00:1::9"));
        let table = Ruleset::new(Family::V6, &followed, Some(60)).to_string();
        assert!(table.contains("set frontends"), "{table}");
        assert!(table.contains("size 1\n\t\tflags dynamic,timeout\n\t\ttimeout 60s\n"), "{table}");
        assert!(table.contains("\t\tip6 saddr fd00:1::9 ip6 daddr . meta l4proto"), "{table}");
    }
}
