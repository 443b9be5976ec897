//! Metrics that are read for each page: of the build, of the contact with the API server, of advice, the log,
//! packets and tunnels, and of how full the kernel's tables of connections are.

use std::{collections::BTreeSet, time::Duration};

use ipvs::Family;
use kubernetes::api::Watches;
use netfilter::{PacketCounter, PacketCounts};
use service::liveness::Liveness;

use super::text::{Kind, Page, Real, Registry, family_label, labels, since_1970};
use crate::{
    finding::{Cause, Finding, Severity},
    node::sysctl::{Sysctl, conntrack},
    process::Build,
    serve::{
        health::Health,
        liveness::{AnswersSummary, EndpointCounts, FailingEndpoint},
    },
};

/// Registers the program's version and platform.
///
/// There is no `kubernetes_build_info`: it has the version of a part of Kubernetes, of which there is to be one in a
/// cluster (`KubeVersionMismatch` of kubernetes-mixin), and kube-ipvs is not one.
pub(super) fn register_build<'a>(gates: impl IntoIterator<Item = (&'a str, bool)>, registry: &mut Registry) {
    let Build { version, platform, .. } = Build::this();
    registry.register_labelled(
        "kube_ipvs_build_info",
        "Version and platform of kube-ipvs; the value is always 1",
        [(labels([("version", &version), ("platform", &platform)]), 1)],
    );
    // Of a gate in general availability Kubernetes leaves the stage empty; of others it is not known here.
    let gate = |(name, on)| (labels([("name", name), ("stage", "")]), u64::from(on));
    registry.register_labelled(
        "kubernetes_feature_enabled",
        "Configured feature gates: 1 enabled, 0 disabled",
        gates.into_iter().map(gate),
    );
}

/// What `/livez` would answer now. Where no probe asks it, as in kubeadm's DaemonSet, no responses are counted.
pub(super) fn healthy(page: &mut Page, health: &Health) {
    let help = "Whether /livez answers 200 now (1) or 503 (0)";
    page.single("kube_ipvs_healthy", Kind::Gauge, help, u64::from(health.is_healthy()));
}

/// The contact with the API server.
pub(super) fn api_server(page: &mut Page, watches: &Watches) {
    let heard = watches.last_heard().map_or(Duration::ZERO, since_1970).as_secs_f64();
    let help = "Time of the last message from the API server; 0 before the first one";
    page.single("kube_ipvs_api_server_last_heard_timestamp_seconds", Kind::Gauge, help, Real(heard));
    let help = "Kinds of objects whose watch fails now";
    page.single("kube_ipvs_unwatched_resources", Kind::Gauge, help, watches.failing());
}

/// How full conntrack's table is. A full table drops new connections, whatever the proxy. A number that cannot be read
/// is left out, as without conntrack.
pub(super) fn conntrack_table(page: &mut Page, sysctl: &Sysctl) {
    for (key, name, help) in [
        (conntrack::COUNT, "kube_ipvs_conntrack_entries", "Entries in conntrack's table"),
        (
            conntrack::MAX,
            "kube_ipvs_conntrack_entries_limit",
            "Maximum number of entries in conntrack's table; 0: none",
        ),
    ] {
        if let Some(value) = sysctl.number(key) {
            page.single(name, Kind::Gauge, help, value);
        }
    }
}

/// How full IPVS' own table of connections is.
pub(super) fn ipvs_table(page: &mut Page, sysctl: &Sysctl) {
    if let Some(entries) = sysctl.ipvs_entries() {
        let help = "Connections and persistence templates in IPVS' table";
        page.single("kube_ipvs_connection_entries", Kind::Gauge, help, entries);
    }
    if let Some(limit) = sysctl.conn_max() {
        let help = "Maximum number of entries in IPVS' table";
        page.single("kube_ipvs_connection_entries_limit", Kind::Gauge, help, limit);
    }
}

