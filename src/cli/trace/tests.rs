use netfilter::{
    nft::{
        chain::{ListedChain, ObservedHook},
        message::Nfproto,
    },
    trace::{Headers, InstalledRule, Step, TRACE_TABLE, TraceEvent, TraceVerdict, Transport},
};

use super::{
    evidence::Evidence,
    flow::Flow,
    report::{Report, Reporter},
    way::Ways,
};

const CLIENT: &str = "192.0.2.9:40000";
const FRONTEND: &str = "10.96.0.10:80";
const NODE: &str = "10.244.1.1:40000";
const POD: &str = "10.244.1.2:8080";
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

/// What the kernel reports of some packets, and the chains that it has.
#[derive(Default)]
struct Kernel(Vec<TraceEvent>);

impl Kernel {
    fn chains() -> Vec<ListedChain> {
        let at = |table: &str, name: &str, number| ListedChain {
            family: Nfproto(2),
            table: table.into(),
            name: name.into(),
            hook: Some(ObservedHook { kind: "filter".into(), number, priority: 0, policy: 1 }),
        };
        vec![
            at(TRACE_TABLE, "requests", 0),
            at(TRACE_TABLE, "requests-of-node", 3),
            at(TRACE_TABLE, "answers", 0),
            at(TRACE_TABLE, "answers-of-node", 3),
            at(TRACE_TABLE, "delivered", 1),
            at(TRACE_TABLE, "sent", 4),
            at("filter", "FORWARD", 2),
            at("kube-ipvs", "filter-input", 1),
            at("kube-ipvs", "nat-postrouting", 4),
        ]
    }

    fn event(&mut self, packet: u32, [table, chain]: [&str; 2], step: Step, headers: Option<Headers>) {
        let (table, chain) = (table.into(), chain.into());
        let event = TraceEvent { packet, family: 2, table, chain, step, headers, input: None, output: None };
        self.0.push(event);
    }

    /// A passage that a policy ends.
    fn passes(&mut self, packet: u32, at: [&str; 2], headers: Headers) -> &mut Self {
        self.event(packet, at, Step::Begin, Some(headers));
        self.event(packet, at, Step::Policy(TraceVerdict::Accept), None);
        self
    }

    /// A passage in which a rule matches.
    fn matches(&mut self, packet: u32, at: [&str; 2], verdict: TraceVerdict, headers: Headers) -> &mut Self {
        self.event(packet, at, Step::Begin, Some(headers));
        self.event(packet, at, Step::Rule { handle: 7, verdict }, None);
        self
    }

    /// A request that IPVS sends to the pod, masqueraded.
    fn sends_a_request(&mut self, packet: u32) -> &mut Self {
        let [to_vip, to_pod] = [tcp(CLIENT, FRONTEND, SYN), tcp(CLIENT, POD, SYN)];
        self.matches(packet, [TRACE_TABLE, "requests"], TraceVerdict::Continue, to_vip)
            .passes(packet, [TRACE_TABLE, "answers"], to_vip)
            .passes(packet, ["kube-ipvs", "filter-input"], to_vip)
            .passes(packet, [TRACE_TABLE, "requests-of-node"], to_pod)
            .matches(packet, ["kube-ipvs", "nat-postrouting"], TraceVerdict::Accept, to_pod)
            .passes(packet, [TRACE_TABLE, "sent"], tcp(NODE, POD, SYN))
    }

    /// An answer of the pod that is marked.
    fn has_an_answer(&mut self, packet: u32, flags: u8) -> &mut Self {
        self.matches(packet, [TRACE_TABLE, "answers"], TraceVerdict::Continue, tcp(POD, NODE, flags))
    }

    fn report(&self) -> Report {
        let mut ways = Ways::new(&Self::chains());
        self.0.iter().cloned().for_each(|event| ways.take(event));
        let evidence = Evidence::begin();
        let mut reporter = Reporter::new(&evidence, |_| {
            Some(InstalledRule { number: 2, comment: "marked flows #0123".into() })
        });
        Report {
            flows: Flow::all(ways.all()).iter().map(|flow| reporter.flow(flow)).collect(),
            notes: Vec::new(),
        }
    }
}

fn tcp(source: &str, destination: &str, flags: u8) -> Headers {
    let end = |at: &str| at.parse::<std::net::SocketAddr>().unwrap();
    let (source, destination) = (end(source), end(destination));
    let transport = Transport::Tcp { source: source.port(), destination: destination.port(), flags };
    Headers { source: source.ip(), destination: destination.ip(), protocol: 6, transport }
}

/// What is printed of an answered flow.
const ANSWERED: &str = "\
request  192.0.2.9:40000 > 10.96.0.10:80 TCP SYN, from this node
  output       IPVS: to 10.244.1.2:8080
  postrouting  ip kube-ipvs nat-postrouting, rule 2 \"marked flows\" (nft -a list chain ip kube-ipvs nat-postrouting): accept
  postrouting  from 10.244.1.1:40000
