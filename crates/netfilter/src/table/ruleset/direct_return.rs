//! What direct return adds to a table.
//!
//! ```text
//! client ─► the node that it enters                     the pod's node ─► pod
//!           IPVS puts the packet into another,           the outer packet is for this node now,
//!           for the pod                                  and conntrack remembers which pod it was for
//!
//! client ◄──────────────────────────────────────────────────────────── the answer, from the VIP
//! ```
//!
//! On the node of the pod the outer packet is recognised before conntrack. It must be from another node of
//! the cluster, by a link that leads to that node, so that no pod can send it, and for an endpoint of this
//! node. Its destination becomes the end of the tunnel, so that the kernel unpacks it, and the pod's address
//! goes along in the packet's priority, which survives that. The first packet of a connection that comes out
//! gets the pod for its destination; so conntrack makes the answers come from the VIP.

use ipvs::Family;

use super::chains::{
    NAT_OUTPUT, NAT_POSTROUTING, NAT_PREROUTING, SOURCE_RANGES, VIP_PORTS, kept_destination, local_traffic,
    loopback, marked_in_forward, marked_in_input, to,
};
use crate::{
    Element, HostFirewall, PacketCounter, Policy,
    nft::{
        chain::{Chain, Hook, Kind::Filter, Point},
        rule::Rule,
        statement::{
            CtState, Field, Interface,
            Statement::{
                self, ClampMaxSegmentSize, Count, CtState as Connection, Daddr, DnatTo, Drop, Encapsulates,
                EncapsulatesByGue, FailsReversePath, IifName, InSet, IsReply, Jump, Masquerade, Notrack,
                Return, SaddrNot, SetDaddr, SetMark, SetPriorityToDaddr, TcpSyn,
            },
        },
    },
    tunnel::{GUE_PORT, device, end},
};

const SENDERS: &str = "tunnel-senders-only";

/// Adds its chains, and its rules to the chains of every table.
pub(super) fn extend(chains: &mut Vec<Chain>, policy: &Policy, family: Family) {
    for chain in chains.iter_mut() {
        let (first, last) = match chain.name {
            NAT_PREROUTING => (for_pods(policy, family), vec![kept_destination(to(Element::DIRECT_RETURN))]),
            NAT_OUTPUT => (for_this_node(policy, family), vec![]),
            NAT_POSTROUTING => (vec![], masqueraded().into()),
            VIP_PORTS => {
                (vec![Rule::new("the same with direct return", [to(Element::DIRECT_RETURN), Return])], vec![])
            }
            _ => continue,
        };
        chain.rules.splice(0..0, first);
        chain.rules.extend(last);
    }
    chains.extend([
        Chain { name: SENDERS, hook: None, rules: senders() },
        // Behind defragmentation at -400, before conntrack at -200.
        filter("tunnel-prerouting", Point::Prerouting, -390, arriving(policy, family)),
        // Behind conntrack, before destination NAT.
        filter("tunnel-left", Point::Prerouting, -150, vec![known_to_conntrack(family)]),
        filter("tunnel-postrouting", Point::Postrouting, -150, leaving(policy)),
    ]);
    for more in accepted(policy, family) {
        match chains.iter_mut().find(|chain| chain.name == more.name) {
            Some(chain) => chain.rules.extend(more.rules),
            None => chains.push(more),
        }
    }
}

