//! What the first sync would remove and write, what is right already, and what is not served.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use dummy_interface::{
    DEVICE,
    Operation::{Bind, Unbind},
};
use ipvs::Command;
use reconciler::ForeignVirtualServers;
use service::{ObjectName, RefusedAddress, State};
use watcher::{Foreign, Operation, OperationKind, Plan};

use super::before_start::{BeforeStart, FirstSync};
use crate::finding::Finding;

/// What is wanted on this node, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Wanted {
    virtual_servers: usize,
    real_servers: usize,
    vips: usize,
}

impl Wanted {
    fn by(state: &State) -> Self {
        Self {
            virtual_servers: state.virtual_servers().count(),
            real_servers: state.virtual_servers().map(|server| server.real_servers.len()).sum(),
            vips: state.vips().count(),
        }
    }
}

const SUBJECT: &str = "first sync";

/// What the first sync would do, where the Services are known.
pub(super) fn check(node: &mut BeforeStart<'_>) -> Vec<Finding> {
    let (Some(state), Some(FirstSync { plan, kept })) = (node.state, &node.first_sync) else {
        return Vec::new();
    };
    let mut findings = planned(plan, Wanted::by(state), kept, &node.kernel.observed.dummy_interface.bound);
    findings.extend(refused(state.reports().refused()));
    findings
}

/// Names everything of others that is removed, and counts the rest. `kept` are foreign virtual servers that
/// stay, `bound` the VIPs that are there, also if kube-proxy has bound them and the first sync makes them
/// right.
fn planned(
    plan: &Plan,
    wanted: Wanted,
    kept: &ForeignVirtualServers,
    bound: &BTreeSet<IpAddr>,
) -> Vec<Finding> {
    let mut findings: Vec<_> = plan
        .foreign
        .iter()
        .map(|address| {
            Finding::warning(
                address,
                "this virtual server belongs to no Service (foreign): the first sync removes it",
            )
            .remedy(Foreign::REMEDY)
        })
        .collect();
    if kept.count > 0 {
        findings.push(Finding::note("foreign virtual servers", format!("{} stay: {kept}", kept.count)));
    }
    findings.extend(plan.operations().filter_map(|operation| {
        match operation {
            Operation::DummyInterface(Unbind(vip)) => Some(
                Finding::warning(
                    vip,
                    format!("no Service has this address of {DEVICE}: the first sync removes it"),
                )
                .remedy("if a program needs it, it belongs on another interface"),
            ),
            _ => None,
        }
    }));
    findings.push(writes(plan));
    findings.push(right(plan, wanted, bound));
    findings
}

fn writes(plan: &Plan) -> Finding {
    let mut kinds: BTreeMap<OperationKind, usize> = BTreeMap::new();
    plan.operations().for_each(|operation| *kinds.entry(operation.kind()).or_default() += 1);
    let kinds: Vec<_> = kinds.iter().map(|(kind, count)| format!("{kind} ({count})")).collect();
    match kinds.is_empty() {
        true => Finding::ok(SUBJECT, "writes nothing"),
        false => Finding::ok(SUBJECT, format!("will {}", kinds.join(", "))),
    }
}

/// How much of what is wanted is there.
fn right(plan: &Plan, wanted: Wanted, bound: &BTreeSet<IpAddr>) -> Finding {
    let mut lacking = Wanted::default();
    for operation in plan.operations() {
        match operation {
            Operation::Ipvs(Command::AddVirtualServer(_)) => lacking.virtual_servers += 1,
            Operation::Ipvs(Command::AddRealServer(..)) => lacking.real_servers += 1,
            Operation::DummyInterface(Bind(vip)) if !bound.contains(&vip) => lacking.vips += 1,
            _ => {}
        }
    }
    let there = |wanted: usize, lacking: usize| format!("{} of {wanted}", wanted.saturating_sub(lacking));
    Finding::ok(
        SUBJECT,
        format!(
            "already there: {} virtual servers, {} real servers, {} VIPs",
            there(wanted.virtual_servers, lacking.virtual_servers),
            there(wanted.real_servers, lacking.real_servers),
            there(wanted.vips, lacking.vips)
        ),
    )
}

/// One finding for each address that a Service will not have, though kube-proxy serves it (CVE-2020-8554).
fn refused<'a>(refused: impl Iterator<Item = (&'a ObjectName, &'a [RefusedAddress])>) -> Vec<Finding> {
    let of_service = |(service, refused): (&'a ObjectName, &'a [RefusedAddress])| {
        let finding = move |refused: &RefusedAddress| {
            Finding::warning(service, refused.to_string())
                .remedy("--external-ip-policy serves more addresses: docs/services.md#external-ips")
        };
        refused.iter().map(finding).collect::<Vec<_>>()
    };
    refused.flat_map(of_service).collect()
}

