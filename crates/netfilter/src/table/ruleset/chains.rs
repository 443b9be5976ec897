//! Every chain of our table and every rule in it.
//!
//! docs/evidence/packets.md lists which of them a packet is compared with. What most packets need comes first, and
//! what conntrack has decided is not checked again.
//!
//! Priorities of the others at the same hooks: conntrack -200, destination NAT of other tables -100, filters
//! of the host 0, source NAT 100 (`enum nf_ip_hook_priorities`); IPVS, for replies at 98 in input, -99 in
//! output and 100 in forward, for requests at 99 in input and -98 in output (`ip_vs_ops4` in
//! net/netfilter/ipvs/ip_vs_core.c).

use std::{
    net::{Ipv4Addr, Ipv6Addr},
    ops::Range,
};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use ipvs::Family;

use crate::{
    Element, HostFirewall, LocalTraffic, PacketCounter, Policy,
    nft::{
        chain::{
            Chain, Hook,
            Kind::{Filter, Nat},
            Point::{self, Forward, Input, Output, Postrouting, Prerouting},
        },
        rule::Rule,
        statement::{
            CtState, Field, Interface, Statement,
            Statement::{
                ClearMark, Count, DnatToDaddr, Drop, EchoRequest, Goto, HasMark, IifName, Jump, Masquerade,
                Notrack, Reject, Return, SetMark,
            },
        },
    },
};

/// Where packets get the mark for the host's firewall: before its chains, which accept what is marked, but
/// not before those at -150, where hosts save packet marks for later.
const MARK_SET: i32 = -149;
/// Where packets lose it: behind the chains of the host.
const MARK_CLEARED: i32 = 90;

/// The priorities at which packets have [`Policy::accept_mark`]: after the chains of our table that set it,
/// before those that clear it.
pub const ACCEPT_MARK_PRIORITIES: Range<i32> = MARK_SET + 1..MARK_CLEARED;

/// Where new flows to Services are marked, and kept from others.
pub(super) const NAT_PREROUTING: &str = "nat-prerouting";
pub(super) const NAT_OUTPUT: &str = "nat-output";
const FILTER_INPUT: &str = "filter-input";
const FILTER_OUTPUT: &str = "filter-output";
pub(super) const NAT_POSTROUTING: &str = "nat-postrouting";

/// Where conntrack is kept from learning of flows. The chains of type nat do not see these either.
pub(super) const UNTRACKED: &str = "untracked";

const KEPT: &str = "kept-destinations";
const FROM_OUTSIDE: &str = "from-outside";
const NEW_FLOWS: &str = "new-flows";
pub(super) const SOURCE_RANGES: &str = "source-ranges";
pub(super) const VIP_PORTS: &str = "vip-ports";
const LOCAL_CLIENTS: &str = "local-clients";

/// The chains that set the mark for the host's firewall.
const SET_MARK_INPUT: &str = "accept-input";
const SET_MARK_FORWARD: &str = "accept-forward";
/// The chains that clear it.
const CLEAR_MARK_INPUT: &str = "accepted-input";
const CLEAR_MARK_FORWARD: &str = "accepted-forward";