/// The first packet of a connection that comes out of the tunnel goes to the pod. Flows of pods of this node
/// go to the ClusterIP instead: their answers would come to this node from an address of its own, and be
/// dropped (`__fib_validate_source` in net/ipv4/fib_frontend.c).
fn for_pods(policy: &Policy, family: Family) -> Vec<Rule> {
    let fields = &[Field::Priority, Field::Daddr, Field::L4Proto, Field::ThDport];
    let exit = DnatTo { fields, map: Element::TUNNEL_EXITS };
    let mut rules = vec![
        Rule::new("out of the tunnel to the pod", [from_tunnel(family), exit]),
        Rule::new(
            "drop everything else from the tunnel",
            [from_tunnel(family), Count(PacketCounter::Tunnel), Drop],
        ),
    ];
    if let Some(local) = local_traffic(&policy.local_traffic, family) {
        if policy.masquerade_all {
            rules.push(Rule::new(
                "pods are masqueraded",
                [local.clone(), to(Element::DIRECT_RETURN), SetMark(policy.mark)],
            ));
        }
        rules.push(Rule::new("pods are redirected to the ClusterIP", [local, to_cluster_ip()]));
    }
    rules
}

/// The node's own flows go to the ClusterIP too. Their source is a VIP, so they are masqueraded.
fn for_this_node(policy: &Policy, family: Family) -> Vec<Rule> {
    let own = || [SaddrNot(loopback(family)), to(Element::DIRECT_RETURN)];
    let rule = |about, then| Rule::new(about, own().into_iter().chain([then]).collect::<Vec<_>>());
    vec![
        rule("this node's own flows with direct return", SetMark(policy.mark)),
        rule("they are redirected to the ClusterIP", to_cluster_ip()),
    ]
}

/// A flow that IPVS did not tunnel, because the endpoint's node does not take part, or because the endpoint
/// is on the network of its node.
fn masqueraded() -> [Rule; 2] {
    let here = InSet { fields: &[Field::Daddr], set: Element::ENDPOINTS_HERE };
    [
        Rule::new("to a pod of this node", [was_to_direct_return(), here, Return]),
        Rule::new(
            "to an endpoint without a tunnel",
            [was_to_direct_return(), Count(PacketCounter::NoTunnel), Masquerade { fully_random: true }],
        ),
    ]
}

/// A packet that belongs to no connection and begins none would go to its own destination: no chain of type
/// nat sees it. Errors about unknown connections would circulate.
fn known_to_conntrack(family: Family) -> Rule {
    Rule::new(
        "drop tunnel packets that belong to no connection",
        [from_tunnel(family), Connection(CtState::InvalidOrUntracked), Count(PacketCounter::Tunnel), Drop],
    )
}

fn arriving(policy: &Policy, family: Family) -> Vec<Rule> {
    let fields = &[Field::Daddr];
    let here = || InSet { fields, set: Element::ENDPOINTS_HERE };
    let elsewhere = InSet { fields, set: Element::ENDPOINTS_ELSEWHERE };
    let mut rules = vec![Rule::new(
        "clients must not address the tunnel's end",
        [Daddr(end(family).into()), Count(PacketCounter::Tunnel), Drop],
    )];
    for tunnelled in encapsulations(policy) {
        rules.extend([
            Rule::new("only nodes send into the tunnel", [tunnelled.clone(), here(), Jump(SENDERS)]),
            Rule::new(
                "to the end of the tunnel",
                [
                    tunnelled,
                    here(),
                    SetPriorityToDaddr,
                    SetDaddr(end(family)),
                    Notrack,
                    Count(PacketCounter::TunnelReceived),
                ],
            ),
        ]);
    }
    rules.extend([
        // Pods are led elsewhere before input, where source ranges are looked at.
        Rule::new(
            "restricted by source ranges",
            [to(Element::DIRECT_RETURN), to(Element::RESTRICTED), Jump(SOURCE_RANGES)],
        ),
        // From a node that does not know so far that this is masqueraded.
        Rule::new(
            "only some clients, through the tunnel",
            [from_tunnel(family), to(Element::RESTRICTED), Jump(SOURCE_RANGES)],
        ),
    ]);
    // A pod may also send with the address of another node.
    let local = local_traffic(&policy.local_traffic, family);
    let from_pods = local.map(|local| ("pods must not send to the tunnel", local));
    for (about, from) in
        from_pods.into_iter().chain([("drop packets to the tunnel with another's source", FailsReversePath)])
    {
        rules.extend(encapsulations(policy).map(|tunnelled| {
            Rule::new(about, [tunnelled, from.clone(), elsewhere.clone(), Count(PacketCounter::Tunnel), Drop])
        }));
    }
    rules
}