/// How many pieces of advice there are of each kind. There are a few of them at most.
pub(super) fn advice(page: &mut Page, all: &[Finding]) {
    let name = "kube_ipvs_advice";
    page.head(name, Kind::Gauge, "Findings about this node that hurt or may hurt traffic to Services");
    for severity in Severity::WHILE_RUNNING {
        for cause in Cause::ALL {
            let held = all.iter().filter(|it| (it.severity, it.cause) == (severity, Some(cause)));
            let labels = labels([("severity", severity.name()), ("cause", cause.name())]);
            page.sample(name, &labels, held.count());
        }
    }
}

/// How many endpoints answer, and the few that fail.
pub(super) fn endpoint_answers(page: &mut Page, summary: &AnswersSummary) {
    let AnswersSummary { unknown, counts, failing } = summary;
    if unknown.is_some() {
        return;
    }
    let name = "kube_ipvs_endpoints";
    page.head(
        name,
        Kind::Gauge,
        "Endpoints that IPVS sent anything to within a minute, by whether they answer",
    );
    let EndpointCounts { answering, refusing, silent, one_way } = *counts;
    let states = [("answers", answering), ("refuses", refusing), ("silent", silent), ("one-way", one_way)];
    for (state, count) in states {
        page.sample(name, &labels([("state", state)]), count);
    }
    let name = "kube_ipvs_endpoint_failing_seconds";
    page.head(name, Kind::Gauge, "Time for which an endpoint has answered no client; at most 20 endpoints");
    for FailingEndpoint { service, virtual_server, endpoint, answering, .. } in failing {
        let labels = labels([
            ("svc_namespace", service.namespace()),
            ("service_name", service.name()),
            ("protocol", &virtual_server.protocol.to_string().to_ascii_lowercase()),
            ("endpoint_ip", &endpoint.ip.to_string()),
            ("endpoint_port", &endpoint.port.to_string()),
            ("state", if answering.liveness == Liveness::Refuses { "refuses" } else { "silent" }),
        ]);
        page.sample(name, &labels, Real(answering.age.as_secs_f64()));
    }
}

/// How many lines were not logged.
pub(super) fn log(page: &mut Page, dropped: u64) {
    let help = "Log lines dropped because there were too many like them";
    page.single("kube_ipvs_log_lines_dropped_total", Kind::Counter, help, dropped);
}

/// What our nf_tables rules did to packets. What was not counted is 0.
pub(super) fn packets(page: &mut Page, families: &BTreeSet<Family>, counts: &PacketCounts) {
    let name = "kube_ipvs_packets_total";
    page.head(
        name,
        Kind::Counter,
        "Packets that the nf_tables rules of kube-ipvs dropped or rejected, and flows that they masqueraded",
    );
    for family in families {
        for counter in PacketCounter::ALL {
            let Some((verdict, reason)) = counter.verdict() else { continue };
            let labels =
                [family_label(*family), labels([("verdict", verdict), ("reason", reason)])].join(",");
            page.sample(name, &labels, counts.get(&(*family, counter)).copied().unwrap_or_default());
        }
    }
}

