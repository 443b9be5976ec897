use ipvs::{
    Command, ObservedRealServer, Protocol, RealServer, Scheduler, ServiceAddress, Stats, VirtualServer,
};
use netlink::Errno;
use reconciler::{Callbacks, Timing, VirtualServerOwner};
use service::{Change, Event, ObjectName, Options, Service, ServicePort, State};
use testkit::FakeKernel;
use watcher::{Foreign, Kernel, Ownership};

use super::{
    reading::{MOST_SERIES, ServiceCounters, TrafficReading},
    *,
};

fn address(number: u16, port: u16) -> ServiceAddress {
    let [high, low] = number.to_be_bytes();
    ServiceAddress { protocol: Protocol::Tcp, ip: [10, 96, high, low].into(), port }
}

/// So many virtual servers with a real server each, and their owners: the last one has none.
fn table(count: u16) -> (FakeKernel, Vec<VirtualServerOwner>) {
    let kernel = FakeKernel::new();
    let addresses: Vec<_> = (0..count).map(|number| address(number, 80)).collect();
    let commands: Vec<_> = addresses
        .iter()
        .flat_map(|&of| {
            let server = RealServer::masquerade([10, 244, 0, 1].into(), 8080);
            let virtual_server = Command::AddVirtualServer(VirtualServer::new(of, Scheduler::RR));
            [virtual_server, Command::AddRealServer(of.into(), server)]
        })
        .collect();
    kernel.clone().apply(&commands).unwrap();
    let owners = addresses.iter().take(usize::from(count) - 1).enumerate();
    let owners = owners.map(|(number, &address)| {
        let service = ObjectName::new("shop", format!("web-{number:05}"));
        VirtualServerOwner { address, service, real_servers: 1 }
    });
    (kernel, owners.collect())
}

#[test]
fn a_virtual_server_has_the_series_of_kube_router_and_a_real_server_more() {
    let mut stats = Stats::default();
    stats.connections = 1;
    (stats.packets_in, stats.packets_out, stats.bytes_in, stats.bytes_out) = (2, 3, 4, 5);
    stats.connections_per_second = 6;
    (stats.packets_in_per_second, stats.packets_out_per_second) = (7, 8);
    (stats.bytes_in_per_second, stats.bytes_out_per_second) = (9, 10);
    let real_server = RealServer::masquerade([10, 244, 0, 1].into(), 8080);
    let real_server = ObservedRealServer::new(real_server).connections(11, 12).stats(stats);
    let counted = ServiceCounters {
        owner: VirtualServerOwner {
            address: address(1, 80),
            service: ObjectName::new("shop", "web"),
            real_servers: 1,
        },
        stats,
        real_servers: vec![real_server],
    };
    let reading = TrafficReading { virtual_servers: vec![counted], ..TrafficReading::default() };
    let text = series::text(&reading, Duration::from_millis(2));
    let rendered: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
    let labels =
        r#"svc_namespace="shop",service_name="web",service_vip="10.96.0.1",protocol="tcp",port="80""#;
    let router = [
        ("total_connections", 1),
        ("packets_in", 2),
        ("packets_out", 3),
        ("bytes_in", 4),
        ("bytes_out", 5),
        ("cps", 6),
        ("pps_in", 7),
        ("pps_out", 8),
        ("bps_in", 9),
        ("bps_out", 10),
    ];
    let of_service = router.map(|(name, value)| format!("kube_router_service_{name}{{{labels}}} {value}"));
    let endpoint = r#"endpoint_ip="10.244.0.1",endpoint_port="8080""#;
    let ours = [
        ("connections_total", 1),
        ("packets_in_total", 2),
        ("packets_out_total", 3),
        ("bytes_in_total", 4),
        ("bytes_out_total", 5),
        ("active_connections", 11),
    ];
    let of_endpoint =
        ours.map(|(name, value)| format!("kube_ipvs_endpoint_{name}{{{labels},{endpoint}}} {value}"));
    let about = [
        "kube_ipvs_service_metrics_dropped_series 0".to_owned(),
        "kube_ipvs_service_metrics_cut_namespaces 0".to_owned(),
        "kube_ipvs_service_metrics_read_seconds 0.002".to_owned(),
    ];
    assert_eq!(rendered, [&of_service[..], &of_endpoint, &about].concat());
    assert!(
        text.starts_with("# HELP kube_router_service_total_connections Connections scheduled\n"),
        "{text}"
    );
}