/// All chains. Their number depends on the policy, never on the Services.
pub(super) fn chains(policy: &Policy, family: Family) -> Vec<Chain> {
    let mut chains = vec![
        // Jumped to from below.
        Chain { name: KEPT, hook: None, rules: kept_destinations() },
        Chain { name: FROM_OUTSIDE, hook: None, rules: [no_vip_as_source(), source_ranges()].concat() },
        Chain { name: SOURCE_RANGES, hook: None, rules: source_ranges() },
        Chain { name: NEW_FLOWS, hook: None, rules: [local_clients_only(), unserved()].concat() },
        Chain { name: VIP_PORTS, hook: None, rules: vip_ports() },
        Chain { name: LOCAL_CLIENTS, hook: None, rules: local_clients(policy, family) },
        // One step before the destination NAT of others. (Among chains of type nat: all of them run at -100.)
        Chain {
            name: NAT_PREROUTING,
            hook: Some(Hook { kind: Nat, point: Prerouting, priority: -101 }),
            rules: [
                to_cluster_ips(policy, local_traffic(&policy.local_traffic, family)),
                vec![
                    external(policy.mark),
                    // The client keeps its address.
                    kept_destination(to(Element::EXTERNAL_LOCAL)),
                    kept_destination(to_vip()),
                ],
            ]
            .concat(),
        },
        // This chain must not be of type route: setting the mark would then route the packet again.
        Chain {
            name: NAT_OUTPUT,
            hook: Some(Hook { kind: Nat, point: Output, priority: -101 }),
            rules: from_this_node(policy, family),
        },
        // After all of IPVS: the destination is already the real server. One step before the source NAT of
        // others, because only the first nat chain that decides is run: after it no other could clear our
        // mark, and a tunnel's packets, which inherit it, would be masqueraded too.
        Chain {
            name: NAT_POSTROUTING,
            hook: Some(Hook { kind: Nat, point: Postrouting, priority: 99 }),
            rules: masqueraded(policy.mark),
        },
        filter_input([restricted(FROM_OUTSIDE), new_flows()].concat()),
        // The same source ranges for what this node sends, which never reaches input. What IPVS sends through
        // output again, to the real server, passes.
        Chain {
            name: FILTER_OUTPUT,
            hook: Some(Hook { kind: Filter, point: Output, priority: -102 }),
            rules: restricted(SOURCE_RANGES),
        },
    ];
    chains.extend(policy.untracked_pods_of(family).map(untracked));
    chains.extend(accept_mark(policy));
    chains
}

/// The chains that only new flows need, or that only check source ranges, and that which keeps flows from the NAT of
/// others; the last one is reached by a goto from another.
pub(in super::super) const OF_NEW_FLOWS: [&str; 5] =
    [UNTRACKED, NAT_PREROUTING, NAT_OUTPUT, FILTER_OUTPUT, KEPT];

/// `filter-input` where another program serves the new flows, and decides which clients may begin one.
pub(in super::super) fn input_of_open_flows() -> Chain {
    let unserved = [Statement::CtState(CtState::New), to_vip(), Jump(VIP_PORTS)];
    filter_input(vec![Rule::new("new flows to a VIP", unserved)])
}

/// Before IPVS: the destination is still the VIP.
fn filter_input(rules: Vec<Rule>) -> Chain {
    Chain { name: FILTER_INPUT, hook: Some(Hook { kind: Filter, point: Input, priority: 0 }), rules }
}

/// The state of the connection is compared first, because that costs least.
fn new_flows() -> Vec<Rule> {
    vec![Rule::new("new flows", [Statement::CtState(CtState::New), Jump(NEW_FLOWS)])]
}

/// Rejects new flows to ports of a VIP that no Service has: a VIP is an address of this node, so they would
/// reach the node's own programs. Other flows may be answers to connections of the node from the VIP.
///
/// It is before IPVS, because IPVS can take more than any Service has: a virtual server that is not ours,
/// and, where a Service with session affinity has port 21, TCP to every port from 1024 on
/// (`ip_vs_service_find` in net/netfilter/ipvs/ip_vs_ctl.c).
fn unserved() -> Vec<Rule> {
    vec![Rule::new("new flows to a VIP", [to_vip(), Jump(VIP_PORTS)])]
}

/// Marks for masquerading all connections to a ClusterIP except those from pods of this node, which get their
/// answers through this node anyway.
fn to_cluster_ips(policy: &Policy, local: Option<Statement>) -> Vec<Rule> {
    let marked = |about| Rule::new(about, [to(Element::CLUSTER_IPS), SetMark(policy.mark), DnatToDaddr]);
    match local {
        _ if policy.masquerade_all => vec![marked("masquerade all flows to a ClusterIP")],
        None => Vec::new(),
        // This is not one negated match with a mark: kernels older than mid-2019 never match
        // `iifname != "cbr0"` in output, where there is no input interface.
        Some(local) => vec![
            Rule::new(
                "pods of this node keep their source address",
                [local, to(Element::CLUSTER_IPS), DnatToDaddr],
            ),
            marked("flows to a ClusterIP from elsewhere"),
        ],
    }
}