/// The packets that went through tunnels; all 0 where no Service has been answered directly.
pub(super) fn tunnels(page: &mut Page, families: &BTreeSet<Family>, counts: &PacketCounts) {
    let name = "kube_ipvs_tunnel_packets_total";
    page.head(
        name,
        Kind::Counter,
        "Packets of direct return's tunnels: sent, received, or refused on arrival",
    );
    for family in families {
        for (direction, counter) in [
            ("sent", PacketCounter::TunnelSent),
            ("received", PacketCounter::TunnelReceived),
            ("refused", PacketCounter::Tunnel),
        ] {
            let labels = [family_label(*family), labels([("direction", direction)])].join(",");
            page.sample(name, &labels, counts.get(&(*family, counter)).copied().unwrap_or_default());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::process::VERSION;

    fn written(write: impl FnOnce(&mut Page)) -> String {
        let mut page = Page::default();
        write(&mut page);
        page.into()
    }

    #[test]
    fn advice_is_counted_by_severity_and_cause_and_what_does_not_hold_is_0() {
        let chain = |name| Finding::warning(name, "it drops");
        let held = [chain("input"), chain("forward"), Finding::note("nft", "not read")]
            .map(|finding| finding.cause(Cause::HostFirewall));
        let page = written(|page| advice(page, &held));
        for line in [
            r#"kube_ipvs_advice{severity="warning",cause="host-firewall"} 2"#,
            r#"kube_ipvs_advice{severity="note",cause="host-firewall"} 1"#,
            r#"kube_ipvs_advice{severity="warning",cause="contested"} 0"#,
        ] {
            assert!(page.lines().any(|it| it == line), "{line} is not in\n{page}");
        }
        assert_eq!(
            page.lines().filter(|line| !line.starts_with('#')).count(),
            2 * Cause::ALL.len(),
            "{page}"
        );
    }

    #[test]
    fn the_version_and_the_gates_that_were_given_are_shown() {
        let mut registry = Registry::default();
        register_build([("AllowServiceExternalIPs", false), ("Other", true)], &mut registry);
        let page = registry.text();
        let shown = |start: &str| page.lines().find(|line| line.starts_with(start)).unwrap_or_default();
        assert!(shown("kube_ipvs_build_info{").contains(&format!("version=\"{VERSION}\"")), "{page}");
        assert!(shown("kubernetes_feature_enabled{name=\"Allow").ends_with(" 0"), "{page}");
        assert!(shown("kubernetes_feature_enabled{name=\"Other").ends_with(" 1"), "{page}");
    }

    #[test]
    fn the_version_is_not_counted_among_those_of_kubernetes() {
        let mut registry = Registry::default();
        register_build([], &mut registry);
        assert!(!registry.text().contains("kubernetes_build_info"));
    }

    #[test]
    fn each_family_has_a_count_of_each_kind() {
        let counts = PacketCounts::from([
            ((Family::V4, PacketCounter::TunnelSent), 7),
            ((Family::V4, PacketCounter::TunnelReceived), 5),
            ((Family::V4, PacketCounter::Tunnel), 2),
            ((Family::V6, PacketCounter::NoService), 4),
        ]);
        let page = written(|page| {
            packets(page, &Family::BOTH.into(), &counts);
            tunnels(page, &Family::BOTH.into(), &counts);
        });
        for line in [
            "# TYPE kube_ipvs_packets_total counter",
            "kube_ipvs_packets_total{ip_family=\"IPv4\",verdict=\"drop\",reason=\"tunnel\"} 2",
            "kube_ipvs_packets_total{ip_family=\"IPv4\",verdict=\"drop\",reason=\"source-range\"} 0",
            "kube_ipvs_packets_total{ip_family=\"IPv6\",verdict=\"reject\",reason=\"no-service\"} 4",
            "# TYPE kube_ipvs_tunnel_packets_total counter",
            "kube_ipvs_tunnel_packets_total{ip_family=\"IPv4\",direction=\"sent\"} 7",
            "kube_ipvs_tunnel_packets_total{ip_family=\"IPv4\",direction=\"received\"} 5",
            "kube_ipvs_tunnel_packets_total{ip_family=\"IPv4\",direction=\"refused\"} 2",
            "kube_ipvs_tunnel_packets_total{ip_family=\"IPv6\",direction=\"refused\"} 0",
        ] {
            assert!(page.lines().any(|it| it == line), "{line} in:\n{page}");
        }
        let of_tunnels = Family::BOTH.len() * 3;
        let of_packets = Family::BOTH.len() * (PacketCounter::ALL.len() - 2);
        assert_eq!(
            page.lines().filter(|line| !line.starts_with('#')).count(),
            of_packets + of_tunnels,
            "{page}"
        );
    }

    #[test]
    fn the_kernels_numbers_are_shown_and_what_it_does_not_say_is_left_out() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("proc/sys/net/netfilter");
        fs::create_dir_all(&directory).unwrap();
        let shown = || written(|page| conntrack_table(page, &Sysctl::at(root.path())));
        assert_eq!(shown(), "");
        fs::write(directory.join("nf_conntrack_count"), "7\n").unwrap();
        fs::write(directory.join("nf_conntrack_max"), "262144\n").unwrap();
        let page = shown();
        assert!(page.contains("\nkube_ipvs_conntrack_entries 7\n"), "{page}");
        assert!(page.contains("\nkube_ipvs_conntrack_entries_limit 262144\n"), "{page}");
    }
}
