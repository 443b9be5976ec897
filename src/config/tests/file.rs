//! How a configuration file is read.

use std::path::Path;

use super::HEAD;
use crate::config::{
    GoDuration, KubeProxyConfiguration,
    file::{File, decode},
    options::{
        ClientConnection, Conntrack, DetectLocal, Iptables, Ipvs, LogOptions, Logging, Nftables,
        OutputRouting, VModule, Winkernel,
    },
    values::{FlushFrequency, ListenAddress, Quantity, TcpTimeout},
};

fn decoded(text: &str) -> File {
    decode(Path::new("config.conf"), &format!("{HEAD}{text}")).unwrap()
}

fn refusal(text: &str) -> String {
    decode(Path::new("config.conf"), text).unwrap_err().to_string()
}

fn seconds(seconds: u32) -> GoDuration {
    GoDuration::from_seconds(seconds)
}

#[test]
fn null_zero_and_absent_are_upstream_s_default() {
    let expected = KubeProxyConfiguration {
        bind_address: "0.0.0.0".into(),
        client_connection: ClientConnection {
            content_type: "application/vnd.kubernetes.protobuf".into(),
            burst: 10,
            qps: 5.0,
            ..ClientConnection::default()
        },
        config_sync_period: seconds(900),
        conntrack: Conntrack {
            max_per_core: Some(32_768),
            min: Some(131_072),
            tcp_close_wait_timeout: Some(seconds(3_600)),
            tcp_established_timeout: Some(seconds(86_400)),
            ..Conntrack::default()
        },
        detect_local_mode: "ClusterCIDR".into(),
        healthz_bind_address: ListenAddress("0.0.0.0:10256".into()),
        iptables: Iptables {
            localhost_node_ports: Some(true),
            masquerade_bit: Some(14),
            min_sync_period: seconds(1),
            sync_period: seconds(30),
            ..Iptables::default()
        },
        ipvs: Ipvs { scheduler: "rr".into(), sync_period: seconds(30), ..Ipvs::default() },
        logging: Logging {
            flush_frequency: FlushFrequency(seconds(5)),
            format: "text".into(),
            ..Logging::default()
        },
        metrics_bind_address: ListenAddress("127.0.0.1:10249".into()),
        mode: "ipvs".into(),
        nftables: Nftables {
            masquerade_bit: Some(14),
            min_sync_period: seconds(1),
            sync_period: seconds(30),
            ..Nftables::default()
        },
        oom_score_adj: Some(-999),
        ..KubeProxyConfiguration::default()
    };
    assert_eq!(decoded("").configuration, expected);
    // Every field there is, null.
    for tree in [expected.tree(), KubeProxyConfiguration::default().tree()] {
        let fields =
            tree.as_object().unwrap().keys().filter(|name| !["apiVersion", "kind"].contains(&name.as_str()));
        let nulls: Vec<_> = fields.clone().map(|name| format!("{name}: null")).collect();
        assert_eq!(decoded(&nulls.join("\n")).configuration, expected);
        let parents = fields.filter(|name| tree[name.as_str()].is_object());
        let nulls: Vec<_> = parents
            .map(|parent| {
                let fields = tree[parent.as_str()].as_object().unwrap().keys();
                let nulls: Vec<_> = fields.map(|name| format!("{name}: null")).collect();
                format!("{parent}: {{{}}}", nulls.join(", "))
            })
            .collect();
        let nulls = nulls.join("\n");
        assert_eq!(decoded(&nulls).configuration, expected, "{nulls}");
    }
    // Where null is the default, zero is not.
    let zeros = "bindAddress: \"\"\nclientConnection: {acceptContentTypes: \"\", burst: 0, contentType: \"\", qps: 0}\n\
                 configSyncPeriod: 0s\nmode: \"\"\nhealthzBindAddress: \"\"\nmetricsBindAddress: \"\"\n\
                 ipvs: {syncPeriod: 0s, scheduler: \"\"}\nlogging: {flushFrequency: 0, format: \"\"}\n\
                 iptables: {syncPeriod: 0s, minSyncPeriod: 0s}\nnftables: {syncPeriod: 0s, minSyncPeriod: 0s}\n";
    assert_eq!(decoded(zeros).configuration, expected);
    let nothing = "oomScoreAdj: 0\nconntrack: {maxPerCore: 0, min: 0, tcpCloseWaitTimeout: 0s, tcpEstablishedTimeout: 0s}\n\
                   iptables: {masqueradeBit: 0, localhostNodePorts: false}\n";
    let KubeProxyConfiguration { conntrack, iptables, oom_score_adj, .. } = decoded(nothing).configuration;
    let zero = Some(seconds(0));
    assert_eq!(
        conntrack,
        Conntrack {
            max_per_core: Some(0),
            min: Some(0),
            tcp_close_wait_timeout: zero,
            tcp_established_timeout: zero,
            ..Conntrack::default()
        }
    );
    assert_eq!((iptables.masquerade_bit, iptables.localhost_node_ports), (Some(0), Some(false)));
    assert_eq!(oom_score_adj, Some(0));
}

