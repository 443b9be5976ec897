//! `kube-ipvs diff`. Its JSON is one object for each operation, independent of the inner form of a plan.

use std::{net::IpAddr, process::ExitCode};

use dummy_interface::Operation as DeviceOperation;
use ipvs::{
    Command, Family, Protocol, RealServer, RealServerAddress, ServiceAddress, VirtualServer, VirtualServerId,
};
use netfilter::{
    AllowedSource, ClusterIpFor, Content, Element, HairpinFlow, HealthCheckPort, MaxSegmentSize,
    Operation as TableOperation, PodPort, TunnelExit, tunnel,
};
use serde::Serialize;
use watcher::{Operation, OperationKind, Plan};

use super::{
    output::{self, doubt, print_as},
    question::Question,
};
use crate::{
    daemon::WithoutDaemon,
    serve::control::{Control, Difference},
};

/// The exit code if something differs, as of diff.
const DIFFERENT: u8 = 1;

/// Prints the operations that would remove the differences, one a line. Carries none out.
pub(super) fn diff(question: &Question) -> anyhow::Result<ExitCode> {
    let plan = compare(question)?;
    Ok(if plan.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(DIFFERENT) })
}

fn compare(question: &Question) -> anyhow::Result<Plan> {
    let without_daemon =
        |node: &mut WithoutDaemon<'_>| Ok(Difference { plan: node.compare()?, troubles: node.doubts() });
    let Difference { plan, troubles } = question.answer(Control::diff, without_daemon)?;
    doubt(&troubles);
    print_as(question.ask.output.format, &DiffJson::new(&plan, &troubles), || plan.to_string())?;
    Ok(plan)
}

/// The difference for programs.
pub(super) fn json(Difference { plan, troubles }: &Difference) -> anyhow::Result<String> {
    Ok(output::json(&DiffJson::new(plan, troubles))?)
}

/// The difference.
#[derive(Serialize)]
struct DiffJson<'a> {
    /// The operations that would remove it, in this order.
    operations: Vec<OperationRow>,
    /// Why the desired state may be out of date.
    troubles: &'a [String],
}

#[derive(Serialize)]
struct OperationRow {
    operation: OperationKind,
    /// As without `-o json`.
    text: String,
    #[serde(flatten)]
    about: Subject,
    /// Of a virtual server that is deleted: whether no Service made it.
    #[serde(skip_serializing_if = "Option::is_none")]
    foreign: Option<bool>,
}

/// The subject of an operation. Fields that do not apply are left out.
#[derive(Serialize)]
#[serde(untagged)]
enum Subject {
    VirtualServer {
        virtual_server: Option<ServiceAddress>,
        #[serde(skip_serializing_if = "Option::is_none")]
        wanted: Option<VirtualServer>,
    },
    RealServer {
        virtual_server: Option<ServiceAddress>,
        real_server: RealServerAddress,
        #[serde(skip_serializing_if = "Option::is_none")]
        wanted: Option<RealServer>,
    },
    Element {
        family: Family,
        set: &'static str,
        element: ElementFields,
    },
    Table {
        family: Family,
    },
    Device {
        device: &'static str,
    },
    Vip {
        vip: IpAddr,
    },
}

/// The fields of an element; they depend on the set.
#[derive(Serialize)]
#[serde(untagged)]
enum ElementFields {
    Vip { ip: IpAddr },
    Served { address: ServiceAddress },
    AllowedSource { address: ServiceAddress, first: IpAddr, last: IpAddr },
    Pod { protocol: Protocol, pod: RealServerAddress },
    HealthCheckPort { protocol: Protocol, port: u16 },
    ClusterIpFor { address: ServiceAddress, cluster_ip: RealServerAddress },
    MaxSegmentSize { address: ServiceAddress, bytes: u16 },
    TunnelExit { address: ServiceAddress, pod: RealServerAddress },
}

impl<'a> DiffJson<'a> {
    fn new(plan: &Plan, troubles: &'a [String]) -> Self {
        let row = |operation: Operation| OperationRow {
            operation: operation.kind(),
            text: plan.line(&operation),
            foreign: (operation.kind() == OperationKind::DeleteVirtualServer)
                .then(|| plan.foreign_deleted_by(&operation).is_some()),
            about: Subject::from_operation(operation),
        };
        Self { operations: plan.operations().map(row).collect(), troubles }
    }
}

