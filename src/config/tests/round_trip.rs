//! What is written reads back as the same.

use std::{fs, path::Path};

use proptest::{collection, option, prelude::*};

use super::{flags, settings};
use crate::config::{
    Error, FeatureGates, GoDuration, KubeProxyConfiguration, Settings,
    file::{File, decode},
    options::{
        ClientConnection, Conntrack, DetectLocal, Iptables, Ipvs, LogOptions, Logging, Nftables,
        OutputRouting, VModule, Winkernel,
    },
    values::{FlushFrequency, ListenAddress, Quantity, TcpTimeout},
};

/// Text of all kinds, and text that YAML takes for something else unless it is quoted.
fn text() -> impl Strategy<Value = String> {
    let words = prop::sample::select(vec![
        "",
        "null",
        "~",
        "yes",
        "true",
        "0x10",
        "1e3",
        ".nan",
        "1:30",
        "[::]:10256",
        "{a: b}",
        "- x",
        "a: b",
        "a #b",
        "#",
        "*x",
        "&x",
        "!x",
        "|",
        ">",
        "%",
        "@",
        "'",
        "\"",
        " padded ",
        "two\nlines\n",
        "\t",
        "\u{feff}",
        "---",
    ]);
    prop_oneof![words.prop_map(str::to_owned), any::<String>(), ".{60,200}"]
}

fn duration() -> impl Strategy<Value = GoDuration> {
    let nanoseconds = prop_oneof![Just(0), -2_000_000_000..2_000_000_000i64, -i64::MAX..i64::MAX];
    nanoseconds.prop_map(GoDuration::from_nanoseconds)
}

prop_compose! {
    fn client_connection()(
        texts in [text(), text(), text()], burst in any::<i32>(), qps in -1e9f32..1e9,
    ) -> ClientConnection {
        let [accept_content_types, content_type, kubeconfig] = texts;
        ClientConnection { accept_content_types, burst, content_type, kubeconfig, qps }
    }
}

prop_compose! {
    fn conntrack()(
        counts in [option::of(any::<i32>()), option::of(any::<i32>())],
        timeouts in [option::of(duration()), option::of(duration())],
        udp in [duration(), duration()],
        tcp_be_liberal in any::<bool>(),
    ) -> Conntrack {
        let [max_per_core, min] = counts;
        let [tcp_close_wait_timeout, tcp_established_timeout] = timeouts;
        let [udp_stream_timeout, udp_timeout] = udp;
        Conntrack {
            max_per_core, min, tcp_be_liberal, tcp_close_wait_timeout, tcp_established_timeout,
            udp_stream_timeout, udp_timeout,
        }
    }
}

prop_compose! {
    fn iptables()(
        localhost_node_ports in option::of(any::<bool>()), masquerade_all in any::<bool>(),
        masquerade_bit in option::of(any::<i32>()), min_sync_period in duration(), sync_period in duration(),
    ) -> Iptables {
        Iptables { localhost_node_ports, masquerade_all, masquerade_bit, min_sync_period, sync_period }
    }
}

prop_compose! {
    fn ipvs()(
        exclude_cidrs in collection::vec(text(), 0..3), scheduler in text(), strict_arp in any::<bool>(),
        durations in [duration(), duration(), duration(), duration()],
        tcp_timeout in option::of(duration()),
    ) -> Ipvs {
        let [min_sync_period, sync_period, tcp_fin_timeout, udp_timeout] = durations;
        let tcp_timeout = tcp_timeout.map_or(TcpTimeout::Auto, TcpTimeout::After);
        Ipvs {
            exclude_cidrs, min_sync_period, scheduler, strict_arp, sync_period, tcp_fin_timeout, tcp_timeout,
            udp_timeout,
        }
    }
}

prop_compose! {
    fn routing()(size in text(), split_stream in any::<bool>()) -> OutputRouting {
        OutputRouting { info_buffer_size: Quantity(size), split_stream }
    }
}

prop_compose! {
    fn logging()(
        flush_frequency in duration(), format in text(), json in routing(), text in routing(),
        verbosity in any::<u32>(), vmodule in collection::vec((text(), any::<u32>()), 0..3),
    ) -> Logging {
        let module = |(file_pattern, verbosity)| VModule { file_pattern, verbosity };
        Logging {
            flush_frequency: FlushFrequency(flush_frequency),
            format,
            options: LogOptions { json, text },
            verbosity,
            vmodule: vmodule.into_iter().map(module).collect(),
        }
    }
}