/// Marks for masquerading all connections to an external address: a pod's too, as upstream does.
fn external(mark: u32) -> Rule {
    Rule::new("all flows to an external address", [to(Element::EXTERNAL), SetMark(mark), DnatToDaddr])
}

/// The external policy Local keeps the client's address, and so does a ClusterIP if the client's is a pod's.
/// The node's own connections are masqueraded: their source is the VIP, one of the node's addresses, which no
/// other node could answer. A ClusterIP may be in the pods' range. Only what comes from loopback is never
/// masqueraded: in prerouting it has been decided about already.
fn from_this_node(policy: &Policy, family: Family) -> Vec<Rule> {
    let mark = SetMark(policy.mark);
    let fields = &[Field::Saddr, Field::L4Proto, Field::ThDport];
    let from_cluster_ip = Statement::InSet { fields, set: Element::CLUSTER_IPS };
    let own_to_local = [to(Element::EXTERNAL_LOCAL), mark.clone(), DnatToDaddr];
    let mut rules = vec![
        Rule::new("loopback is never masqueraded", [Statement::Saddr(loopback(family)), Goto(KEPT)]),
        Rule::new("this node's own flows to a ClusterIP", [from_cluster_ip, mark]),
    ];
    rules.extend(to_cluster_ips(policy, local_traffic(&policy.local_traffic, family)));
    rules.extend([
        external(policy.mark),
        Rule::new("this node's own flows to an external address with the policy Local", own_to_local),
        kept_destination(to_vip()),
    ]);
    rules
}

/// Keeps flows of pods to some Services from conntrack, in both directions, on the nodes of the client and of the
/// endpoint. IPVS does not need it for them: it keeps the addresses of its connections itself.
///
/// A flow that is masqueraded must be tracked. Pods' are not, unless IPVS sends one back to the pod that it came
/// from; or this node's own, whose source may be in the pods' range too (Flannel's `flannel.1`).
fn untracked(pods: IpNet) -> Chain {
    let of_client = |field| Statement::NotInSet { fields: field, set: Element::TRACKED_CLIENTS };
    let request = |about, to_set: &'static str| {
        let statements = [Statement::Saddr(pods), to(to_set), of_client(&[Field::Saddr]), Notrack];
        Rule::new(about, statements)
    };
    let from_endpoint = &[Field::Saddr, Field::L4Proto, Field::ThSport];
    let answers = [
        Statement::Daddr(pods),
        Statement::InSet { fields: from_endpoint, set: Element::UNTRACKED_ENDPOINTS },
        of_client(&[Field::Daddr]),
        Statement::DaddrElsewhere,
        Notrack,
    ];
    Chain {
        name: UNTRACKED,
        // Before conntrack, behind defragmentation at -400.
        hook: Some(Hook { kind: Filter, point: Prerouting, priority: -300 }),
        rules: vec![
            request("from pods to Services without conntrack", Element::UNTRACKED),
            request("from pods to their endpoints", Element::UNTRACKED_ENDPOINTS),
            Rule::new("the endpoints' answers", answers),
        ],
    }
}

/// Protects VIPs, and what a Service serves elsewhere, from the hostPorts of another table, which apply to
/// any local address and so to VIPs. An `accept` here would not stop that table. Whatever is marked is
/// protected in the same rule.
fn kept_destinations() -> Vec<Rule> {
    [to_vip(), to(Element::EXTERNAL), to(Element::EXTERNAL_LOCAL)].map(kept_destination).into()
}

/// The purpose of the rules that do nothing else.
pub(super) const KEEPS_DESTINATION: &str = "no DNAT for hostPorts in other tables";