/// A pod that sends with the address of a node is found out by its link, whatever `rp_filter` lets pass.
fn senders() -> Vec<Rule> {
    let node = InSet { fields: &[Field::Saddr], set: Element::TUNNEL_SENDERS };
    vec![
        Rule::new(
            "the sender arrived on the wrong interface",
            [FailsReversePath, Count(PacketCounter::Tunnel), Drop],
        ),
        Rule::new("another node of the cluster", [node, Return]),
        Rule::new("no other sender", [Count(PacketCounter::Tunnel), Drop]),
    ]
}

/// Clients learn from the answer to their first packet how much they may send at once.
fn leaving(policy: &Policy) -> Vec<Rule> {
    let elsewhere = || InSet { fields: &[Field::Daddr], set: Element::ENDPOINTS_ELSEWHERE };
    let mut rules = vec![Rule::new(
        "requests must fit into a tunnel",
        [TcpSyn, IsReply, ClampMaxSegmentSize { fields: ORIGINAL, map: Element::MAX_SEGMENT_SIZES }],
    )];
    rules.extend(encapsulations(policy).map(|tunnelled| {
        Rule::new("to another node by a tunnel", [tunnelled, elsewhere(), Count(PacketCounter::TunnelSent)])
    }));
    rules
}

/// A host whose firewall drops unknown traffic is to accept what comes to the end of the tunnel, and out of
/// it. In forward the mark for masquerading makes it do so where it otherwise accepts what kube-proxy
/// accepts.
fn accepted(policy: &Policy, family: Family) -> Vec<Chain> {
    let to_tunnel = ("to the end of the tunnel", vec![Daddr(end(family).into())]);
    let to_service = ("to an address with direct return", vec![to(Element::DIRECT_RETURN)]);
    // Where clients come in conntrack sees one direction only, and calls it invalid.
    let half_seen = vec![Connection(CtState::InvalidOrUntracked), to(Element::DIRECT_RETURN)];
    let half_seen = ("of a connection that another node answers", half_seen);
    let from_tunnel = [("out of the tunnel", vec![from_tunnel(family)])];
    let accept = policy.accept_mark();
    let [input, forward] = match policy.host_firewall {
        HostFirewall::Warn => return Vec::new(),
        HostFirewall::AsKubeProxy => {
            [marked_in_input(accept, &[to_tunnel, half_seen]), marked_in_forward(policy.mark, &from_tunnel)]
        }
        HostFirewall::Accept => {
            [marked_in_input(accept, &[to_tunnel, to_service]), marked_in_forward(accept, &from_tunnel)]
        }
    };
    [input, forward].concat()
}

/// How packets may be put into others.
fn encapsulations(policy: &Policy) -> impl Iterator<Item = Statement> {
    [Encapsulates].into_iter().chain(policy.gue.then_some(EncapsulatesByGue(GUE_PORT)))
}

fn from_tunnel(family: Family) -> Statement {
    IifName(Interface::Name(device(family).into()))
}

fn to_cluster_ip() -> Statement {
    let fields = &[Field::Daddr, Field::L4Proto, Field::ThDport];
    DnatTo { fields, map: Element::CLUSTER_IP_FOR }
}

/// The destination of a connection's first packet, before any NAT.
const ORIGINAL: &[Field] = &[Field::OriginalDaddr, Field::L4Proto, Field::OriginalDport];

fn was_to_direct_return() -> Statement {
    InSet { fields: ORIGINAL, set: Element::DIRECT_RETURN }
}

fn filter(name: &'static str, point: Point, priority: i32, rules: Vec<Rule>) -> Chain {
    Chain { name, hook: Some(Hook { kind: Filter, point, priority }), rules }
}
