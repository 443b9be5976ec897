//! A value that cannot be is refused by the name of its option.

use super::{refusal, settings, with_file};

/// What is said of such a file, without its path.
fn refusal_of_file(fields: &str) -> String {
    let error = with_file(fields, &[]).unwrap_err();
    assert!(error.is_usage(), "{error}");
    error.to_string().split_once("config.conf: ").unwrap().1.to_owned()
}

#[test]
fn a_flag_s_bad_value_is_refused_by_the_flag_s_name() {
    for (flag, expected) in [
        ("--proxy-mode=iptables", "--proxy-mode: mode \"iptables\" is not supported"),
        ("--proxy-mode=nftables", "--proxy-mode: mode \"nftables\" is not supported"),
        ("--proxy-mode=IPVS", "--proxy-mode: mode \"IPVS\" is not supported"),
        ("--ipvs-scheduler=round robin", "--ipvs-scheduler: \"round robin\" cannot be an IPVS scheduler"),
        ("--ipvs-sync-period=0", "--ipvs-sync-period: the period must be more than 0"),
        ("--ipvs-min-sync-period=31s", "--ipvs-min-sync-period: 31s is more than the sync period of 30s"),
        ("--ipvs-exclude-cidrs=10.0.0.0/8,x", "--ipvs-exclude-cidrs: \"x\" is not a CIDR"),
        ("--cluster-cidr=10.244.0.0/33", "--cluster-cidr: \"10.244.0.0/33\" is not a CIDR"),
        (
            "--cluster-cidr=10.0.0.0/8,11.0.0.0/8",
            "--cluster-cidr: \"10.0.0.0/8,11.0.0.0/8\" has more than one",
        ),
        ("--nodeport-addresses=10.0.0.0/8,All", "--nodeport-addresses: \"All\" is not a CIDR"),
        ("--nodeport-addresses=primary,primary", "--nodeport-addresses: \"primary\" is given twice"),
        ("--nodeport-addresses=all,localhost,all", "--nodeport-addresses: \"all\" is given twice"),
        ("--bind-address=localhost", "--bind-address: \"localhost\" is not an IP address"),
        ("--iptables-masquerade-bit=32", "--iptables-masquerade-bit: 32 is not a bit of a packet mark"),
        ("--iptables-masquerade-bit=-1", "--iptables-masquerade-bit: -1 is not a bit of a packet mark"),
        ("--detect-local-mode=nodecidr", "--detect-local-mode: \"nodecidr\" is unknown"),
        ("--master=10.0.0.1:6443/api", "--master: \"10.0.0.1:6443/api\" is neither a URL"),
        ("--master=ftp://10.0.0.1", "--master: \"ftp://10.0.0.1\" is neither a URL"),
        ("--master=https://", "--master: \"https://\" is neither a URL"),
        ("--ipvs-sync-period=-1s", "--ipvs-sync-period: -1s is negative"),
        ("--ipvs-min-sync-period=-1ms", "--ipvs-min-sync-period: -1ms is negative"),
        ("--drain-timeout=-1s", "--drain-timeout: -1s is negative"),
        ("--ipvs-tcp-timeout=-1s", "--ipvs-tcp-timeout: -1s is negative"),
        ("--ipvs-tcpfin-timeout=600000h", "--ipvs-tcpfin-timeout: 600000h0m0s is longer than the kernel"),
        ("--conntrack-max-per-core=-1", "--conntrack-max-per-core: -1 is negative"),
        ("--conntrack-min=-1", "--conntrack-min: -1 is negative"),
        ("--conntrack-udp-timeout-stream=-1s", "--conntrack-udp-timeout-stream: -1s is negative"),
        ("--oom-score-adj=-1001", "--oom-score-adj: -1001 is not an OOM score adjustment"),
        (
            "--healthz-bind-address=0.0.0.0:0",
            "--healthz-bind-address: \"0.0.0.0:0\" is not an address with a port",
        ),
        ("--metrics-bind-address=:10249", "--metrics-bind-address: \":10249\" is not an address with a port"),
        ("--config-sync-period=0", "--config-sync-period: the period must be more than 0"),
        ("--kube-api-burst=-1", "--kube-api-burst: -1 is negative"),
        ("--kube-api-qps=inf", "--kube-api-qps: inf is not a rate"),
        ("--show-hidden-metrics-for-version=1", "--show-hidden-metrics-for-version: \"1\" is not a version"),
        ("--log-flush-frequency=0", "--log-flush-frequency: the period must be more than 0"),
    ] {
        let refusal = refusal(&[flag]);
        assert!(refusal.starts_with(expected), "{flag}: {refusal}");
    }
}