#[test]
fn a_service_may_have_any_name_that_a_file_gives_it() {
    let owner = VirtualServerOwner {
        address: address(1, 80),
        service: ObjectName::new("a\nb", r#"c"d\e"#),
        real_servers: 0,
    };
    let counted = ServiceCounters { owner, stats: Stats::default(), real_servers: Vec::new() };
    let text = series::text(
        &TrafficReading { virtual_servers: vec![counted], ..TrafficReading::default() },
        Duration::ZERO,
    );
    let labels = r#"{svc_namespace="a\nb",service_name="c\"d\\e",service_vip="10.96.0.1","#;
    assert!(text.contains(labels), "{text}");
}

#[test]
fn what_is_nobodys_service_is_not_shown_and_real_servers_only_when_asked_for() {
    let (mut kernel, owners) = table(3);
    let reading = TrafficReading::take(&mut kernel, owners.clone(), false).unwrap();
    let rendered: Vec<_> =
        reading.virtual_servers.iter().map(|it| (it.owner.service.name(), it.owner.address)).collect();
    assert_eq!(rendered, [("web-00000", address(0, 80)), ("web-00001", address(1, 80))]);
    assert!(reading.virtual_servers.iter().all(|it| it.real_servers.is_empty()), "{reading:?}");
    assert_eq!(kernel.state().real_server_reads, 0, "they cost a request for each virtual server");
    let reading = TrafficReading::take(&mut kernel, owners, true).unwrap();
    assert!(reading.virtual_servers.iter().all(|it| it.real_servers.len() == 1), "{reading:?}");
}

#[test]
fn what_is_more_than_the_most_is_dropped_and_counted_the_last_services_first() {
    let most = u16::try_from(MOST_SERIES / series::OF_VIRTUAL_SERVER).unwrap();
    let (mut kernel, owners) = table(most + 4);
    let reading = TrafficReading::take(&mut kernel, owners.clone(), false).unwrap();
    assert_eq!((reading.virtual_servers.len(), reading.dropped), (most.into(), 3 * 10));
    assert_eq!(reading.virtual_servers.last().unwrap().owner.service.name(), "web-09999");
    // No room for any endpoint.
    let reading = TrafficReading::take(&mut kernel, owners, true).unwrap();
    assert!(reading.virtual_servers.iter().all(|it| it.real_servers.is_empty()));
    assert_eq!(reading.dropped, 3 * 10 + usize::from(most) * 6);
    assert_eq!(kernel.state().real_server_reads, 0, "what is not shown is not read");
}

/// Moves Services to other namespaces: so many of the last ones to each.
fn in_namespaces(owners: &mut [VirtualServerOwner], namespaces: &[(&str, usize)]) {
    let names = namespaces.iter().flat_map(|(namespace, count)| std::iter::repeat_n(namespace, *count));
    for (owner, namespace) in owners.iter_mut().rev().zip(names) {
        owner.service = ObjectName::new(namespace, owner.service.name());
    }
}

#[test]
fn one_namespace_does_not_hide_the_others() {
    let most = u16::try_from(MOST_SERIES / series::OF_VIRTUAL_SERVER).unwrap();
    let (mut kernel, mut owners) = table(most + 101);
    let all = owners.len();
    in_namespaces(&mut owners, &[("kube-system", 4), ("zoo", 30), ("aaa", all - 34)]);
    let reading = TrafficReading::take(&mut kernel, owners, false).unwrap();
    let shown = |reading: &TrafficReading, namespace| {
        reading.virtual_servers.iter().filter(|it| it.owner.service.namespace() == namespace).count()
    };
    assert_eq!(["kube-system", "zoo", "aaa"].map(|it| shown(&reading, it)), [4, 30, usize::from(most) - 34]);
    assert_eq!((reading.dropped, &reading.cut), (100 * 10, &["aaa".to_owned()].into()));

    // There is room for 5,001 endpoints.
    let (mut kernel, mut owners) = table(7_000);
    in_namespaces(&mut owners, &[("kube-system", 4), ("zoo", 995), ("aaa", 6_000)]);
    let reading = TrafficReading::take(&mut kernel, owners, true).unwrap();
    let with_endpoints = |namespace| {
        let all = reading.virtual_servers.iter().filter(|it| it.owner.service.namespace() == namespace);
        all.filter(|it| !it.real_servers.is_empty()).count()
    };
    assert_eq!(["kube-system", "zoo", "aaa"].map(with_endpoints), [4, 995, 4_002]);
    assert_eq!((reading.dropped, &reading.cut), (1_998 * 6, &["aaa".to_owned()].into()));
}

/// A writer thread that serves one Service on this kernel.
fn writer(kernel: &FakeKernel) -> Handle {
    let (ipvs, netfilter, dummy_interface) = kernel.subsystems();
    let ours =
        Ownership { families: ipvs::Family::BOTH.into(), exclude: Vec::new(), foreign: Foreign::Delete };
    let timing = Timing {
        sync_period: Duration::from_secs(3600),
        min_sync_period: Duration::ZERO,
        drain_timeout: None,
        tcp_timeout: Timing::TCP_TIMEOUT,
    };
    let state = State::new(Options::new("node"));
    let kernel = Kernel { ipvs, netfilter, dummy_interface };
    let (handle, _) = reconciler::start(state, kernel, ours, timing, Callbacks::none()).unwrap();
    let web = Service {
        cluster_ips: vec!["10.96.0.1".parse().unwrap()],
        ports: vec![ServicePort { name: "".into(), protocol: Protocol::Tcp, port: 80, node_port: None }],
        ..Service::new(ObjectName::new("shop", "web"))
    };
    handle.change(Change::Services(Event::Replace(vec![web])));
    handle.change(Change::Slices(Event::Replace(Vec::new())));
    handle.resync().unwrap();
    handle
}

#[tokio::test]
async fn a_page_has_what_was_read_for_it_and_one_reading_is_good_for_some_seconds() {
    let kernel = FakeKernel::new();
    let traffic = TrafficMetrics::default();
    assert_eq!(traffic.text().await, "", "nothing is read before the first request");
    traffic.start(ServiceMetrics::Service, || Ok(kernel.clone()), writer(&kernel)).unwrap();
    kernel.heal();
    for _ in 0..3 {
        let text = String::from_utf8(traffic.text().await.into()).unwrap();
        assert!(text.contains("\nkube_router_service_bytes_in{svc_namespace=\"shop\","), "{text}");
    }
    assert_eq!(kernel.state().full_reads, 1);
}

#[tokio::test]
async fn what_cannot_be_read_is_not_shown_and_off_reads_nothing() {
    let kernel = FakeKernel::new();
    let handle = writer(&kernel);
    let traffic = TrafficMetrics::default();
    traffic.start(ServiceMetrics::Service, || Ok(kernel.clone()), handle.clone()).unwrap();
    assert_ne!(traffic.text().await, "");
    kernel.heal();
    kernel.fail_call(0, Errno::ENOMEM);
    grow_older(&traffic, FRESH);
    assert_eq!(traffic.text().await, "", "nor what was read before");
    kernel.heal();
    let off = TrafficMetrics::default();
    let open = || -> Result<FakeKernel, _> { panic!("the kernel is opened without a request") };
    off.start(ServiceMetrics::Off, open, handle).unwrap();
    assert_eq!(off.text().await, "");
}

/// As if what is shown had been read that much earlier.
fn grow_older(traffic: &TrafficMetrics, by: Duration) {
    traffic.0.rendered.send_modify(|rendered| rendered.at = rendered.at.unwrap().checked_sub(by));
}

#[test]
fn a_hanging_kernel_shows_the_last_reading_for_half_a_minute_and_is_asked_once() {
    let kernel = FakeKernel::new();
    let traffic = TrafficMetrics::default();
    traffic.start(ServiceMetrics::Service, || Ok(kernel.clone()), writer(&kernel)).unwrap();
    kernel.heal();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let page = || runtime.block_on(traffic.text());
    let before = page();
    assert_ne!(before, "");
    let hangs = kernel.state();
    // Time only jumps.
    runtime.block_on(async { tokio::time::pause() });
    grow_older(&traffic, FRESH);
    for _ in 0..3 {
        assert_eq!(page(), before);
    }
    grow_older(&traffic, STALE);
    assert_eq!(page(), "");
    drop(hangs);
    runtime.block_on(async { tokio::time::resume() });
    assert_ne!(page(), "", "it hangs no more");
    assert!(kernel.state().full_reads <= 3, "not one for each that asked in vain");
}