pub(super) fn kept_destination(ours: Statement) -> Rule {
    Rule::new(KEEPS_DESTINATION, [ours, DnatToDaddr])
}

/// A pod that reaches itself is not marked at its ClusterIP.
fn masqueraded(mark: u32) -> Vec<Rule> {
    let fields = &[Field::Daddr, Field::L4Proto, Field::ThDport, Field::Saddr];
    let hairpin = Statement::InSet { fields, set: Element::HAIRPIN };
    let masquerade = |fully_random| Masquerade { fully_random };
    vec![
        Rule::new(
            "marked flows",
            [HasMark(mark), Count(PacketCounter::Marked), ClearMark(mark), masquerade(true)],
        ),
        Rule::new("a pod that reached itself", [hairpin, Count(PacketCounter::Hairpin), masquerade(false)]),
    ]
}

/// Drops packets to a restricted address whose source is a VIP. The node's own flows have such a source, but
/// are let in by output and never come this way, so any other is forged: in IPv6 the kernel does not check
/// sources.
fn no_vip_as_source() -> Vec<Rule> {
    let from_vip = Statement::InSet { fields: &[Field::Saddr], set: Element::VIPS };
    vec![Rule::new("no client has a VIP as its source", [from_vip, Count(PacketCounter::FromVip), Drop])]
}

/// Checks every packet, not only a connection's first: a client that is no longer allowed is cut off.
fn restricted(checked_in: &'static str) -> Vec<Rule> {
    vec![Rule::new("restricted by source ranges", [to(Element::RESTRICTED), Jump(checked_in)])]
}

fn source_ranges() -> Vec<Rule> {
    let fields = &[Field::Daddr, Field::L4Proto, Field::ThDport, Field::Saddr];
    let allowed = Statement::InSet { fields, set: Element::ALLOWED_SOURCES };
    vec![
        Rule::new("the client is in an allowed source range", [allowed, Return]),
        Rule::new("the client is outside the source ranges", [Count(PacketCounter::SourceRange), Drop]),
    ]
}

/// Drops new flows to an address of the external policy Local without an endpoint here, but for those of this
/// node's pods. (The node's own never come this way.) Endpoints elsewhere stand in for their sake. Others
/// would be answered past this node and not know the answer; or, where a network masquerades what comes to
/// pods, as Flannel does, be served although the policy forbids it.
fn local_clients_only() -> Vec<Rule> {
    let to_stand_ins = [to(Element::LOCAL_CLIENTS_ONLY), Jump(LOCAL_CLIENTS)];
    vec![Rule::new("new flows to the policy Local without an endpoint here", to_stand_ins)]
}

/// If pods of this node cannot be distinguished from other clients, all are let in, as in upstream's ipvs mode.
fn local_clients(policy: &Policy, family: Family) -> Vec<Rule> {
    let Some(local) = local_traffic(&policy.local_traffic, family) else { return Vec::new() };
    vec![
        Rule::new("pods of this node are allowed", [local, Return]),
        Rule::new("no endpoint on this node (policy Local)", [Count(PacketCounter::NoLocalEndpoint), Drop]),
    ]
}

fn vip_ports() -> Vec<Rule> {
    vec![
        Rule::new("a ClusterIP's port", [to(Element::CLUSTER_IPS), Return]),
        Rule::new("an external address's port", [to(Element::EXTERNAL), Return]),
        Rule::new("the same with the policy Local", [to(Element::EXTERNAL_LOCAL), Return]),
        Rule::new("health checks of load balancers", [to_health_check(), Return]),
        Rule::new("a VIP can be pinged", [EchoRequest, Return]),
        Rule::new("no Service has this port", [Count(PacketCounter::NoService), Reject]),
    ]
}

/// The chains that set and clear the mark for the host's firewall, at the hooks where it accepts by that
/// mark.
fn accept_mark(policy: &Policy) -> Vec<Chain> {
    let mark = policy.accept_mark();
    match policy.host_firewall {
        HostFirewall::Warn => Vec::new(),
        // In forward the rules in the host's chains do without.
        HostFirewall::AsKubeProxy => marked_in_input(mark, &[health_checks()]).into(),
        HostFirewall::Accept => {
            [marked_in_input(mark, &served()), marked_in_forward(mark, &[answers()])].concat()
        }
    }
}

