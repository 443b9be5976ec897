#![allow(clippy::float_cmp, reason = "a page has each number as it was counted")]

use ipvs::Protocol;
use reconciler::{SyncReport, SyncStats, Trigger};
use service::{
    Change, Endpoint, EndpointPort, EndpointSlice, Event, ObjectName, Options, Service, ServicePort, State,
    TrafficPolicy,
};

use super::*;

/// The events of the writer thread, and the page that comes of them.
struct SyncEvents {
    registry: Registry,
    syncs: SyncMetrics,
    started: SystemTime,
    state: State,
}

impl SyncEvents {
    /// A daemon that started ten minutes ago.
    fn nothing(families: &[Family]) -> Self {
        let started = SystemTime::now() - Duration::from_secs(600);
        let mut registry = Registry::default();
        let syncs = SyncMetrics::register(&families.iter().copied().collect(), started, &mut registry);
        Self { registry, syncs, started, state: State::new(Options::new("node")) }
    }

    fn heard(&mut self, kind: ObjectKind, objects: usize, waits: bool) {
        self.syncs.on_change_applied(ChangeEvent { kind, objects, changes: 1, waits });
    }

    fn synced(&mut self, report: &SyncReport, complete: bool, triggered_at: &[SystemTime]) {
        self.syncs.on_sync(&SyncEvent {
            report,
            stats: &SyncStats::default(),
            complete,
            state: &self.state,
            triggered_at,
        });
    }

    /// The value of a metric with these labels.
    fn value(&self, metric: &str) -> f64 {
        let page = self.registry.text();
        let value = page.lines().find_map(|line| {
            line.strip_prefix("kubeproxy_").or(line.strip_prefix("kube_ipvs_"))?.strip_prefix(metric)
        });
        let value = value.and_then(|rest| rest.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("{metric} is not in\n{page}")).parse().unwrap()
    }

    fn values<const N: usize>(&self, metrics: [&str; N]) -> [f64; N] {
        metrics.map(|metric| self.value(metric))
    }
}

fn report(trigger: Trigger, milliseconds: u64) -> SyncReport {
    SyncReport { done: 1, took: Duration::from_millis(milliseconds), ..SyncReport::empty(trigger) }
}

fn now() -> f64 {
    since_1970(SystemTime::now()).as_secs_f64()
}

#[test]
fn a_sync_is_counted_for_each_family_that_is_served() {
    let mut events = SyncEvents::nothing(&Family::BOTH);
    events.synced(&report(Trigger::Change, 3), true, &[]);
    events.synced(&report(Trigger::Change, 5), false, &[]);
    for family in ["IPv4", "IPv6"] {
        let name = |suffix: &str| format!("sync_proxy_rules_duration_seconds_{suffix}");
        assert_eq!(events.value(&format!("{}{{ip_family=\"{family}\"}}", name("count"))), 2.0);
        assert_eq!(events.value(&format!("{}{{ip_family=\"{family}\"}}", name("sum"))), 0.008);
        for (bound, count) in [("0.001", 0.0), ("0.004", 1.0), ("0.008", 2.0), ("16.384", 2.0), ("+Inf", 2.0)]
        {
            let bucket = format!("{}{{le=\"{bound}\",ip_family=\"{family}\"}}", name("bucket"));
            assert_eq!(events.value(&bucket), count, "{bucket}");
        }
    }
    let mut events = SyncEvents::nothing(&[Family::V4]);
    events.synced(&report(Trigger::Change, 3), true, &[]);
    assert!(!events.registry.text().contains("IPv6"));
}

#[test]
fn kernel_event_syncs_count_only_if_something_was_done() {
    let mut events = SyncEvents::nothing(&[Family::V4]);
    events.synced(&SyncReport { done: 0, ..report(Trigger::KernelEvent, 1) }, true, &[]);
    let count = "sync_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"}";
    assert_eq!(events.value(count), 0.0);
    events.synced(&report(Trigger::KernelEvent, 1), true, &[]);
    events.synced(&SyncReport { done: 0, ..report(Trigger::Period, 1) }, true, &[]);
    assert_eq!(events.value(count), 2.0);
}

