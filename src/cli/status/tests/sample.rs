//! A status in which every field has a value.

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use ipvs::{Family, Protocol, RealServerAddress, Scheduler, ServiceAddress};
use kubernetes::api::{PastFailure, Watch, WatchState};
use reconciler::{
    BusyWith, Drain, EjectedFrom, FirstNamed, KernelDifference, LastSync, SyncReport, SyncState, Trigger,
};
use service::{
    EjectedEndpoint, EjectionCause, EjectionState,
    liveness::{Answering, Liveness},
};
use watcher::OperationKind;

use crate::{
    config::VipBinding,
    finding::{Cause, Finding},
    serve::control::{CountedPackets, DaemonInfo, DaemonStatus, KernelInfo, RecentPackets, SourceInfo},
    serve::liveness::{AnswersSummary, EndpointCounts, FailingEndpoint},
};

fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

/// Every field with a value.
pub(in crate::cli) fn status() -> DaemonStatus {
    DaemonStatus {
        daemon: daemon(),
        programmed: programmed(),
        packets: packets(),
        advice: advice(),
        endpoints: endpoints(),
    }
}

fn daemon() -> DaemonInfo {
    let watch = |resource: &str, state, age, last_failure| Watch {
        resource: resource.to_owned(),
        state,
        age: seconds(age),
        last_failure,
    };
    let failure = |age| {
        let cause = "the server answered 503 Service Unavailable".to_owned();
        Some(PastFailure { cause, age: seconds(age) })
    };
    DaemonInfo {
        version: "0.1.0".to_owned(),
        node: "node-1".to_owned(),
        uptime: seconds(11_520.0),
        source: SourceInfo::ApiServer {
            address: "10.0.0.1:6443".to_owned(),
            watches: vec![
                watch("endpointslices", WatchState::Failing, 42.5, failure(3.25)),
                watch("nodes", WatchState::Watching, 11_519.5, None),
                watch("services", WatchState::Watching, 600.0, failure(601.5)),
            ],
        },
        kernel: Some(KernelInfo {
            release: "5.4.0-216-generic".to_owned(),
            ipvs: "1.2.1".to_owned(),
            families: Family::BOTH.into(),
            vip_binding: VipBinding::Address,
            scheduler: Scheduler::RR,
            lacks: vec!["sets of intervals of concatenations (nft_set_pipapo, Linux 5.6), IPv4".to_owned()],
        }),
    }
}

fn programmed() -> reconciler::SyncStatus {
    let draining = |last| Drain {
        service: Some("default/web".parse().unwrap()),
        virtual_server: ServiceAddress { protocol: Protocol::Tcp, ip: [10, 96, 0, 10].into(), port: 80 },
        real_server: RealServerAddress { ip: [10, 244, 1, last].into(), port: 8080 },
        age: seconds(61.5),
    };
    let changed = SyncReport {
        done: 4,
        done_by_kind: BTreeMap::from([
            (OperationKind::AddVirtualServer, 1),
            (OperationKind::AddRealServer, 3),
        ]),
        services: FirstNamed { count: 1, first: vec!["default/web".parse().unwrap()] },
        first_done: vec![
            "add virtual server TCP 10.96.0.10:80 rr".to_owned(),
            "add real server TCP 10.96.0.10:80 -> 10.244.1.9:8080 weight 1".to_owned(),
        ],
        took: seconds(0.002),
        ..SyncReport::empty(Trigger::Change)
    };
    let failed = SyncReport {
        full: true,
        repairs: (1..=6).map(|vip| format!("bind 10.96.0.{vip}")).collect(),
        failures: vec!["add virtual server TCP 10.96.0.10:81 mh: no such scheduler (ENOENT)".to_owned()],
        failed: 1,
        took: seconds(0.25),
        ..SyncReport::empty(Trigger::Period)
    };
    reconciler::SyncStatus {
        synced: false,
        sync_state: SyncState::Failing,
        sync_state_age: seconds(42.0),
        difference: Some(KernelDifference {
            by_kind: BTreeMap::from([
                (OperationKind::AddVirtualServer, 1),
                (OperationKind::AddRealServer, 6),
            ]),
            services: FirstNamed { count: 1, first: vec!["default/web".parse().unwrap()] },
            first: (1..=7)
                .map(|last| format!("add real server TCP 10.96.0.10:80 -> 10.244.1.{last}:8080 weight 1"))
                .collect(),
        }),
        busy: Some(BusyWith { service: Some("shop/large".parse().unwrap()), left: 700, age: seconds(12.0) }),
        services: 7,
        without_endpoints: FirstNamed { count: 1, first: vec!["default/typo".parse().unwrap()] },
        ejected: 1,
        on_trial: 0,
        ejections: vec![EjectedFrom {
            service: "default/web".parse().unwrap(),
            endpoint: EjectedEndpoint {
                protocol: Protocol::Tcp,
                address: RealServerAddress { ip: [10, 244, 1, 9].into(), port: 8080 },
                cause: EjectionCause::Silent,
                state: EjectionState::Out,
            },
        }],
        most_are_silent: false,
        virtual_servers: 12,
        real_servers: 40,
        vips: 6,
        unbound: [IpAddr::from([192, 0, 2, 11])].into(),
        draining: 2,
        longest_drain: seconds(61.5),
        drains: vec![draining(7), Drain { service: None, ..draining(8) }],
        scheduler_changes: 240,
        kept_foreign: [others(6443), others(6444)].iter().collect(),
        removed_foreign: [others(80)].iter().collect(),
        problems: vec!["default/web: spec.ports[1] is wrong".to_owned()],
        last_sync: Some(LastSync { report: failed.clone(), age: seconds(3.25) }),
        last_change: Some(LastSync { report: changed, age: seconds(725.0) }),
        last_repair: Some(LastSync { report: failed.clone(), age: seconds(3.25) }),
        repaired: 9,
        last_full_sync: Some(LastSync { report: failed, age: seconds(3.25) }),
    }
}

fn endpoints() -> AnswersSummary {
    AnswersSummary {
        unknown: None,
        counts: EndpointCounts { answering: 37, refusing: 0, silent: 1, one_way: 1 },
        failing: vec![FailingEndpoint {
            service: "default/web".parse().unwrap(),
            virtual_server: ServiceAddress { protocol: Protocol::Tcp, ip: [10, 96, 0, 10].into(), port: 80 },
            endpoint: RealServerAddress { ip: [10, 244, 1, 7].into(), port: 8080 },
            answering: Answering { liveness: Liveness::Silent, age: seconds(12.5), failed_connections: 5 },
            span: seconds(12.0),
        }],
    }
}

fn packets() -> RecentPackets {
    let counted = |verdict: &str, reason: &str, packets| CountedPackets {
        verdict: verdict.to_owned(),
        reason: reason.to_owned(),
        packets,
    };
    let counted = vec![
        counted("drop", "source-range", 12),
        counted("reject", "no-service", 3),
        counted("masquerade", "marked", 400),
    ];
    RecentPackets { window: seconds(300.0), counted }
}

/// Where no Service is.
fn others(port: u16) -> ServiceAddress {
    ServiceAddress { protocol: Protocol::Tcp, ip: [192, 0, 2, 7].into(), port }
}

fn advice() -> Vec<Finding> {
    let chain = Finding::warning("ip filter INPUT", "it drops").remedy("open it");
    let timeouts = Finding::note("tcp", "IPVS forgets idle connections").remedy("keepalives");
    vec![chain.cause(Cause::HostFirewall), timeouts.cause(Cause::Timeouts)]
}