/// One file with every field there is.
const WHOLE: &str = r#"
bindAddress: 192.0.2.1
bindAddressHardFail: true
clientConnection: {acceptContentTypes: a, burst: 1, contentType: b, kubeconfig: /k, qps: 2.5}
clusterCIDR: 10.0.0.0/8
configSyncPeriod: 1s
conntrack:
  maxPerCore: 1
  min: 2
  tcpBeLiberal: true
  tcpCloseWaitTimeout: 3s
  tcpEstablishedTimeout: 4s
  udpStreamTimeout: 5s
  udpTimeout: 6s
detectLocal: {bridgeInterface: cbr0, interfaceNamePrefix: veth}
detectLocalMode: BridgeInterface
enableProfiling: true
featureGates: {KubeProxyIPVS: true, A: false}
healthzBindAddress: 192.0.2.1:1
hostnameOverride: n
iptables:
  localhostNodePorts: false
  masqueradeAll: true
  masqueradeBit: 0
  minSyncPeriod: 7s
  syncPeriod: 8s
ipvs:
  excludeCIDRs: [10.1.0.0/16]
  minSyncPeriod: 2s
  scheduler: lc
  strictARP: true
  syncPeriod: 1m
  tcpFinTimeout: 9s
  tcpTimeout: 10s
  udpTimeout: 11s
logging:
  flushFrequency: 12s
  format: json
  options:
    json: {infoBufferSize: 64Ki, splitStream: true}
    text: {infoBufferSize: 65536, splitStream: true}
  verbosity: 4
  vmodule: [{filePattern: proxier, verbosity: 5}]
metricsBindAddress: "[::1]:2"
mode: ipvs
nftables: {masqueradeAll: true, masqueradeBit: 1, minSyncPeriod: 13s, syncPeriod: 14s}
nodePortAddresses: [primary]
oomScoreAdj: -998
portRange: 1-2
showHiddenMetricsForVersion: "1.35"
windowsRunAsService: true
winkernel: {enableDSR: true, forwardHealthCheckVip: true, networkName: c, rootHnsEndpointName: d, sourceVip: e}
"#;

/// The configuration of that file.
pub(super) fn whole() -> KubeProxyConfiguration {
    decoded(WHOLE).configuration
}