#[test]
fn changes_wait_until_a_sync_is_complete() {
    let mut events = SyncEvents::nothing(&[Family::V4]);
    let pending = ["sync_proxy_rules_service_changes_pending", "sync_proxy_rules_endpoint_changes_pending"];
    // Before the first sync all that was heard waits for it.
    events.heard(ObjectKind::Services, 3, false);
    events.heard(ObjectKind::EndpointSlices, 5, true);
    events.heard(ObjectKind::Node, 1, true);
    assert_eq!(events.values(pending), [3.0, 5.0]);
    events.synced(&report(Trigger::Start, 1), false, &[]);
    assert_eq!(events.values(pending), [3.0, 5.0], "the kernel could not be read");
    events.synced(&SyncReport { failed: 1, ..report(Trigger::Start, 1) }, true, &[]);
    assert_eq!(events.values(pending), [0.0, 0.0]);
    // Then only what changes something.
    events.heard(ObjectKind::Services, 1, false);
    events.heard(ObjectKind::EndpointSlices, 1, true);
    assert_eq!(events.values(pending), [0.0, 1.0]);
    let totals = ["sync_proxy_rules_service_changes_total", "sync_proxy_rules_endpoint_changes_total"];
    assert_eq!(events.values(totals), [4.0, 6.0]);
}

#[test]
fn timestamps_are_those_of_the_last_queued_change_and_the_last_complete_sync() {
    let mut events = SyncEvents::nothing(&[Family::V4]);
    let queued = "sync_proxy_rules_last_queued_timestamp_seconds{ip_family=\"IPv4\"}";
    let ended = "sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv4\"}";
    assert_eq!(events.values([queued, ended]), [since_1970(events.started).as_secs_f64(), 0.0]);
    events.heard(ObjectKind::Services, 1, false);
    events.synced(&report(Trigger::Period, 1), false, &[]);
    assert_eq!(events.values([queued, ended]), [since_1970(events.started).as_secs_f64(), 0.0]);
    let before = now();
    events.heard(ObjectKind::Node, 1, true);
    events.synced(&report(Trigger::Change, 1), true, &[]);
    let [queued, ended] = events.values([queued, ended]);
    assert!(before <= queued && queued <= ended && ended <= now(), "{before} {queued} {ended}");
}

#[test]
fn the_latency_of_what_was_asked_for_before_the_start_is_not_ours() {
    let mut events = SyncEvents::nothing(&[Family::V4]);
    let name = |suffix: &str| format!("network_programming_duration_seconds_{suffix}ip_family=\"IPv4\"}}");
    let before = events.started - Duration::from_secs(1);
    let ahead = SystemTime::now() + Duration::from_secs(3600);
    let two_seconds_ago = SystemTime::now() - Duration::from_millis(1500);
    events.synced(&report(Trigger::Change, 1), true, &[before, events.started, two_seconds_ago, ahead]);
    assert_eq!(events.value(&name("count{")), 2.0);
    // A clock that is ahead tells of no time at all.
    assert_eq!(events.value(&name("bucket{le=\"0.25\",")), 1.0);
    assert_eq!(events.value(&name("bucket{le=\"1\",")), 1.0);
    assert_eq!(events.value(&name("bucket{le=\"300\",")), 2.0);
}

#[test]
fn the_buckets_of_the_latency_are_those_of_kube_proxy() {
    let bounds: Vec<_> = latency_bounds().collect();
    assert_eq!(bounds.len(), 2 + 59 + 12 + 7);
    assert!(bounds.is_sorted());
    for bound in [0.25, 0.5, 1.0, 2.0, 59.0, 60.0, 65.0, 115.0, 120.0, 150.0, 300.0] {
        assert!(bounds.contains(&bound), "{bound}");
    }
}

#[test]
fn a_sync_of_which_the_kernel_refused_something_is_a_failure() {
    let mut events = SyncEvents::nothing(&[Family::V6]);
    events.synced(&report(Trigger::Change, 1), true, &[]);
    events.synced(&SyncReport { failed: 7, ..report(Trigger::Change, 1) }, true, &[]);
    assert_eq!(events.value("sync_proxy_rules_iptables_restore_failures_total{ip_family=\"IPv6\"}"), 1.0);
}

