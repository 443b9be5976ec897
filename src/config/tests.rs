//! What flags and file lead to.

mod file;
mod page;
mod refusals;
mod round_trip;

use std::{collections::BTreeSet, ffi::OsString, fs, time::Duration};

use ipvs::{Family, Scheduler, Timeouts, Tunnel, TunnelKind};
use netfilter::{HostFirewall, LocalTraffic, tunnel::GUE_PORT};
use reconciler::Timing;
use serde_json::Value;
use service::{
    ByDistance, Ejection, ExternalForwarding, ExternalIps, NodePortAddresses, Options, UntrackedServices,
};
use watcher::Foreign;

use super::{option::Opt, options::OPTIONS, *};
use crate::{cli, logging};

/// What a configuration file begins with.
pub(super) const HEAD: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";

fn flags(arguments: &[&str]) -> Flags {
    let arguments = ["kube-ipvs", "--hostname-override=node"].iter().chain(arguments).map(OsString::from);
    cli::parse(arguments).unwrap().flags().unwrap().clone()
}

/// The settings that flags lead to.
pub(crate) fn settings(arguments: &[&str]) -> Settings {
    Settings::resolve(&flags(arguments)).unwrap()
}

fn refusal(arguments: &[&str]) -> String {
    let error = Settings::resolve(&flags(arguments)).unwrap_err();
    assert!(error.is_usage(), "{error}");
    error.to_string()
}

/// The settings that a file with these fields leads to.
fn with_file(fields: &str, arguments: &[&str]) -> Result<Settings, Error> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("config.conf");
    fs::write(&path, format!("{HEAD}{fields}")).unwrap();
    let config = format!("--config={}", path.display());
    let arguments: Vec<_> = [config.as_str()].into_iter().chain(arguments.iter().copied()).collect();
    Settings::resolve(&flags(&arguments))
}

fn distance_weights(text: &str) -> Option<service::DistanceWeights> {
    match text.parse().unwrap() {
        ByDistance::By(weights) => Some(weights),
        ByDistance::Off => None,
    }
}

fn ranges(cidrs: &[&str]) -> NodePortAddresses {
    NodePortAddresses { primary: false, ranges: cidrs.iter().map(|cidr| cidr.parse().unwrap()).collect() }
}

#[test]
fn without_flags_upstream_s_defaults_hold() {
    let settings = settings(&[]);
    assert_eq!(
        settings,
        Settings {
            source: Source::Api { kubeconfig: None, master: None },
            services: Options {
                node_name: "node".into(),
                scheduler: Scheduler::RR,
                distance_weights: None,
                ejection: Ejection::empty(),
                node_port_addresses: NodePortAddresses::default(),
                bind_address: None,
                external_ips: ExternalIps::Unowned,
                external_forwarding: ExternalForwarding::Masquerade,
                tunnel: Tunnel::new(TunnelKind::Ipip),
                knows_pods: BTreeSet::new(),
                untracked_services: UntrackedServices::empty(),
                untracked_pods: Vec::new(),
                answers_peers: true,
                pod_ranges: Vec::new(),
                watches_nodes: true,
            },
            timing: Timing {
                sync_period: Duration::from_secs(30),
                min_sync_period: Duration::from_secs(1),
                drain_timeout: None,
                tcp_timeout: Timing::TCP_TIMEOUT,
            },
            exclude_cidrs: vec![],
            foreign: Foreign::Delete,
            masquerade_all: false,
            mark: 0x4000,
            local_mode: LocalMode::Fixed(LocalTraffic::Source { ipv4: None, ipv6: None }),
            host_firewall: HostFirewall::AsKubeProxy,
            vip_binding: VipBinding::Address,
            kernel_parameters: KernelParameters {
                strict_arp: false,
                direct_return: false,
                conntrack: ConntrackSettings {
                    max_per_core: 32_768,
                    min: 131_072,
                    tcp_established_timeout: 86_400,
                    tcp_close_wait_timeout: 3_600,
                    tcp_be_liberal: false,
                    udp_timeout: 0,
                    udp_stream_timeout: 0,
                },
            },
            ipvs_timeouts: IpvsTimeouts { tcp: Some(0), tcp_fin: 0, udp: 0 },
            oom_score_adj: -999,
            healthz_bind_address: Some(([0, 0, 0, 0], 10_256).into()),
            metrics_bind_address: Some(([127, 0, 0, 1], 10_249).into()),
            service_metrics: ServiceMetrics::Off,
            bind_address_hard_fail: false,
            log: logging::Options::default(),
            control_socket: "/run/kube-ipvs/control.sock".into(),
            config_file: None,
            effective: KubeProxyConfiguration {
                hostname_override: "node".to_owned(),
                ..KubeProxyConfiguration::of_no_flags()
            },
            warnings: vec![],
        }
    );
}