#[test]
fn every_field_is_read() {
    let File { configuration, warnings } = decoded(WHOLE);
    assert_eq!(warnings, [""; 0]);
    let routing = |size: &str| OutputRouting { info_buffer_size: Quantity(size.into()), split_stream: true };
    let expected = KubeProxyConfiguration {
        bind_address: "192.0.2.1".into(),
        bind_address_hard_fail: true,
        client_connection: ClientConnection {
            accept_content_types: "a".into(),
            burst: 1,
            content_type: "b".into(),
            kubeconfig: "/k".into(),
            qps: 2.5,
        },
        cluster_cidr: "10.0.0.0/8".into(),
        config_sync_period: seconds(1),
        conntrack: Conntrack {
            max_per_core: Some(1),
            min: Some(2),
            tcp_be_liberal: true,
            tcp_close_wait_timeout: Some(seconds(3)),
            tcp_established_timeout: Some(seconds(4)),
            udp_stream_timeout: seconds(5),
            udp_timeout: seconds(6),
        },
        detect_local: DetectLocal { bridge_interface: "cbr0".into(), interface_name_prefix: "veth".into() },
        detect_local_mode: "BridgeInterface".into(),
        enable_profiling: true,
        feature_gates: "KubeProxyIPVS=true,A=false".parse().unwrap(),
        healthz_bind_address: ListenAddress("192.0.2.1:1".into()),
        hostname_override: "n".into(),
        iptables: Iptables {
            localhost_node_ports: Some(false),
            masquerade_all: true,
            masquerade_bit: Some(0),
            min_sync_period: seconds(7),
            sync_period: seconds(8),
        },
        ipvs: Ipvs {
            exclude_cidrs: vec!["10.1.0.0/16".into()],
            min_sync_period: seconds(2),
            scheduler: "lc".into(),
            strict_arp: true,
            sync_period: seconds(60),
            tcp_fin_timeout: seconds(9),
            tcp_timeout: TcpTimeout::After(seconds(10)),
            udp_timeout: seconds(11),
        },
        logging: Logging {
            flush_frequency: FlushFrequency(seconds(12)),
            format: "json".into(),
            options: LogOptions { json: routing("64Ki"), text: routing("65536") },
            verbosity: 4,
            vmodule: vec![VModule { file_pattern: "proxier".into(), verbosity: 5 }],
        },
        metrics_bind_address: ListenAddress("[::1]:2".into()),
        mode: "ipvs".into(),
        nftables: Nftables {
            masquerade_all: true,
            masquerade_bit: Some(1),
            min_sync_period: seconds(13),
            sync_period: seconds(14),
        },
        node_port_addresses: vec!["primary".into()],
        oom_score_adj: Some(-998),
        port_range: "1-2".into(),
        show_hidden_metrics_for_version: "1.35".into(),
        windows_run_as_service: true,
        winkernel: Winkernel {
            enable_dsr: true,
            forward_health_check_vip: true,
            network_name: "c".into(),
            root_hns_endpoint_name: "d".into(),
            source_vip: "e".into(),
        },
        ..KubeProxyConfiguration::default()
    };
    assert_eq!(configuration, expected);
}

#[test]
fn an_unknown_field_is_named_with_its_path_and_the_rest_is_read() {
    let file = decoded("ipvs:\n  schedular: lc\n  scheduler: sh\nmodus: ipvs\n");
    assert_eq!(
        file.warnings,
        [
            "config.conf: unknown field ipvs.schedular is ignored",
            "config.conf: unknown field modus is ignored"
        ]
    );
    assert_eq!(file.configuration.ipvs.scheduler, "sh");
}

#[test]
fn of_a_field_given_twice_the_last_counts_and_a_warning_says_where() {
    let file = decoded("mode: iptables\nmode: ipvs\n");
    assert_eq!(file.configuration.mode, "ipvs");
    assert!(file.warnings[0].starts_with("config.conf:4:1: "), "{:?}", file.warnings);
}

#[test]
fn of_several_documents_the_first_counts_and_a_warning_says_so() {
    let ignored = ["config.conf: what follows the first YAML document is ignored"];
    for rest in
        ["---\nclusterCIDR: 10.2.0.0/16\n", "---\nmode: x\nmode: y\n", "---\n{ [ nonsense", "...\nnonsense"]
    {
        let file = decoded(&format!("clusterCIDR: 10.1.0.0/16\n{rest}"));
        assert_eq!(file.configuration.cluster_cidr, "10.1.0.0/16", "{rest}");
        assert_eq!(file.warnings, ignored, "{rest}");
    }
    for nothing in ["---\n", "...\n# a comment\n", "---\n# a comment\n---\n"] {
        assert_eq!(decoded(&format!("clusterCIDR: 10.1.0.0/16\n{nothing}")).warnings, [""; 0], "{nothing}");
    }
    let marked = format!("# a comment\n---\n{HEAD}clusterCIDR: 10.1.0.0/16\n");
    let marked = decode(Path::new("config.conf"), &marked).unwrap();
    assert_eq!((marked.configuration.cluster_cidr.as_str(), marked.warnings.len()), ("10.1.0.0/16", 0));
    let other_first = format!("apiVersion: v1\nkind: List\n---\n{HEAD}");
    assert!(refusal(&other_first).contains("kind \"List\" is not supported"));
}