answer   10.244.1.2:8080 > 10.244.1.1:40000 TCP SYN+ACK, from this node
  forward      NAT: to 192.0.2.9:40000
  postrouting  from 10.96.0.10:80
=> 192.0.2.9:40000 > 10.96.0.10:80: answered

";

#[test]
fn an_answered_flow_shows_what_ipvs_and_masquerading_have_done() {
    let mut kernel = Kernel::default();
    kernel
        .sends_a_request(1)
        .has_an_answer(2, SYN | ACK)
        .passes(2, ["filter", "FORWARD"], tcp(POD, CLIENT, SYN | ACK))
        .passes(2, [TRACE_TABLE, "sent"], tcp(FRONTEND, CLIENT, SYN | ACK));
    let report = kernel.report();
    assert!(report.flows[0].answered);
    assert_eq!(report.text(), ANSWERED);
}

#[test]
fn an_answer_that_a_chain_drops_is_named_with_the_command_that_shows_the_rule() {
    let mut kernel = Kernel::default();
    kernel.sends_a_request(1).has_an_answer(2, SYN | ACK).matches(
        2,
        ["filter", "FORWARD"],
        TraceVerdict::Drop,
        tcp(POD, CLIENT, SYN | ACK),
    );
    let report = kernel.report();
    assert!(!report.flows[0].answered);
    let text = report.text();
    assert!(
        text.ends_with(
            "the answer of 10.244.1.2 was dropped by ip filter FORWARD, rule 2 \"marked flows\" \
             (iptables -S FORWARD 2)\n\n"
        ),
        "{text}"
    );
}

#[test]
fn a_number_that_the_kernel_uses_again_is_another_packet() {
    let mut kernel = Kernel::default();
    kernel.sends_a_request(1).has_an_answer(1, RST).passes(
        1,
        [TRACE_TABLE, "sent"],
        tcp(FRONTEND, CLIENT, RST),
    );
    let text = kernel.report().text();
    assert!(text.ends_with("10.244.1.2 refuses: nothing listens there\n\n"), "{text}");
}

#[test]
fn a_request_without_an_answer_names_the_real_server() {
    let mut kernel = Kernel::default();
    kernel.sends_a_request(1).sends_a_request(2);
    let report = kernel.report();
    assert_eq!(report.flows.len(), 1, "it was sent again");
    assert!(report.text().contains("left this node for 10.244.1.2:8080, and no answer came back"));
}

#[test]
fn a_reset_after_an_answer_refuses_nothing() {
    let mut kernel = Kernel::default();
    kernel.sends_a_request(1);
    for (packet, flags) in [(2, SYN | ACK), (3, RST)] {
        let sent = tcp(FRONTEND, CLIENT, flags);
        kernel.has_an_answer(packet, flags).passes(packet, [TRACE_TABLE, "sent"], sent);
    }
    assert!(kernel.report().flows[0].answered);
}

#[test]
fn a_rule_that_rejects_is_named_although_this_node_answers() {
    let (vip, reset) = (tcp(CLIENT, FRONTEND, SYN), tcp(FRONTEND, CLIENT, RST));
    let mut kernel = Kernel::default();
    kernel
        .matches(1, [TRACE_TABLE, "requests"], TraceVerdict::Continue, vip)
        .matches(1, ["kube-ipvs", "filter-input"], TraceVerdict::Drop, vip)
        .matches(2, [TRACE_TABLE, "answers-of-node"], TraceVerdict::Continue, reset)
        .passes(2, [TRACE_TABLE, "sent"], reset);
    let text = kernel.report().text();
    assert!(text.contains("the request of 192.0.2.9 was dropped by ip kube-ipvs filter-input"), "{text}");
}

#[test]
fn packets_that_another_program_traces_are_left_out() {
    let mut kernel = Kernel::default();
    let foreign = tcp("192.0.2.5:1", "192.0.2.6:22", SYN);
    kernel.passes(1, [TRACE_TABLE, "requests"], foreign).passes(1, ["filter", "FORWARD"], foreign);
    assert!(kernel.report().flows.is_empty());
}

#[test]
fn the_first_and_last_packets_of_many_are_shown_and_the_rest_counted() {
    let mut kernel = Kernel::default();
    (1..=9).for_each(|packet| _ = kernel.sends_a_request(packet));
    let text = kernel.report().text();
    assert_eq!(text.matches("request  ").count(), 4, "{text}");
    assert!(text.contains("\n… 5 more packets\n"), "{text}");
}

#[test]
fn a_long_trace_remembers_so_many_packets_and_no_more() {
    let mut kernel = Kernel::default();
    (0..2010).for_each(|packet| _ = kernel.sends_a_request(packet));
    let mut ways = Ways::new(&Kernel::chains());
    kernel.0.into_iter().for_each(|event| ways.take(event));
    assert!(ways.are_full());
    assert_eq!(ways.all().count(), 2000);
}
