//! The series, in Prometheus' text format 0.0.4.
//!
//! They are written straight into the text and not by way of a registry: there are many, and each is written once.

use std::time::Duration;

use ipvs::{ObservedRealServer, Stats};
use reconciler::VirtualServerOwner;

use super::{
    super::text::{
        Kind::{self, Counter, Gauge},
        Page, labels,
    },
    reading::{ServiceCounters, TrafficReading},
};

/// How many there are of a virtual server.
pub(super) const OF_VIRTUAL_SERVER: usize = 10;
/// How many there are of a real server.
pub(super) const OF_REAL_SERVER: usize = 6;

/// Name, type, help, and where the value is.
type Series<T> = (&'static str, Kind, &'static str, fn(&T) -> u64);

/// As kube-router has them (pkg/metrics), names that are not what Prometheus would call them included.
const VIRTUAL_SERVER: [Series<Stats>; OF_VIRTUAL_SERVER] = [
    ("kube_router_service_total_connections", Counter, "Connections scheduled", |stats| stats.connections),
    ("kube_router_service_packets_in", Counter, "Packets from clients", |stats| stats.packets_in),
    ("kube_router_service_packets_out", Counter, "Packets to clients", |stats| stats.packets_out),
    ("kube_router_service_bytes_in", Counter, "Bytes from clients", |stats| stats.bytes_in),
    ("kube_router_service_bytes_out", Counter, "Bytes to clients", |stats| stats.bytes_out),
    ("kube_router_service_cps", Gauge, "New connections per second", |stats| stats.connections_per_second),
    ("kube_router_service_pps_in", Gauge, "Packets from clients per second", |stats| {
        stats.packets_in_per_second
    }),
    ("kube_router_service_pps_out", Gauge, "Packets to clients per second", |stats| {
        stats.packets_out_per_second
    }),
    ("kube_router_service_bps_in", Gauge, "Bytes from clients per second", |stats| stats.bytes_in_per_second),
    ("kube_router_service_bps_out", Gauge, "Bytes to clients per second", |stats| stats.bytes_out_per_second),
];

/// kube-router has none of these.
const REAL_SERVER: [Series<ObservedRealServer>; OF_REAL_SERVER] = [
    ("kube_ipvs_endpoint_connections_total", Counter, "Connections scheduled to the endpoint", |server| {
        server.stats.connections
    }),
    ("kube_ipvs_endpoint_packets_in_total", Counter, "Packets to the endpoint", |server| {
        server.stats.packets_in
    }),
    ("kube_ipvs_endpoint_packets_out_total", Counter, "Packets from the endpoint", |server| {
        server.stats.packets_out
    }),
    ("kube_ipvs_endpoint_bytes_in_total", Counter, "Bytes to the endpoint", |server| server.stats.bytes_in),
    ("kube_ipvs_endpoint_bytes_out_total", Counter, "Bytes from the endpoint", |server| {
        server.stats.bytes_out
    }),
    (
        "kube_ipvs_endpoint_active_connections",
        Gauge,
        "Connections of the endpoint that are established or being opened",
        |server| server.active_connections.into(),
    ),
];

/// All series of a reading, and what it took.
pub(super) fn text(reading: &TrafficReading, took: Duration) -> String {
    let servers: Vec<_> =
        reading.virtual_servers.iter().map(|server| (service_labels(server), server)).collect();
    // A line has about so many bytes.
    let mut page = Page::with_capacity(servers.len() * OF_VIRTUAL_SERVER * 160);
    for (name, kind, help, value) in VIRTUAL_SERVER {
        page.head(name, kind, help);
        for (labels, server) in &servers {
            page.sample(name, labels, value(&server.stats));
        }
    }
    if servers.iter().any(|(_, server)| !server.real_servers.is_empty()) {
        for (name, kind, help, value) in REAL_SERVER {
            page.head(name, kind, help);
            for (labels, server) in &servers {
                for real_server in &server.real_servers {
                    let at = real_server.config.address;
                    let labels = format!("{labels},endpoint_ip=\"{}\",endpoint_port=\"{}\"", at.ip, at.port);
                    page.sample(name, &labels, value(real_server));
                }
            }
        }
    }
    let help = "Series of Services and endpoints that are left out because there are too many";
    page.single("kube_ipvs_service_metrics_dropped_series", Gauge, help, reading.dropped);
    let help = "Namespaces with series that are left out";
    page.single("kube_ipvs_service_metrics_cut_namespaces", Gauge, help, reading.cut.len());
    let help = "Time that reading the counters took";
    page.single("kube_ipvs_service_metrics_read_seconds", Gauge, help, took.as_secs_f64());
    page.into()
}

fn service_labels(
    ServiceCounters { owner: VirtualServerOwner { service, address, .. }, .. }: &ServiceCounters,
) -> String {
    labels([
        ("svc_namespace", service.namespace()),
        ("service_name", service.name()),
        ("service_vip", &address.ip.to_string()),
        ("protocol", &address.protocol.to_string().to_ascii_lowercase()),
        ("port", &address.port.to_string()),
    ])
}