#[test]
fn an_empty_file_leads_to_the_same_but_for_the_minimum_sync_period() {
    let from_file = with_file("", &[]).unwrap();
    let mut effective = from_file.effective.clone();
    effective.ipvs.min_sync_period = GoDuration::from_seconds(1);
    let expected = Settings {
        timing: Timing { min_sync_period: Duration::from_secs(1), ..from_file.timing },
        config_file: None,
        effective,
        ..from_file.clone()
    };
    assert_eq!(from_file.timing.min_sync_period, Duration::ZERO);
    assert_eq!(expected, settings(&[]));
}

#[test]
#[expect(clippy::too_many_lines, reason = "every flag")]
fn every_flag_arrives() {
    let settings = settings(&[
        "--kubeconfig=/k",
        "--master=https://10.0.0.1:6443",
        "--proxy-mode=ipvs",
        "--cluster_cidr=10.244.3.0/16,fd00::/48",
        "--iptables-masquerade-bit=31",
        "--masquerade-all",
        "--ipvs-scheduler=lc",
        "--ipvs-sync-period=1m30s",
        "--ipvs-min-sync-period=500ms",
        "--ipvs-exclude-cidrs=10.1.0.0/16,10.2.0.1/16",
        "--ipvs-exclude-cidrs=fd01::/64",
        "--ipvs-strict-arp",
        "--ipvs-tcp-timeout=2h",
        "--ipvs-tcpfin-timeout=1m",
        "--ipvs-udp-timeout=1500ms",
        "--conntrack-max-per-core=1000",
        "--conntrack-min=2000",
        "--conntrack-tcp-timeout-established=2h",
        "--conntrack-tcp-timeout-close-wait=0",
        "--conntrack-tcp-be-liberal",
        "--conntrack-udp-timeout=31s",
        "--conntrack-udp-timeout-stream=32s",
        "--oom-score-adj",
        "-998",
        "--healthz-bind-address=[::1]:10356",
        "--metrics-bind-address=0.0.0.0:10349",
        "--service-metrics=endpoint",
        "--bind-address-hard-fail",
        "--nodeport-addresses=192.0.2.0/24,2001:db8::1/64",
        "--nodeport-addresses=198.51.100.7/32",
        "--bind-address=192.0.2.1",
        "--feature-gates=AllowServiceExternalIPs=false",
        "--drain-timeout=10m",
        "--eject=silent,refusing",
        "--untracked-services=cluster-dns,annotated",
        "--weights-by-distance=node=100,zone=10,other=1",
        "-v=4",
        "--log-format=json",
        "--vip-binding=route",
        "--external-forwarding-method=tunnel",
        "--tunnel=gue",
        "--host-firewall=accept",
        "--foreign-virtual-servers=keep",
        "--control-socket=/tmp/s",
    ]);
    let expected = Settings {
        source: Source::Api {
            kubeconfig: Some("/k".into()),
            master: Some("https://10.0.0.1:6443".to_owned()),
        },
        services: Options {
            node_name: "node".into(),
            scheduler: Scheduler::LC,
            distance_weights: distance_weights("node=100,zone=10,other=1"),
            ejection: Ejection::SILENT | Ejection::REFUSING,
            node_port_addresses: ranges(&["192.0.2.0/24", "2001:db8::/64", "198.51.100.7/32"]),
            bind_address: Some([192, 0, 2, 1].into()),
            external_ips: ExternalIps::Off,
            external_forwarding: ExternalForwarding::Tunnel,
            tunnel: Tunnel::new(TunnelKind::Gue).port(GUE_PORT),
            knows_pods: Family::BOTH.into(),
            untracked_services: UntrackedServices::all(),
            // The masquerading of all flows needs conntrack.
            untracked_pods: Vec::new(),
            answers_peers: false,
            pod_ranges: ["10.244.0.0/16", "fd00::/48"].map(|range| range.parse().unwrap()).into(),
            watches_nodes: true,
        },
        timing: Timing {
            sync_period: Duration::from_secs(90),
            min_sync_period: Duration::from_millis(500),
            drain_timeout: Some(Duration::from_mins(10)),
            tcp_timeout: Timing::TCP_TIMEOUT,
        },
        exclude_cidrs: ["10.1.0.0/16", "10.2.0.0/16", "fd01::/64"].map(|net| net.parse().unwrap()).to_vec(),
        foreign: Foreign::Keep,
        masquerade_all: true,
        mark: 1 << 31,
        local_mode: LocalMode::Fixed(LocalTraffic::Source {
            ipv4: Some("10.244.0.0/16".parse().unwrap()),
            ipv6: Some("fd00::/48".parse().unwrap()),
        }),
        host_firewall: HostFirewall::Accept,
        vip_binding: VipBinding::Route,
        kernel_parameters: KernelParameters {
            strict_arp: true,
            direct_return: true,
            conntrack: ConntrackSettings {
                max_per_core: 1_000,
                min: 2_000,
                tcp_established_timeout: 7_200,
                tcp_close_wait_timeout: 0,
                tcp_be_liberal: true,
                udp_timeout: 31,
                udp_stream_timeout: 32,
            },
        },
        ipvs_timeouts: IpvsTimeouts { tcp: Some(7_200), tcp_fin: 60, udp: 2 },
        oom_score_adj: -998,
        healthz_bind_address: Some("[::1]:10356".parse().unwrap()),
        metrics_bind_address: Some("0.0.0.0:10349".parse().unwrap()),
        service_metrics: ServiceMetrics::Endpoint,
        bind_address_hard_fail: true,
        log: logging::Options { format: logging::Format::Json, verbosity: 4 },
        control_socket: "/tmp/s".into(),
        config_file: None,
        effective: settings.effective.clone(),
        warnings: vec![],
    };
    assert_eq!(settings, expected);
}