pub(super) fn marked_in_input(mark: u32, accepted: &[Accepted]) -> [Chain; 2] {
    marked(Input, [SET_MARK_INPUT, CLEAR_MARK_INPUT], mark, accepted)
}

pub(super) fn marked_in_forward(mark: u32, accepted: &[Accepted]) -> [Chain; 2] {
    marked(Forward, [SET_MARK_FORWARD, CLEAR_MARK_FORWARD], mark, accepted)
}

fn marked(point: Point, [set, clear]: [&'static str; 2], mark: u32, accepted: &[Accepted]) -> [Chain; 2] {
    let chain =
        |name, priority, rules| Chain { name, hook: Some(Hook { kind: Filter, point, priority }), rules };
    [chain(set, MARK_SET, set_mark(mark, accepted)), chain(clear, MARK_CLEARED, clear_mark(mark, accepted))]
}

/// Traffic that the host's firewall is to accept: the comment of its rules, and all statements that match it.
pub(super) type Accepted = (&'static str, Vec<Statement>);

/// The traffic that the host is to accept in input.
fn served() -> [Accepted; 4] {
    [
        ("to a VIP", vec![to_vip()]),
        ("to a NodePort", vec![to(Element::EXTERNAL)]),
        ("to a NodePort with the policy Local", vec![to(Element::EXTERNAL_LOCAL)]),
        health_checks(),
    ]
}

fn health_checks() -> Accepted {
    ("health checks of load balancers", vec![to_health_check()])
}

/// The traffic that the host is to accept in forward. IPVS sends requests through output; only answers are forwarded.
fn answers() -> Accepted {
    ("what comes back", vec![Statement::CtState(CtState::EstablishedOrRelated)])
}

fn set_mark(mark: u32, accepted: &[Accepted]) -> Vec<Rule> {
    let set = |(what, matches): &Accepted| Rule::new(what, [&matches[..], &[SetMark(mark)]].concat());
    accepted.iter().map(set).collect()
}

/// Clears the mark where it was set. Elsewhere another program has set that bit for a purpose of its own.
fn clear_mark(mark: u32, accepted: &[Accepted]) -> Vec<Rule> {
    let clear = |(what, matches): &Accepted| {
        Rule::new(what, [&[HasMark(mark)], &matches[..], &[ClearMark(mark)]].concat())
    };
    accepted.iter().map(clear).collect()
}

/// Matches what goes to a VIP, at any port.
pub(super) fn to_vip() -> Statement {
    let fields = &[Field::Daddr];
    Statement::InSet { fields, set: Element::VIPS }
}

/// Matches what goes to an address, protocol and port in a set.
pub(super) fn to(set: &'static str) -> Statement {
    let fields = &[Field::Daddr, Field::L4Proto, Field::ThDport];
    Statement::InSet { fields, set }
}

fn to_health_check() -> Statement {
    let fields = &[Field::L4Proto, Field::ThDport];
    Statement::InSet { fields, set: Element::HEALTH_CHECK_PORTS }
}

/// What matches flows from pods of this node; `None` if that is not known in this family.
pub(super) fn local_traffic(local: &LocalTraffic, family: Family) -> Option<Statement> {
    match local {
        LocalTraffic::Source { .. } => local.range(family).map(Statement::Saddr),
        LocalTraffic::Bridge(name) => Some(IifName(Interface::Name(name.clone()))),
        LocalTraffic::InterfacePrefix(prefix) => Some(IifName(Interface::Prefix(prefix.clone()))),
    }
}

pub(super) fn loopback(family: Family) -> IpNet {
    match family {
        Family::V4 => Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8).into(),
        Family::V6 => Ipv6Net::new_assert(Ipv6Addr::LOCALHOST, 128).into(),
    }
}