#[test]
fn services_without_an_endpoint_here_are_counted_by_policy_and_family() {
    let mut events = SyncEvents::nothing(&Family::BOTH);
    let name = ObjectName::new("default", "web");
    let web = Service {
        cluster_ips: vec!["10.96.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
        ports: vec![ServicePort { name: "".into(), protocol: Protocol::Tcp, port: 80, node_port: None }],
        internal_traffic_policy: TrafficPolicy::Local,
        ..Service::new(name.clone())
    };
    let elsewhere = Endpoint { node: Some("another".into()), ..Endpoint::new("10.244.7.7".parse().unwrap()) };
    events.state.apply(Change::Services(Event::Replace(vec![web])));
    events.state.apply(Change::Slices(Event::Replace(vec![EndpointSlice {
        ports: vec![EndpointPort { name: "".into(), protocol: Protocol::Tcp, port: 8080 }],
        endpoints: vec![elsewhere],
        ..EndpointSlice::new(name.clone(), name, Family::V4)
    }])));
    let count = |policy: &str, family: &str| {
        format!(
            "sync_proxy_rules_no_local_endpoints_total{{traffic_policy=\"{policy}\",ip_family=\"{family}\"}}"
        )
    };
    let internal = count("internal", "IPv4");
    events.synced(&report(Trigger::Change, 1), false, &[]);
    assert_eq!(events.value(&internal), 0.0, "nothing is programmed");
    events.synced(&report(Trigger::Change, 1), true, &[]);
    assert_eq!(events.value(&internal), 1.0);
    for (policy, family) in [("internal", "IPv6"), ("external", "IPv4"), ("external", "IPv6")] {
        assert_eq!(events.value(&count(policy, family)), 0.0, "{policy} {family}");
    }
}

#[test]
fn services_without_an_endpoint_are_counted_beside_all() {
    let mut events = SyncEvents::nothing(&Family::BOTH);
    let web = Service {
        cluster_ips: vec!["10.96.0.1".parse().unwrap()],
        ports: vec![ServicePort { name: "".into(), protocol: Protocol::Tcp, port: 80, node_port: None }],
        ..Service::new(ObjectName::new("default", "web"))
    };
    events.state.apply(Change::Slices(Event::Replace(Vec::new())));
    for (services, counted) in [(vec![web], 1.0), (vec![], 0.0)] {
        events.state.apply(Change::Services(Event::Replace(services)));
        events.synced(&report(Trigger::Change, 1), true, &[]);
        let count = |name| events.value(name);
        assert_eq!((count("services"), count("services_without_endpoints")), (counted, counted));
    }
}

#[test]
fn addresses_that_are_refused_are_counted_until_no_service_asks_for_them() {
    let mut events = SyncEvents::nothing(&Family::BOTH);
    let web = Service {
        cluster_ips: vec!["10.96.0.1".parse().unwrap()],
        external_ips: ["127.0.0.1", "203.0.113.7", "224.0.0.1"].map(|ip| ip.parse().unwrap()).to_vec(),
        ..Service::new(ObjectName::new("default", "web"))
    };
    events.state.apply(Change::Slices(Event::Replace(Vec::new())));
    for (services, refused) in [(vec![web], 2.0), (vec![], 0.0)] {
        events.state.apply(Change::Services(Event::Replace(services)));
        events.synced(&report(Trigger::Change, 1), true, &[]);
        assert_eq!(events.value("refused_addresses"), refused);
    }
}

#[test]
fn what_the_kernel_has_is_shown_until_more_is_known() {
    let mut registry = Registry::default();
    let mut metrics = ProgrammedMetrics::register(&mut registry);
    let (report, state) = (SyncReport::empty(Trigger::Change), State::new(Options::new("node")));
    let mut page = |programmed, problems| {
        let stats = SyncStats { programmed, problems, ..SyncStats::default() };
        let (report, stats, state) = (&report, &stats, &state);
        metrics.on_sync(&SyncEvent { report, stats, complete: true, state, triggered_at: &[] });
        let shown = registry.text();
        let values = ["virtual_servers", "real_servers", "vips", "problems"];
        values.map(|name| testkit::metrics::value(&shown, &format!("kube_ipvs_{name}")).unwrap().to_string())
    };
    let programmed =
        Some(Programmed { virtual_servers: 3, real_servers: 7, vips: 2, ..Programmed::default() });
    assert_eq!(page(programmed, 4), ["3", "7", "2", "4"]);
    assert_eq!(page(None, 5), ["3", "7", "2", "5"]);
    assert_eq!(page(Some(Programmed::default()), 0), ["0"; 4]);
}

#[test]
fn the_timeout_of_idle_connections_is_shown_in_seconds() {
    let mut registry = Registry::default();
    let metrics = ProgrammedMetrics::register(&mut registry);
    let shown = || testkit::metrics::value(&registry.text(), "kube_ipvs_tcp_timeout_seconds").unwrap();
    assert_eq!(shown().to_string(), "0");
    metrics.set_tcp_timeout(Duration::from_secs(86_400));
    assert_eq!(shown().to_string(), "86400");
}