#[test]
fn health_and_metrics_are_served_where_upstream_serves_them() {
    let of_flags = |flags: &[&str]| {
        let settings = settings(flags);
        [settings.healthz_bind_address, settings.metrics_bind_address].map(|it| it.map(|it| it.to_string()))
    };
    let some = |health: &str, metrics: &str| [Some(health.to_owned()), Some(metrics.to_owned())];
    assert_eq!(of_flags(&["--healthz-bind-address=", "--metrics-bind-address="]), [None, None]);
    assert_eq!(of_flags(&["--healthz-port=0", "--metrics-port=0"]), [None, None]);
    let with_ports = ["--healthz-bind-address=::1", "--healthz-port=1", "--metrics-port=2"];
    assert_eq!(of_flags(&with_ports), some("[::1]:1", "127.0.0.1:10249"), "only for an address without port");
    let of_file = |fields: &str| {
        let settings = with_file(fields, &[]).unwrap();
        [settings.healthz_bind_address, settings.metrics_bind_address].map(|it| it.map(|it| it.to_string()))
    };
    assert_eq!(of_file("bindAddress: \"::\""), some("[::]:10256", "[::1]:10249"));
    let bare = "healthzBindAddress: 192.0.2.1\nmetricsBindAddress: \"2001:db8::1\"";
    assert_eq!(of_file(bare), some("192.0.2.1:10256", "[2001:db8::1]:10249"));
    let whole = "healthzBindAddress: 192.0.2.1:80\nmetricsBindAddress: \"[::1]:81\"";
    assert_eq!(of_file(whole), some("192.0.2.1:80", "[::1]:81"));
    assert_eq!(of_file("healthzBindAddress: \"\""), some("0.0.0.0:10256", "127.0.0.1:10249"));
}