impl Subject {
    fn from_operation(operation: Operation) -> Self {
        match operation {
            Operation::Ipvs(command) => Self::ipvs(command),
            Operation::Netfilter(
                TableOperation::PrepareTable(family)
                | TableOperation::InstallTable(family)
                | TableOperation::AddDirectReturn(family)
                | TableOperation::RemoveDirectReturn(family),
            ) => Self::Table { family },
            Operation::Netfilter(
                TableOperation::AddElement(element) | TableOperation::DeleteElement(element),
            ) => Self::Element {
                family: element.family(),
                set: element.set(),
                element: ElementFields::from_element(element),
            },
            Operation::DummyInterface(DeviceOperation::EnsureDevice) => {
                Self::Device { device: dummy_interface::DEVICE }
            }
            Operation::DummyInterface(
                DeviceOperation::EnsureTunnel(family) | DeviceOperation::RemoveTunnel(family),
            ) => Self::Device { device: tunnel::device(family) },
            Operation::DummyInterface(DeviceOperation::Bind(vip) | DeviceOperation::Unbind(vip)) => {
                Self::Vip { vip }
            }
        }
    }

    fn ipvs(command: Command) -> Self {
        // No plan has virtual servers of firewall marks.
        let virtual_server = match command.virtual_server() {
            VirtualServerId::Address(address) => Some(address),
            VirtualServerId::Mark { .. } => None,
        };
        let real_server = |real_server, wanted| Self::RealServer { virtual_server, real_server, wanted };
        match command {
            Command::AddVirtualServer(wanted) | Command::EditVirtualServer(wanted) => {
                Self::VirtualServer { virtual_server, wanted: Some(wanted) }
            }
            Command::DeleteVirtualServer(_) => Self::VirtualServer { virtual_server, wanted: None },
            Command::AddRealServer(_, wanted) | Command::EditRealServer(_, wanted) => {
                real_server(wanted.address, Some(wanted))
            }
            Command::DeleteRealServer(_, address) => real_server(address, None),
        }
    }
}

impl ElementFields {
    fn from_element(element: Element) -> Self {
        match element.content() {
            Content::IpAddr(ip) => Self::Vip { ip: *ip },
            Content::ServiceAddress(address) => Self::Served { address: *address },
            Content::AllowedSource(&AllowedSource { to, first, last }) => {
                Self::AllowedSource { address: to, first, last }
            }
            Content::HairpinFlow(&HairpinFlow { protocol, pod })
            | Content::PodPort(&PodPort { protocol, pod }) => Self::Pod { protocol, pod },
            Content::HealthCheckPort(&HealthCheckPort { port, .. }) => {
                Self::HealthCheckPort { protocol: Protocol::Tcp, port }
            }
            Content::ClusterIpFor(&ClusterIpFor { to, cluster_ip }) => {
                Self::ClusterIpFor { address: to, cluster_ip }
            }
            Content::MaxSegmentSize(&MaxSegmentSize { to, bytes }) => {
                Self::MaxSegmentSize { address: to, bytes }
            }
            Content::TunnelExit(&TunnelExit { to, pod }) => Self::TunnelExit { address: to, pod },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use ipvs::Scheduler;

    use super::{super::documented_tests::assert_documented, *};

    #[test]
    fn its_json_is_documented() {
        let vip = ServiceAddress { protocol: Protocol::Tcp, ip: [10, 96, 0, 10].into(), port: 80 };
        let real_server = RealServer::masquerade([10, 244, 1, 7].into(), 8080);
        let gone = RealServerAddress { ip: [10, 244, 1, 8].into(), port: 8080 };
        let allowed = AllowedSource { to: vip, first: [192, 0, 2, 0].into(), last: [192, 0, 2, 255].into() };
        let hairpin = HairpinFlow { protocol: Protocol::Tcp, pod: real_server.address };
        let health_check = HealthCheckPort { family: Family::V4, port: 32_000 };
        let others = ServiceAddress { protocol: Protocol::Tcp, ip: [192, 0, 2, 7].into(), port: 6443 };
        let plan: Plan = [
            DeviceOperation::EnsureDevice.into(),
            TableOperation::InstallTable(Family::V4).into(),
            TableOperation::AddElement(Element::ClusterIp(vip)).into(),
            TableOperation::AddElement(Element::AllowedSource(allowed)).into(),
            TableOperation::AddElement(Element::Hairpin(hairpin)).into(),
            TableOperation::AddElement(Element::Vip(vip.ip)).into(),
            TableOperation::AddElement(Element::HealthCheckPort(health_check)).into(),
            Command::AddVirtualServer(VirtualServer::new(vip, Scheduler::RR)).into(),
            Command::AddRealServer(vip.into(), real_server).into(),
            DeviceOperation::Bind(vip.ip).into(),
            Command::DeleteRealServer(vip.into(), gone).into(),
            Command::DeleteVirtualServer(vip.into()).into(),
            Command::DeleteVirtualServer(others.into()).into(),
        ]
        .into_iter()
        .collect();
        let plan = Plan { foreign: BTreeSet::from([others]), ..plan };
        let troubles =
            ["API server: nodes not watched for 3 s: forbidden; the programmed state is kept".to_owned()];
        assert_documented("diff", &DiffJson::new(&plan, &troubles));
    }
}