#[test]
fn a_fault_is_one_line_with_its_place() {
    let malformed = refusal(&format!("{HEAD}ipvs:\n  syncPeriod: [\n"));
    assert!(malformed.starts_with("config.conf:"), "{malformed}");
    assert_eq!(malformed.lines().count(), 1, "{malformed}");
    let wrong_type = refusal(&format!("{HEAD}ipvs:\n  syncPeriod: soon\n"));
    assert_eq!(
        wrong_type,
        "config.conf:4:15: invalid duration \"soon\": expected for example 30s, 1m30s or 500ms"
    );
    let no_switch = refusal(&format!("{HEAD}featureGates:\n  AllowServiceExternalIPs: maybe\n"));
    assert!(no_switch.starts_with("config.conf:4:28: "), "{no_switch}");
    let no_size = refusal(&format!("{HEAD}logging:\n  options: {{text: {{infoBufferSize: []}}}}\n"));
    assert!(
        no_size.starts_with("config.conf:4:36: ") && no_size.contains("a size such as 64Ki"),
        "{no_size}"
    );
    let no_frequency = refusal(&format!("{HEAD}logging:\n  flushFrequency: soon\n"));
    assert!(no_frequency.starts_with("config.conf:4:19: "), "{no_frequency}");
    assert!(no_frequency.contains("a duration such as 5s"), "{no_frequency}");
}

#[test]
fn another_kind_or_version_of_file_is_refused_by_name() {
    assert_eq!(
        refusal(&HEAD.replace("v1alpha1", "v1alpha2")),
        "config.conf: apiVersion \"kubeproxy.config.k8s.io/v1alpha2\" with kind \"KubeProxyConfiguration\" is not \
         supported: expected kubeproxy.config.k8s.io/v1alpha1 with KubeProxyConfiguration"
    );
    assert!(refusal("hello").contains("apiVersion \"\""));
    assert!(refusal("").contains("apiVersion \"\""));
}

#[test]
fn idle_fields_are_named_unless_they_say_what_holds_anyway() {
    let warnings = |fields: &str| super::with_file(fields, &[]).unwrap().warnings;
    assert_eq!(
        warnings(WHOLE),
        ["accepted without effect: clientConnection.acceptContentTypes, clientConnection.burst, \
          clientConnection.contentType, clientConnection.qps, configSyncPeriod, enableProfiling, \
          iptables.localhostNodePorts, iptables.minSyncPeriod, iptables.syncPeriod, logging.flushFrequency, \
          logging.options.json.infoBufferSize, logging.options.json.splitStream, \
          logging.options.text.infoBufferSize, logging.options.text.splitStream, logging.vmodule, \
          nftables.masqueradeAll, nftables.masqueradeBit, nftables.minSyncPeriod, nftables.syncPeriod, portRange, \
          showHiddenMetricsForVersion, windowsRunAsService, winkernel.enableDSR, winkernel.forwardHealthCheckVip, \
          winkernel.networkName, winkernel.rootHnsEndpointName, winkernel.sourceVip, featureGates.A, \
          featureGates.KubeProxyIPVS"]
    );
    let usual = format!("configSyncPeriod: 900s\n{}", "clientConnection: {burst: 10, qps: 5}\n");
    assert_eq!(warnings(&usual), [""; 0]);
    assert_eq!(KubeProxyConfiguration::of_empty_file(), decoded("").configuration);
}