#[test]
fn the_flags_for_ports_alone_are_deprecated() {
    assert_eq!(
        settings(&["--healthz-port=10256", "--metrics-port=10249"]).warnings,
        [
            "--healthz-port is deprecated, and ignored unless --healthz-bind-address has no port",
            "--metrics-port is deprecated, and ignored unless --metrics-bind-address has no port"
        ]
    );
}

#[test]
fn a_master_is_a_url_or_a_host() {
    for master in [
        "https://10.0.0.1:6443/prefix",
        "http://m",
        "10.0.0.1:6443",
        "localhost:8080/",
        "[fd00::1]:6443",
        "m",
    ] {
        let source = Source::Api { kubeconfig: None, master: Some(master.to_owned()) };
        assert_eq!(settings(&[&format!("--master={master}")]).source, source);
    }
}

#[test]
fn with_a_file_only_the_flags_that_go_before_it_count() {
    let settings = with_file(
        "hostnameOverride: from-file\nlogging: {format: json, verbosity: 1}\nclientConnection: {kubeconfig: /k}\n\
         bindAddress: 2001:db8::1\nfeatureGates: {AllowServiceExternalIPs: false}\nnodePortAddresses: [primary]\n",
        &[
            "--ipvs-scheduler=lc",
            "--masquerade-all",
            "--nodeport-addresses=10.0.0.0/8",
            "--bind-address=10.0.0.1",
            "--feature-gates=AllowServiceExternalIPs=true",
            "--master=http://m",
            "--v=5",
            "--vip-binding=route",
            "--drain-timeout=1h",
            "--service-metrics=service",
            "--eject=silent",
            "--weights-by-distance=zone=2,other=1,node=3",
            "--host-firewall=accept",
        ],
    )
    .unwrap();
    assert_eq!(&*settings.services.node_name, "node", "the flag goes before the file");
    assert_eq!(settings.services.scheduler, Scheduler::RR);
    assert!(!settings.masquerade_all);
    assert_eq!(
        settings.services.node_port_addresses,
        NodePortAddresses { primary: true, ranges: Vec::new() }
    );
    assert_eq!(settings.services.bind_address, Some("2001:db8::1".parse().unwrap()));
    assert_eq!(settings.services.external_ips, ExternalIps::Off);
    let master = Some("http://m".to_owned());
    assert_eq!(settings.source, Source::Api { kubeconfig: Some("/k".into()), master });
    assert_eq!(settings.log, logging::Options { format: logging::Format::Json, verbosity: 5 });
    assert_eq!(settings.vip_binding, VipBinding::Route);
    assert_eq!(settings.timing.drain_timeout, Some(Duration::from_hours(1)));
    assert_eq!(settings.service_metrics, ServiceMetrics::Service);
    assert_eq!(settings.services.ejection, Ejection::SILENT);
    assert_eq!(settings.services.distance_weights, distance_weights("node=3,zone=2,other=1"));
    assert_eq!(settings.host_firewall, HostFirewall::Accept);
}

#[test]
fn pods_of_one_range_per_family_are_not_tracked_unless_all_flows_are_masqueraded() {
    let range = "--cluster-cidr=10.244.0.0/16,fd00::/48";
    let untracked = |flags: &[&str]| settings(&[&[range], flags].concat()).services.untracked_pods;
    let both = ["10.244.0.0/16", "fd00::/48"].map(|range| range.parse().unwrap());
    assert_eq!(untracked(&["--untracked-services=cluster-dns"]), both);
    assert_eq!(untracked(&[]), []);
    assert_eq!(untracked(&["--untracked-services=cluster-dns", "--masquerade-all"]), []);
}

