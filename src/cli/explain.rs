//! `kube-ipvs explain`.

mod address;
mod in_kernel;
mod text;

use std::{
    net::{IpAddr, SocketAddr},
    process::ExitCode,
    str::FromStr,
};

use serde::{Deserialize, Serialize};
use service::{Explanation, InvalidName, NotServed, ObjectName, one_line};

pub(super) use self::in_kernel::VirtualServer;
use super::{
    output::{print_as, say},
    question::Question,
};
use crate::serve::control::{Request, Response};

/// The answer: the desired state with its reasons, and what the kernel has.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Answer {
    #[serde(flatten)]
    pub(super) explanation: Explanation,
    /// The virtual servers at the addresses of the Service, as the kernel has them; `None` if it cannot be asked.
    pub(super) kernel: Option<Vec<VirtualServer>>,
}

/// What is asked about.
#[derive(Clone, Debug)]
pub(super) enum Subject {
    Service(ObjectName),
    Address(IpAddr),
}

impl FromStr for Subject {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let with_port = || text.parse::<SocketAddr>().map(|at| at.ip());
        match text.parse::<IpAddr>().or_else(|_| with_port()) {
            Ok(ip) => Ok(Self::Address(ip)),
            Err(_) => text.parse().map(Self::Service),
        }
    }
}

/// Prints where a Service is served and why each endpoint is used or not, or whose an address is. An unknown Service is a
/// failure.
pub(super) fn explain(subject: &Subject, question: &Question) -> anyhow::Result<ExitCode> {
    match subject {
        Subject::Service(service) => explain_service(service, question),
        Subject::Address(ip) => address::explain(*ip, question),
    }
}

fn explain_service(service: &ObjectName, question: &Question) -> anyhow::Result<ExitCode> {
    let request = Request::Explain { service: service.clone() };
    let expected = |response| if let Response::Explanation(it) = response { Some(*it) } else { None };
    let explanation = question.answer(&request, expected, |node| Ok(node.explain(service)))?;
    let kernel = in_kernel::read(&explanation).inspect_err(|error| {
        say(format_args!(
            "kube-ipvs: the kernel cannot be read, and nothing is said of what it has: {}",
            one_line(error.as_ref())
        ));
    });
    let answer = Answer { kernel: kernel.ok(), explanation };
    print_as(question.ask.output.format, &answer, || answer.to_string())?;
    let unknown = answer.explanation.not_served == Some(NotServed::Unknown);
    Ok(if unknown { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

#[cfg(test)]
mod tests {
    use std::num::NonZero;

    use ipvs::{Family, ObservedRealServer, Protocol, RealServer, Scheduler, ServiceAddress};
    use service::{
        AddressKind, AddressRefusal, Change, EndpointPath, EndpointReason, EndpointScope, EndpointSelection,
        ExplainedAddress, ExplainedBalancing, ExplainedEndpoint, ExplainedPart, HealthCheck, HintsIgnored,
        Options, RefusedAddress, Service, SpecialAddress, State, TrafficPolicy,
    };

    use super::{super::documented::assert_documented, in_kernel::Found, *};

    #[test]
    fn its_json_is_documented() {
        assert_documented("explain", &answer());
    }

    #[test]
    fn what_others_have_said_forges_no_line() {
        let text = |words: &str| {
            let mut answer = answer();
            answer.explanation.parts[0].port = words.to_owned();
            answer.explanation.parts[0].zone = Some(words.to_owned());
            answer.explanation.problems = vec![words.to_owned()];
            answer.to_string()
        };
        let forged = text("a\u{1b}[2J\nrefused: all is well");
        assert_eq!(forged.lines().count(), text("a").lines().count(), "{forged}");
        assert!(forged.contains(r"problem: a\u{1b}[2J\nrefused: all is well"), "{forged}");
    }

    /// An answer in which every field has a value.
    fn answer() -> Answer {
        let address = ServiceAddress { protocol: Protocol::Tcp, ip: [10, 96, 0, 10].into(), port: 80 };
        let real_server = RealServer::masquerade([10, 244, 1, 7].into(), 8080);
        let slice: ObjectName = "default/web-abc".parse().unwrap();
        let balancing = || ExplainedBalancing {
            scheduler: Scheduler::MH,
            scheduler_flags: vec!["mh-fallback".into()],
            max_connections: Some(100),
            resume_below: None,
        };
        let part = ExplainedPart {
            port: "http".to_owned(),
            protocol: Protocol::Tcp,
            family: Family::V4,
            selection: EndpointSelection::Ready(EndpointScope::Cluster),
            stands_in: false,
            direct_return: Some(balancing()),
            zone: Some("zone-a".to_owned()),
            hints_ignored: Some(HintsIgnored::NotOnEveryEndpoint),
            addresses: vec![ExplainedAddress {
                address,
                kind: AddressKind::LoadBalancer,
                policy: TrafficPolicy::Cluster,
                vip: true,
                owner: None,
                held_by: Some("default/older".parse().unwrap()),
                allowed_sources: Some(vec![([192, 0, 2, 0].into(), [192, 0, 2, 255].into())]),
            }],
            endpoints: vec![ExplainedEndpoint {
                address: real_server.address,
                slice: slice.clone(),
                reason: EndpointReason::NotReady,
                weight: NonZero::<u16>::MIN,
                way: Some(EndpointPath::Tunnel),
            }],
            slices_without_port: vec![slice.clone()],
        };
        let why = AddressRefusal::Special(SpecialAddress::Loopback);
        let explanation = Explanation {
            service: "default/web".parse().unwrap(),
            not_served: None,
            balancing: Some(balancing()),
            session_affinity: Some(60),
            parts: vec![part],
            unused_slices: vec![slice],
            refused: vec![RefusedAddress { ip: [127, 0, 0, 1].into(), kind: AddressKind::ExternalIp, why }],
            health_check: NonZero::new(32_000).map(|port| HealthCheck { port, ready_v4: 1, ready_v6: 0 }),
            problems: vec!["spec.ports[1] is wrong".to_owned()],
        };
        let observed = ObservedRealServer::new(real_server).connections(2, 1);
        let found = Found { scheduler: Scheduler::MH, real_servers: vec![observed] };
        let server = VirtualServer { address, found: Some(found) };
        Answer { explanation, kernel: Some(vec![server]) }
    }

    #[test]
    fn an_affinity_that_ipvs_does_not_keep_so_short_is_explained_and_no_other() {
        let text = |affinity: Option<u32>| {
            let mut state = State::new(Options::new("node"));
            state.apply(Change::ReplaceSlices(Vec::new()));
            state.apply(Change::ApplyService(Service {
                cluster_ips: vec![[10, 96, 0, 10].into()],
                session_affinity: affinity,
                ..Service::new(ObjectName::new("default", "web"))
            }));
            let explanation = state.explain(&ObjectName::new("default", "web"));
            assert_eq!(explanation.session_affinity, affinity);
            Answer { explanation, kernel: None }.to_string()
        };
        let said = "session affinity of 119 s: IPVS keeps a client of TCP at its endpoint for 120 s at least after \
                    its last connection\n";
        assert!(text(Some(119)).contains(said), "{}", text(Some(119)));
        for other in [Some(120), Some(10_800), None] {
            assert!(!text(other).contains("affinity"), "{}", text(other));
        }
    }
}