prop_compose! {
    fn unused()(
        masquerade_all in any::<bool>(), masquerade_bit in option::of(any::<i32>()),
        periods in [duration(), duration()], switches in any::<[bool; 2]>(), texts in [text(), text(), text()],
    ) -> (Nftables, Winkernel) {
        let [min_sync_period, sync_period] = periods;
        let [enable_dsr, forward_health_check_vip] = switches;
        let [network_name, root_hns_endpoint_name, source_vip] = texts;
        (
            Nftables { masquerade_all, masquerade_bit, min_sync_period, sync_period },
            Winkernel { enable_dsr, forward_health_check_vip, network_name, root_hns_endpoint_name, source_vip },
        )
    }
}

fn feature_gates() -> impl Strategy<Value = FeatureGates> {
    collection::btree_map(text(), any::<bool>(), 0..4).prop_map(FeatureGates::from)
}

prop_compose! {
    fn configuration()(
        parts in (client_connection(), conntrack(), iptables(), ipvs(), logging(), unused(), feature_gates()),
        texts in collection::vec(text(), 11),
        node_port_addresses in collection::vec(text(), 0..3),
        switches in any::<[bool; 3]>(),
        oom_score_adj in option::of(any::<i32>()),
        config_sync_period in duration(),
    ) -> KubeProxyConfiguration {
        let (client_connection, conntrack, iptables, ipvs, logging, unused, feature_gates) = parts;
        let (nftables, winkernel) = unused;
        let mut texts = texts.into_iter();
        let mut text = || texts.next().unwrap();
        let [bind_address_hard_fail, enable_profiling, windows_run_as_service] = switches;
        KubeProxyConfiguration {
            bind_address: text(),
            bind_address_hard_fail,
            client_connection,
            cluster_cidr: text(),
            config_sync_period,
            conntrack,
            detect_local: DetectLocal { bridge_interface: text(), interface_name_prefix: text() },
            detect_local_mode: text(),
            enable_profiling,
            feature_gates,
            healthz_bind_address: ListenAddress(text()),
            hostname_override: text(),
            iptables,
            ipvs,
            logging,
            metrics_bind_address: ListenAddress(text()),
            mode: text(),
            nftables,
            node_port_addresses,
            oom_score_adj,
            port_range: text(),
            show_hidden_metrics_for_version: text(),
            windows_run_as_service,
            winkernel,
            ..KubeProxyConfiguration::default()
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn whatever_is_written_reads_back_as_the_same(mut configuration in configuration()) {
        configuration.fill();
        let yaml = configuration.to_yaml().unwrap();
        let File { configuration: read, warnings } = decode(Path::new("written"), &yaml).unwrap();
        prop_assert_eq!(&read, &configuration, "{}", yaml);
        prop_assert_eq!(warnings, [""; 0]);
    }

    #[test]
    fn what_differs_from_the_default_reads_back_as_the_whole(mut configuration in configuration()) {
        configuration.fill();
        let yaml = serde_saphyr::to_string(&configuration.differences()).unwrap();
        let File { configuration: read, warnings } = decode(Path::new("written"), &yaml).unwrap();
        prop_assert_eq!(&read, &configuration, "{}", yaml);
        prop_assert_eq!(warnings, [""; 0]);
    }
}

#[test]
fn flags_can_be_turned_into_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("config.conf");
    for given in [
        &[][..],
        &["--bind-address=::", "--ipvs-min-sync-period=0", "--oom-score-adj=0", "--conntrack-max-per-core=0"],
        &["--ipvs-scheduler=", "--kube-api-qps=0", "--kube-api-content-type=", "--iptables-sync-period=0"],
        &[
            "--feature-gates=A=true",
            "--nodeport-addresses=primary",
            "--v=3",
            "--vmodule=a=1",
            "--healthz-port=1",
        ],
    ] {
        let by_flags = settings(given);
        by_flags.effective.write_to(&file).unwrap();
        let by_file = Settings::resolve(&flags(&["--config", file.to_str().unwrap()])).unwrap();
        let same = Settings { config_file: None, warnings: by_flags.warnings.clone(), ..by_file };
        assert_eq!(same, by_flags, "{}", fs::read_to_string(&file).unwrap());
    }
}

#[test]
fn what_no_file_can_say_is_not_written() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("config.conf");
    for (flag, field) in
        [("--healthz-bind-address=", "healthzBindAddress"), ("--metrics-port=0", "metricsBindAddress")]
    {
        let error = settings(&[flag]).effective.write_to(&file).unwrap_err();
        assert!(matches!(error, Error::OnlyByFlag(of) if of == field) && error.is_usage(), "{error}");
        assert!(!file.exists());
    }
}