#[test]
fn node_ports_are_served_at_all_addresses_at_the_node_ips_or_in_ranges() {
    let of_flag =
        |value: &str| settings(&[&format!("--nodeport-addresses={value}")]).services.node_port_addresses;
    let of_file = |value: &str| {
        with_file(&format!("nodePortAddresses: {value}"), &[]).unwrap().services.node_port_addresses
    };
    for all in [of_flag(""), of_file("[]"), of_file("null")] {
        assert_eq!(all, NodePortAddresses::default());
    }
    for primary in [of_flag("primary"), of_file("[primary]")] {
        assert_eq!(primary, NodePortAddresses { primary: true, ranges: Vec::new() });
    }
    for given in [of_flag("10.1.2.3/8,::/0"), of_file("[10.0.0.0/8, \"::/0\"]")] {
        assert_eq!(given, ranges(&["10.0.0.0/8", "::/0"]));
    }
}

#[test]
fn keywords_for_node_ports_stand_beside_each_other_and_beside_ranges() {
    let of_flag =
        |value: &str| settings(&[&format!("--nodeport-addresses={value}")]).services.node_port_addresses;
    let of_file = |value: &str| {
        with_file(&format!("nodePortAddresses: [{value}]"), &[]).unwrap().services.node_port_addresses
    };
    let loopback = ["127.0.0.0/8", "::1/128"];
    for (value, primary, cidrs) in [
        ("localhost", false, &loopback[..]),
        ("all", false, &["0.0.0.0/0", "::/0"]),
        ("primary,localhost", true, &loopback),
        ("localhost,10.0.0.0/8,primary", true, &["127.0.0.0/8", "::1/128", "10.0.0.0/8"]),
        ("primary,10.0.0.0/8", true, &["10.0.0.0/8"]),
        ("10.0.0.0/8,all", false, &["10.0.0.0/8", "0.0.0.0/0", "::/0"]),
        ("10.0.0.0/8,10.0.0.0/8", false, &["10.0.0.0/8", "10.0.0.0/8"]),
    ] {
        let expected = NodePortAddresses { primary, ..ranges(cidrs) };
        assert_eq!(of_flag(value), expected, "{value}");
        assert_eq!(of_file(value), expected, "{value}");
    }
}

#[test]
fn loopback_addresses_that_are_asked_for_are_a_warning() {
    for loopback in ["localhost", "primary,localhost", "127.0.0.0/8,::1/128", "all,127.0.0.1/32"] {
        assert_eq!(
            settings(&[&format!("--nodeport-addresses={loopback}")]).warnings,
            ["--nodeport-addresses: loopback addresses (localhost) have no effect here: \
                 NodePorts are never served there"],
            "{loopback}"
        );
    }
}

#[test]
fn ranges_of_one_family_leave_the_other_everywhere_and_a_warning_says_so() {
    assert_eq!(
        settings(&["--nodeport-addresses=10.0.0.0/8,192.168.0.0/16"]).warnings,
        [
            "--nodeport-addresses: no range is IPv6, so NodePorts are served at every IPv6 address of this node"
        ]
    );
    let of_file = with_file("nodePortAddresses: [\"fd00::/8\"]", &[]).unwrap().warnings;
    let [warning] = of_file.as_slice() else { panic!("{of_file:?}") };
    assert!(
        warning.ends_with(
            "config.conf: nodePortAddresses: no range is IPv4, \
             so NodePorts are served at every IPv4 address of this node"
        ),
        "{warning}"
    );
    for whole in ["", "primary", "all", "primary,10.0.0.0/8", "10.0.0.0/8,fd00::/8"] {
        let warnings = settings(&[&format!("--nodeport-addresses={whole}")]).warnings;
        assert_eq!(warnings, [""; 0], "{whole}");
    }
}

