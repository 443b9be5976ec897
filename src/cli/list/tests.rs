use ipvs::{Protocol, RealServer, Scheduler, Stats, VirtualServer};
use netfilter::Element;

use super::{
    super::documented_tests::{assert_documented, assert_printed},
    *,
};

/// Our tables with these elements.
fn with<const COUNT: usize>(elements: [Element; COUNT]) -> netfilter::Observed {
    netfilter::Observed { elements: elements.into_iter().collect(), ..netfilter::Observed::default() }
}

#[test]
fn its_json_is_documented() {
    let vip = ServiceAddress { protocol: Protocol::Tcp, ip: [10, 96, 0, 10].into(), port: 80 };
    let mut stats = Stats::default();
    (stats.connections, stats.packets_in, stats.bytes_in) = (7, 42, 4200);
    let real_server = RealServer::masquerade([10, 244, 1, 7].into(), 8080);
    let mut real_server = ObservedRealServer::new(real_server).connections(2, 1).stats(stats);
    real_server.persistent_connections = 1;
    let virtual_server = VirtualServer::new(vip, Scheduler::RR).persistent(10_800);
    let virtual_server = ObservedVirtualServer::new(virtual_server).stats(stats);
    let owners: Owners = [(vip, "default/web".parse().unwrap())].into_iter().collect();
    let servers = vec![(virtual_server, vec![real_server])];
    let servers = Servers { info: Info::new((1, 2, 1), 4096), servers };
    let part = Part { filter: None, owners: Some(&owners) };
    assert_documented("list", &servers.table(part, &with([Element::ClusterIp(vip)])));
}

#[test]
fn foreign_is_what_our_tables_know_nothing_of() {
    let at = |port| ServiceAddress { protocol: Protocol::Tcp, ip: [10, 96, 0, 10].into(), port };
    let mark = VirtualServerId::Mark { family: ipvs::Family::V4, mark: 7 };
    let servers = [at(80).into(), at(81).into(), at(82).into(), mark].map(|id: VirtualServerId| {
        (ObservedVirtualServer::new(VirtualServer::new(id, Scheduler::RR)), Vec::new())
    });
    let ours = with([Element::ClusterIp(at(80)), Element::ExternalLocal(at(81)), Element::Vip(at(82).ip)]);
    let servers = Servers { info: Info::new((1, 2, 1), 4096), servers: servers.into() };
    let table = servers.table(Part::ALL, &ours);
    let foreign: Vec<_> = table.virtual_servers.iter().map(|row| row.foreign).collect();
    assert_eq!(foreign, [false, false, true, true]);
}

const KERNEL: &str = "\
Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData
TCP C0000207 C738 0A60000A 0050 fd00:0000:0000:0000:0000:0000:0000:0007 1F90 ESTABLISHED     899
UDP C0000207 C739 0A600014 0035 0AF40005 0035 UDP             299
";

/// What is printed of these connections.
fn printed(format: Format, part: Part<'_>) -> String {
    let mut lines = String::new();
    for_each_connection(KERNEL.as_bytes(), |connection| {
        if leads_to(part, connection) {
            lines += &one_of_many(format, connection, || format!("{connection}\n"))?;
        }
        Ok(())
    })
    .unwrap();
    lines
}

#[test]
fn its_lines_of_json_are_documented() {
    let filter = "10.96.0.10:80".parse().unwrap();
    assert_printed("list -c", &printed(Format::Json, Part { filter: Some(&filter), owners: None }));
}

#[test]
fn those_of_a_service_are_those_to_its_addresses() {
    let dns = ServiceAddress { protocol: ipvs::Protocol::Udp, ip: [10, 96, 0, 20].into(), port: 53 };
    let owners: Owners = [(dns, "kube-system/dns".parse().unwrap())].into_iter().collect();
    let shown = |filter: &str| {
        let filter = filter.parse().unwrap();
        printed(Format::Text, Part { filter: Some(&filter), owners: Some(&owners) })
    };
    let line = "UDP 04:59  UDP         192.0.2.7:51001    10.96.0.20:53      10.244.0.5:53\n";
    assert_eq!([shown("kube-system"), shown("kube-system/dns")], [line, line]);
    assert_eq!(shown("default"), "");
    assert_eq!(printed(Format::Text, Part { filter: None, owners: None }).lines().count(), 2);
}