#[cfg(test)]
mod tests {
    use dummy_interface::Operation::EnsureDevice;
    use ipvs::{Protocol, RealServer, Scheduler, ServiceAddress, VirtualServer};
    use service::{Change, Event, Options, Service, ServicePort};

    use super::*;
    use crate::finding::Severity;

    fn at(ip: [u8; 4], port: u16) -> ServiceAddress {
        ServiceAddress { protocol: Protocol::Tcp, ip: ip.into(), port }
    }

    const WANTED: Wanted = Wanted { virtual_servers: 12, real_servers: 40, vips: 6 };

    #[test]
    fn what_is_of_others_is_named_one_by_one_and_the_rest_is_counted() {
        let (web, others) = (at([10, 96, 0, 10], 80), at([192, 0, 2, 7], 6443));
        let vip = |last| IpAddr::from([10, 96, 0, last]);
        let plan: Plan = [
            EnsureDevice.into(),
            Command::AddVirtualServer(VirtualServer::new(web, Scheduler::RR)).into(),
            Command::AddRealServer(web.into(), RealServer::masquerade([10, 244, 1, 7].into(), 8080)).into(),
            Command::AddRealServer(web.into(), RealServer::masquerade([10, 244, 1, 8].into(), 8080)).into(),
            Bind(vip(10)).into(),
            Bind(vip(11)).into(),
            Unbind(vip(99)).into(),
            Command::DeleteVirtualServer(others.into()).into(),
        ]
        .into_iter()
        .collect();
        let plan = Plan { foreign: BTreeSet::from([others]), ..plan };
        let bound = BTreeSet::from([vip(11), vip(99)]);
        let findings = planned(&plan, WANTED, &ForeignVirtualServers::default(), &bound);
        let said: Vec<_> =
            findings.iter().map(|it| (it.severity, format!("{}: {}", it.subject, it.what))).collect();
        let expected = [
            (
                Severity::Warning,
                "TCP 192.0.2.7:6443: this virtual server belongs to no Service (foreign): the first sync removes it",
            ),
            (
                Severity::Warning,
                "10.96.0.99: no Service has this address of kube-ipvs0: the first sync removes it",
            ),
            (
                Severity::Ok,
                "first sync: will ensure device (1), add virtual server (1), delete virtual server (1), \
                 add real server (2), bind (2), unbind (1)",
            ),
            (
                Severity::Ok,
                "first sync: already there: 11 of 12 virtual servers, 38 of 40 real servers, 5 of 6 VIPs",
            ),
        ];
        assert_eq!(said, expected.map(|(severity, text)| (severity, text.to_owned())));
        assert!(findings[0].remedy.as_ref().unwrap().contains("--foreign-virtual-servers=keep"));
    }

    #[test]
    fn where_all_is_as_wanted_nothing_is_written_and_what_is_kept_is_a_note() {
        let kept = [at([192, 0, 2, 7], 6443)].iter().collect();
        let findings = planned(&Plan::default(), WANTED, &kept, &BTreeSet::new());
        let said: Vec<_> = findings.into_iter().map(|it| it.what).collect();
        assert_eq!(
            said,
            [
                "1 stay: TCP 192.0.2.7:6443",
                "writes nothing",
                "already there: 12 of 12 virtual servers, 40 of 40 real servers, 6 of 6 VIPs"
            ]
        );
    }

    #[test]
    fn address_that_a_service_will_not_have_is_a_warning_with_the_reason() {
        let mut state = State::new(Options::new("node"));
        let mut web = Service::new(ObjectName::new("default", "web"));
        web.cluster_ips = vec![IpAddr::from([10, 96, 0, 10])];
        web.ports = vec![ServicePort { name: "".into(), protocol: Protocol::Tcp, port: 80, node_port: None }];
        web.external_ips = vec![IpAddr::from([127, 0, 0, 1])];
        state.apply(Change::Slices(Event::Replace(Vec::new())));
        state.apply(Change::Services(Event::Replace(vec![web])));
        let findings = refused(state.reports().refused());
        let [finding] = findings.as_slice() else { panic!("{findings:?}") };
        assert_eq!(
            (finding.subject.as_str(), finding.what.as_str()),
            ("default/web", "spec.externalIPs: 127.0.0.1 is not served: it is a loopback address")
        );
    }
}