#[test]
fn a_bind_address_that_is_any_address_is_none() {
    for any in ["", "0.0.0.0", "::"] {
        assert_eq!(settings(&[&format!("--bind-address={any}")]).services.bind_address, None, "{any}");
        assert_eq!(
            with_file(&format!("bindAddress: \"{any}\""), &[]).unwrap().services.bind_address,
            None,
            "{any}"
        );
    }
}

#[test]
fn a_feature_gate_that_is_not_ours_is_named_in_the_warning() {
    let of_flags = settings(&[
        "--feature-gates=Elsewhere=true,AllowServiceExternalIPs=false",
        "--feature-gates=AllowServiceExternalIP=false",
        "--config-sync-period=1m",
    ]);
    assert_eq!(of_flags.services.external_ips, ExternalIps::Off);
    assert_eq!(
        of_flags.warnings,
        ["accepted without effect: --config-sync-period, --feature-gates=AllowServiceExternalIP, \
          --feature-gates=Elsewhere"]
    );
    let of_file = with_file("featureGates: {AllowServiceExternalIPs: false, Elsewhere: false}", &[]).unwrap();
    assert_eq!(of_file.services.external_ips, ExternalIps::Off);
    assert_eq!(of_file.warnings, ["accepted without effect: featureGates.Elsewhere"]);
}

#[test]
fn external_ips_exclude_node_ips_by_default_and_their_flag_counts_beside_a_file() {
    let external_ips = |flags: &[&str]| {
        let (of_flags, beside_a_file) =
            (settings(flags).services.external_ips, with_file("", flags).unwrap().services.external_ips);
        assert_eq!(of_flags, beside_a_file, "{flags:?}");
        of_flags
    };
    for usual in [&[][..], &["--external-ip-policy="]] {
        assert_eq!(external_ips(usual), ExternalIps::Unowned);
    }
    let given = ["--external-ip-policy=203.0.113.7/24,::/0", "--external-ip-policy=192.0.2.1/32"];
    let ranges = ["203.0.113.0/24", "::/0", "192.0.2.1/32"].map(|range| range.parse().unwrap());
    assert_eq!(external_ips(&given), ExternalIps::In(ranges.to_vec()));
    let switched_off = ["--external-ip-policy=::/0", "--feature-gates=AllowServiceExternalIPs=false"];
    assert_eq!(settings(&switched_off).services.external_ips, ExternalIps::Off);
}

#[test]
fn manifests_go_before_the_file_s_kubeconfig_and_beside_no_flag_of_the_kind() {
    let settings = with_file("clientConnection: {kubeconfig: /k}\n", &["--manifests=/m"]).unwrap();
    assert_eq!(settings.source, Source::Directory("/m".into()));
    let contradiction = ["kube-ipvs", "--manifests=/m", "--kubeconfig=/k"].map(OsString::from);
    assert!(cli::parse(contradiction).is_err());
}

#[test]
fn the_node_s_name_is_trimmed_and_lower_case_and_comes_from_the_kernel_at_last() {
    assert_eq!(&*settings(&["--hostname-override= Node-A\n"]).services.node_name, "node-a");
    assert_eq!(
        refusal(&["--hostname-override= "]),
        "--hostname-override: invalid value \" \": expected a node's name"
    );
    let kernel = fs::read_to_string("/proc/sys/kernel/hostname").unwrap().trim().to_lowercase();
    assert_eq!(&*settings(&["--hostname-override="]).services.node_name, kernel);
    assert_eq!(
        with_file("hostnameOverride: From-File\n", &["--hostname-override="])
            .unwrap()
            .services
            .node_name
            .to_string(),
        "from-file"
    );
}