#[test]
fn a_field_s_bad_value_is_refused_by_the_field_s_path() {
    for (fields, expected) in [
        ("mode: nftables", "mode: mode \"nftables\" is not supported"),
        ("ipvs: {scheduler: RR}", "ipvs.scheduler: \"RR\" cannot be an IPVS scheduler"),
        ("ipvs: {minSyncPeriod: 1m}", "ipvs.minSyncPeriod: 60s is more than the sync period of 30s"),
        ("ipvs: {excludeCIDRs: [x]}", "ipvs.excludeCIDRs: \"x\" is not a CIDR"),
        ("nodePortAddresses: [10.0.0.1]", "nodePortAddresses: \"10.0.0.1\" is not a CIDR"),
        ("nodePortAddresses: [10.0.0.0/8, loopback]", "nodePortAddresses: \"loopback\" is not a CIDR"),
        ("nodePortAddresses: [localhost, localhost]", "nodePortAddresses: \"localhost\" is given twice"),
        ("bindAddress: eth0", "bindAddress: \"eth0\" is not an IP address"),
        ("clusterCIDR: x", "clusterCIDR: \"x\" is not a CIDR"),
        ("iptables: {masqueradeBit: 32}", "iptables.masqueradeBit: 32 is not a bit"),
        ("detectLocalMode: x", "detectLocalMode: \"x\" is unknown"),
        ("detectLocalMode: BridgeInterface", "detectLocal.bridgeInterface: \"\" cannot name"),
        ("detectLocalMode: InterfaceNamePrefix", "detectLocal.interfaceNamePrefix: \"\" cannot name"),
        ("logging: {format: xml}", "logging.format: \"xml\" is unknown"),
        ("logging: {flushFrequency: -1}", "logging.flushFrequency: -1ns is negative"),
        ("logging: {verbosity: 2147483648}", "logging.verbosity: 2147483648 is too large"),
        ("logging: {vmodule: [{filePattern: \"\"}]}", "logging.vmodule: \"\" cannot be a file pattern"),
        ("logging: {vmodule: [{filePattern: a=b}]}", "logging.vmodule: \"a=b\" cannot be a file pattern"),
        (
            "logging: {vmodule: [{filePattern: a, verbosity: 3000000000}]}",
            "logging.vmodule: 3000000000 is too large",
        ),
        ("clientConnection: {burst: -1}", "clientConnection.burst: -1 is negative"),
        ("configSyncPeriod: -1s", "configSyncPeriod: -1s is negative"),
        (
            "clusterCIDR: 10.0.0.0/8,fd00::/8,fd01::/16",
            "clusterCIDR: \"10.0.0.0/8,fd00::/8,fd01::/16\" has more",
        ),
        ("conntrack: {maxPerCore: -1}", "conntrack.maxPerCore: -1 is negative"),
        ("conntrack: {min: -1}", "conntrack.min: -1 is negative"),
        ("conntrack: {tcpEstablishedTimeout: -1s}", "conntrack.tcpEstablishedTimeout: -1s is negative"),
        ("conntrack: {tcpCloseWaitTimeout: -1s}", "conntrack.tcpCloseWaitTimeout: -1s is negative"),
        ("conntrack: {udpTimeout: -1s}", "conntrack.udpTimeout: -1s is negative"),
        ("conntrack: {udpStreamTimeout: -1s}", "conntrack.udpStreamTimeout: -1s is negative"),
        (
            "healthzBindAddress: localhost:1",
            "healthzBindAddress: \"localhost:1\" is not an address with a port",
        ),
        ("metricsBindAddress: 1.2.3.4:65536", "metricsBindAddress: \"1.2.3.4:65536\" is not an address"),
        ("iptables: {masqueradeBit: -1}", "iptables.masqueradeBit: -1 is not a bit"),
        ("ipvs: {syncPeriod: -1s}", "ipvs.syncPeriod: -1s is negative"),
        ("ipvs: {minSyncPeriod: -1s}", "ipvs.minSyncPeriod: -1s is negative"),
        ("ipvs: {tcpTimeout: -1s}", "ipvs.tcpTimeout: -1s is negative"),
        ("ipvs: {tcpFinTimeout: -1s}", "ipvs.tcpFinTimeout: -1s is negative"),
        ("ipvs: {udpTimeout: -1s}", "ipvs.udpTimeout: -1s is negative"),
        ("oomScoreAdj: 1001", "oomScoreAdj: 1001 is not an OOM score adjustment"),
        ("showHiddenMetricsForVersion: v1", "showHiddenMetricsForVersion: \"v1\" is not a version"),
    ] {
        let refusal = refusal_of_file(fields);
        assert!(refusal.starts_with(expected), "{fields}: {refusal}");
    }
    let without_flag =
        with_file("hostnameOverride: \" \"", &["--hostname-override="]).unwrap_err().to_string();
    assert!(
        without_flag.ends_with("config.conf: hostnameOverride: \" \" cannot be a node's name"),
        "{without_flag}"
    );
}

#[test]
fn what_is_not_looked_at_may_say_anything() {
    settings(&["--cleanup=false", "--write-config-to="]);
    for fields in ["iptables: {syncPeriod: -1s}", "nftables: {masqueradeBit: 99}", "portRange: nonsense"] {
        with_file(fields, &[]).unwrap();
    }
}
