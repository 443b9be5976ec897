//! The series, in Prometheus' text format 0.0.4.
//!
//! Written by hand and not by way of a registry: there are many, each is written once, and of a label only the
//! names of Services can have something to be escaped: a file of `--manifests` may call them anything.

use std::{
    fmt::{self, Write as _},
    time::Duration,
};

use ipvs::{ObservedRealServer, Stats};
use reconciler::VirtualServerOwner;

use super::reading::{ServiceCounters, TrafficReading};

/// How many there are of a virtual server.
pub(super) const OF_VIRTUAL_SERVER: usize = 10;
/// How many there are of a real server.
pub(super) const OF_REAL_SERVER: usize = 6;

/// Name, type, help, and where the value is.
type Series<T> = (&'static str, &'static str, &'static str, fn(&T) -> u64);

/// As kube-router has them (pkg/metrics), names that are not what Prometheus would call them included.
const VIRTUAL_SERVER: [Series<Stats>; OF_VIRTUAL_SERVER] = [
    ("kube_router_service_total_connections", "counter", "Connections scheduled", |stats| stats.connections),
    ("kube_router_service_packets_in", "counter", "Packets from clients", |stats| stats.packets_in),
    ("kube_router_service_packets_out", "counter", "Packets to clients", |stats| stats.packets_out),
    ("kube_router_service_bytes_in", "counter", "Bytes from clients", |stats| stats.bytes_in),
    ("kube_router_service_bytes_out", "counter", "Bytes to clients", |stats| stats.bytes_out),
    ("kube_router_service_cps", "gauge", "New connections per second", |stats| stats.connections_per_second),
    ("kube_router_service_pps_in", "gauge", "Packets from clients per second", |stats| {
        stats.packets_in_per_second
    }),
    ("kube_router_service_pps_out", "gauge", "Packets to clients per second", |stats| {
        stats.packets_out_per_second
    }),
    ("kube_router_service_bps_in", "gauge", "Bytes from clients per second", |stats| {
        stats.bytes_in_per_second
    }),
    ("kube_router_service_bps_out", "gauge", "Bytes to clients per second", |stats| {
        stats.bytes_out_per_second
    }),
];

/// kube-router has none of these.
const REAL_SERVER: [Series<ObservedRealServer>; OF_REAL_SERVER] = [
    ("kube_ipvs_endpoint_connections_total", "counter", "Connections scheduled to the endpoint", |server| {
        server.stats.connections
    }),
    ("kube_ipvs_endpoint_packets_in_total", "counter", "Packets to the endpoint", |server| {
        server.stats.packets_in
    }),
    ("kube_ipvs_endpoint_packets_out_total", "counter", "Packets from the endpoint", |server| {
        server.stats.packets_out
    }),
    ("kube_ipvs_endpoint_bytes_in_total", "counter", "Bytes to the endpoint", |server| server.stats.bytes_in),
    ("kube_ipvs_endpoint_bytes_out_total", "counter", "Bytes from the endpoint", |server| {
        server.stats.bytes_out
    }),
    ("kube_ipvs_endpoint_active_connections", "gauge", "Connections that the endpoint has", |server| {
        server.active_connections.into()
    }),
];

/// All series of a reading, and what it took.
pub(super) fn text(reading: &TrafficReading, took: Duration) -> String {
    let servers: Vec<_> = reading.virtual_servers.iter().map(|server| (labels(server), server)).collect();
    // A line has about so many bytes.
    let mut text = String::with_capacity(servers.len() * OF_VIRTUAL_SERVER * 160);
    // A string takes whatever is written to it.
    _ = write(&mut text, &servers).and_then(|()| about_the_reading(&mut text, reading, took));
    text
}

fn write(text: &mut String, servers: &[(String, &ServiceCounters)]) -> fmt::Result {
    for (name, kind, help, value) in VIRTUAL_SERVER {
        head(text, name, kind, help)?;
        for (labels, server) in servers {
            writeln!(text, "{name}{{{labels}}} {}", value(&server.stats))?;
        }
    }
    if servers.iter().all(|(_, server)| server.real_servers.is_empty()) {
        return Ok(());
    }
    for (name, kind, help, value) in REAL_SERVER {
        head(text, name, kind, help)?;
        for (labels, server) in servers {
            for real_server in &server.real_servers {
                let at = real_server.config.address;
                writeln!(
                    text,
                    "{name}{{{labels},endpoint_ip=\"{}\",endpoint_port=\"{}\"}} {}",
                    at.ip,
                    at.port,
                    value(real_server)
                )?;
            }
        }
    }
    Ok(())
}

fn about_the_reading(text: &mut String, reading: &TrafficReading, took: Duration) -> fmt::Result {
    let name = "kube_ipvs_service_metrics_dropped_series";
    head(
        text,
        name,
        "gauge",
        "Series of Services and endpoints that are left out because there are too many",
    )?;
    writeln!(text, "{name} {}", reading.dropped)?;
    let name = "kube_ipvs_service_metrics_cut_namespaces";
    head(text, name, "gauge", "Namespaces of which series are left out")?;
    writeln!(text, "{name} {}", reading.cut.len())?;
    let name = "kube_ipvs_service_metrics_read_seconds";
    head(text, name, "gauge", "How long it took to read them")?;
    writeln!(text, "{name} {}", took.as_secs_f64())
}

fn head(text: &mut String, name: &str, kind: &str, help: &str) -> fmt::Result {
    writeln!(text, "# HELP {name} {help}.\n# TYPE {name} {kind}")
}

fn labels(
    ServiceCounters { holder: VirtualServerOwner { service, address, .. }, .. }: &ServiceCounters,
) -> String {
    let protocol = address.protocol.to_string().to_ascii_lowercase();
    format!(
        "svc_namespace=\"{}\",service_name=\"{}\",service_vip=\"{}\",protocol=\"{protocol}\",port=\"{}\"",
        Escaped(service.namespace()),
        Escaped(service.name()),
        address.ip,
        address.port
    )
}

/// The value of a label.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|letter| match letter {
            '\\' => f.write_str(r"\\"),
            '"' => f.write_str("\\\""),
            '\n' => f.write_str(r"\n"),
            letter => f.write_char(letter),
        })
    }
}