#[test]
fn pods_are_recognised_as_the_local_mode_says() {
    let local = |arguments: &[&str]| settings(arguments).local_mode;
    assert_eq!(
        local(&["--detect-local-mode=BridgeInterface", "--pod-bridge-interface=cbr0"]),
        LocalMode::Fixed(LocalTraffic::Bridge("cbr0".into()))
    );
    assert_eq!(
        local(&["--detect-local-mode=InterfaceNamePrefix", "--pod-interface-name-prefix=veth"]),
        LocalMode::Fixed(LocalTraffic::InterfacePrefix("veth".into()))
    );
    // The Node's ranges are not known yet; the cluster's are not asked for.
    assert_eq!(local(&["--detect-local-mode=NodeCIDR", "--cluster-cidr=nonsense"]), LocalMode::NodeCidr);
    assert_eq!(with_file("detectLocalMode: NodeCIDR", &[]).unwrap().local_mode, LocalMode::NodeCidr);
    assert_eq!(
        refusal(&["--detect-local-mode=BridgeInterface"]),
        "--pod-bridge-interface: invalid value \"\": expected an interface name of 1 to 15 letters without space or /"
    );
    // The range is not looked at in another mode.
    let prefix = ["--detect-local-mode=InterfaceNamePrefix", "--pod-interface-name-prefix=veth"];
    local(&[prefix[0], prefix[1], "--cluster-cidr=nonsense"]);
}

#[test]
fn flags_are_resolved_as_ipvs_whatever_mode_they_or_the_file_have() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("config.conf");
    fs::write(&file, format!("{HEAD}mode: nftables\nclusterCIDR: 10.244.0.0/16\n")).unwrap();
    for arguments in
        [&["--proxy-mode=iptables"][..], &[], &["--config", file.to_str().unwrap(), "--proxy-mode=iptables"]]
    {
        let settings = Settings::resolve_as_ipvs(&flags(arguments)).unwrap();
        assert_eq!(settings.effective.mode, "ipvs", "{arguments:?}");
    }
    let wrong = flags(&["--proxy-mode=iptables", "--healthz-bind-address=nonsense"]);
    let error = Settings::resolve_as_ipvs(&wrong).unwrap_err();
    assert!(!error.is_mode_of_kube_proxy() && error.to_string().contains("nonsense"), "{error}");
}

#[test]
fn a_file_that_is_not_there_is_the_command_lines_fault() {
    let error = Settings::resolve(&flags(&["--config=/nonexistent/config.conf"])).unwrap_err();
    assert!(error.is_usage());
    assert_eq!(error.to_string(), "/nonexistent/config.conf: the configuration file cannot be read");
}

#[test]
fn idle_flags_are_named_in_one_warning_unless_they_say_what_holds_anyway() {
    assert_eq!(
        settings(&[
            "--boot-id-file=/b",
            "--machine-id-file=/m",
            "--config-sync-period=900s",
            "--profiling",
            "--iptables-localhost-nodeports=true",
            "--iptables-min-sync-period=5s",
            "--kube-api-qps=50",
            "--kube-api-content-type=application/json",
            "--log-text-split-stream",
            "--log-flush-frequency=5000ms",
            "--show-hidden-metrics-for-version=1.35",
            "--vmodule=proxier=4,health*=2",
        ])
        .warnings,
        ["accepted without effect: --kube-api-content-type, --kube-api-qps, --profiling, \
          --iptables-min-sync-period, --log-text-split-stream, --vmodule, --show-hidden-metrics-for-version"]
    );
}

#[test]
fn of_a_flag_given_twice_the_last_counts() {
    assert_eq!(settings(&["--ipvs-scheduler=lc", "--ipvs-scheduler=sh"]).services.scheduler, Scheduler::SH);
    let twice = settings(&["--masquerade-all", "--masquerade-all=false", "--profiling", "--profiling=false"]);
    assert!(!twice.masquerade_all);
}

#[test]
fn flags_that_the_file_overrules_are_named_in_one_warning() {
    let with_flags = |flags: &[&str]| with_file("mode: ipvs", flags).unwrap().warnings;
    let overruled = [
        "--kubeconfig=/k",
        "--proxy-mode=iptables",
        "--ipvs-scheduler=wrr",
        "--ipvs-sync-period=1m",
        "--ipvs-min-sync-period=0",
        "--ipvs-exclude-cidrs=10.0.0.0/8",
        "--ipvs-strict-arp",
        "--nodeport-addresses=primary",
        "--bind-address=10.0.0.1",
        "--feature-gates=AllowServiceExternalIPs=false",
        "--cluster-cidr=10.0.0.0/8",
        "--detect-local-mode=BridgeInterface",
        "--pod-bridge-interface=cbr0",
        "--pod-interface-name-prefix=veth",
        "--iptables-masquerade-bit=0",
        "--masquerade-all",
        "--conntrack-min=1",
        "--ipvs-udp-timeout=1m",
        "--oom-score-adj=0",
        "--healthz-bind-address=",
        "--bind-address-hard-fail",
        "--kube-api-burst=11",
    ];
    let warnings = with_flags(&overruled);
    let [warning] = warnings.as_slice() else { panic!("{warnings:?}") };
    let names = overruled.map(|flag| flag.split('=').next().unwrap()).join(", ");
    assert!(
        warning.starts_with(&format!("{names}: no effect together with --config; set it in /")),
        "{warning}"
    );
    // What says the same anyway, and what goes before the file.
    let others = [
        "--proxy-mode=ipvs",
        "--bind-address=0.0.0.0",
        "--healthz-bind-address=0.0.0.0",
        "--conntrack-tcp-timeout-established=1440m",
        "--hostname-override=n",
        "--drain-timeout=1s",
        "--v=4",
    ];
    assert_eq!(with_flags(&others), [""; 0]);
}

/// The paths of the values that two trees have and that differ, or of all if there is no other tree.
fn leaves(path: &str, tree: &Value, other: Option<&Value>) -> Vec<String> {
    let path_of = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    match tree {
        Value::Object(fields) if path != "featureGates" => fields
            .iter()
            .flat_map(|(name, value)| leaves(&path_of(name), value, other.map(|other| &other[name])))
            .collect(),
        _ if other == Some(tree) => Vec::new(),
        _ => vec![path.to_owned()],
    }
}

#[test]
fn every_field_has_one_row_and_the_row_has_its_value() {
    let zero = KubeProxyConfiguration::default();
    let mut fields = leaves("", &zero.tree(), None);
    fields.retain(|field| !["apiVersion", "kind"].contains(&field.as_str()));
    let mut rows: Vec<_> = OPTIONS.iter().map(|option| option.field).collect();
    rows.sort_unstable();
    fields.sort_unstable();
    assert_eq!(rows, fields);
    let whole = file::whole();
    for option in OPTIONS {
        let mut changed = whole.clone();
        option.place.copy(&zero, &mut changed);
        assert_eq!(leaves("", &changed.tree(), Some(&whole.tree())), [option.field]);
    }
}

#[test]
fn the_tcp_timeout_of_ipvs_can_be_conntracks_by_flag_and_file() {
    let flag = settings(&["--ipvs-tcp-timeout=auto"]).ipvs_timeouts;
    let in_file = with_file("ipvs: {tcpTimeout: auto, udpTimeout: 5m}", &[]).unwrap().ipvs_timeouts;
    assert_eq!((flag.tcp, in_file.tcp), (None, None));
    assert_eq!(in_file.resolve(Some(86_400)), Timeouts::UNCHANGED.tcp(86_400).udp(300));
    assert_eq!(in_file.resolve(None), Timeouts::UNCHANGED.udp(300), "conntrack is not loaded");
    assert_eq!(IpvsTimeouts { tcp: Some(7), ..flag }.resolve(Some(86_400)), Timeouts::UNCHANGED.tcp(7));
    assert!(with_file("ipvs: {udpTimeout: auto}", &[]).is_err(), "of TCP alone");
}
