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
        ("--ipvs-sync-period=0", "--ipvs-sync-period: invalid value 0s: expected a period of more than 0s"),
        ("--ipvs-min-sync-period=31s", "--ipvs-min-sync-period: 31s is more than the sync period of 30s"),
        ("--ipvs-exclude-cidrs=10.0.0.0/8,x", "--ipvs-exclude-cidrs: invalid value \"x\": expected a CIDR"),
        ("--cluster-cidr=10.244.0.0/33", "--cluster-cidr: invalid value \"10.244.0.0/33\": expected a CIDR"),
        (
            "--cluster-cidr=10.0.0.0/8,11.0.0.0/8",
            "--cluster-cidr: \"10.0.0.0/8,11.0.0.0/8\" has more than one",
        ),
        (
            "--nodeport-addresses=10.0.0.0/8,All",
            "--nodeport-addresses: invalid value \"All\": expected a CIDR",
        ),
        ("--nodeport-addresses=primary,primary", "--nodeport-addresses: \"primary\" is given twice"),
        ("--nodeport-addresses=all,localhost,all", "--nodeport-addresses: \"all\" is given twice"),
        ("--bind-address=localhost", "--bind-address: invalid value \"localhost\": expected an IP address"),
        (
            "--iptables-masquerade-bit=32",
            "--iptables-masquerade-bit: invalid value 32: expected a bit of a packet mark",
        ),
        (
            "--iptables-masquerade-bit=-1",
            "--iptables-masquerade-bit: invalid value -1: expected a bit of a packet mark",
        ),
        ("--detect-local-mode=nodecidr", "--detect-local-mode: invalid value \"nodecidr\": expected"),
        ("--master=10.0.0.1:6443/api", "--master: invalid value \"10.0.0.1:6443/api\": expected a URL"),
        ("--master=ftp://10.0.0.1", "--master: invalid value \"ftp://10.0.0.1\": expected a URL"),
        ("--master=https://", "--master: invalid value \"https://\": expected a URL"),
        ("--ipvs-sync-period=-1s", "--ipvs-sync-period: invalid value -1s: expected 0 or more"),
        ("--ipvs-min-sync-period=-1ms", "--ipvs-min-sync-period: invalid value -1ms: expected 0 or more"),
        ("--drain-timeout=-1s", "--drain-timeout: invalid value -1s: expected 0 or more"),
        ("--ipvs-tcp-timeout=-1s", "--ipvs-tcp-timeout: invalid value -1s: expected 0 or more"),
        (
            "--ipvs-tcpfin-timeout=600000h",
            "--ipvs-tcpfin-timeout: invalid value 600000h0m0s: expected at most 2147483647 s",
        ),
        ("--conntrack-max-per-core=-1", "--conntrack-max-per-core: invalid value -1: expected 0 or more"),
        ("--conntrack-min=-1", "--conntrack-min: invalid value -1: expected 0 or more"),
        (
            "--conntrack-udp-timeout-stream=-1s",
            "--conntrack-udp-timeout-stream: invalid value -1s: expected 0 or more",
        ),
        ("--oom-score-adj=-1001", "--oom-score-adj: invalid value -1001: expected an OOM score adjustment"),
        (
            "--healthz-bind-address=0.0.0.0:0",
            "--healthz-bind-address: invalid value \"0.0.0.0:0\": expected an address with a port",
        ),
        (
            "--metrics-bind-address=:10249",
            "--metrics-bind-address: invalid value \":10249\": expected an address with a port",
        ),
        (
            "--config-sync-period=0",
            "--config-sync-period: invalid value 0s: expected a period of more than 0s",
        ),
        ("--kube-api-burst=-1", "--kube-api-burst: invalid value -1: expected 0 or more"),
        ("--kube-api-qps=inf", "--kube-api-qps: invalid value inf: expected a rate"),
        (
            "--show-hidden-metrics-for-version=1",
            "--show-hidden-metrics-for-version: invalid value \"1\": expected a version",
        ),
        (
            "--log-flush-frequency=0",
            "--log-flush-frequency: invalid value 0s: expected a period of more than 0s",
        ),
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
        ("ipvs: {excludeCIDRs: [x]}", "ipvs.excludeCIDRs: invalid value \"x\": expected a CIDR"),
        ("nodePortAddresses: [10.0.0.1]", "nodePortAddresses: invalid value \"10.0.0.1\": expected a CIDR"),
        (
            "nodePortAddresses: [10.0.0.0/8, loopback]",
            "nodePortAddresses: invalid value \"loopback\": expected a CIDR",
        ),
        ("nodePortAddresses: [localhost, localhost]", "nodePortAddresses: \"localhost\" is given twice"),
        ("bindAddress: eth0", "bindAddress: invalid value \"eth0\": expected an IP address"),
        ("clusterCIDR: x", "clusterCIDR: invalid value \"x\": expected a CIDR"),
        ("iptables: {masqueradeBit: 32}", "iptables.masqueradeBit: invalid value 32: expected a bit"),
        ("detectLocalMode: x", "detectLocalMode: invalid value \"x\": expected"),
        (
            "detectLocalMode: BridgeInterface",
            "detectLocal.bridgeInterface: invalid value \"\": expected an interface",
        ),
        (
            "detectLocalMode: InterfaceNamePrefix",
            "detectLocal.interfaceNamePrefix: invalid value \"\": expected an interface",
        ),
        ("logging: {format: xml}", "logging.format: invalid value \"xml\": expected"),
        ("logging: {flushFrequency: -1}", "logging.flushFrequency: invalid value -1ns: expected 0 or more"),
        ("logging: {verbosity: 2147483648}", "logging.verbosity: invalid value 2147483648: expected 0 to"),
        (
            "logging: {vmodule: [{filePattern: \"\"}]}",
            "logging.vmodule: invalid value \"\": expected a file pattern",
        ),
        (
            "logging: {vmodule: [{filePattern: a=b}]}",
            "logging.vmodule: invalid value \"a=b\": expected a file pattern",
        ),
        (
            "logging: {vmodule: [{filePattern: a, verbosity: 3000000000}]}",
            "logging.vmodule: invalid value 3000000000: expected 0 to",
        ),
        ("clientConnection: {burst: -1}", "clientConnection.burst: invalid value -1: expected 0 or more"),
        ("configSyncPeriod: -1s", "configSyncPeriod: invalid value -1s: expected 0 or more"),
        (
            "clusterCIDR: 10.0.0.0/8,fd00::/8,fd01::/16",
            "clusterCIDR: \"10.0.0.0/8,fd00::/8,fd01::/16\" has more",
        ),
        ("conntrack: {maxPerCore: -1}", "conntrack.maxPerCore: invalid value -1: expected 0 or more"),
        ("conntrack: {min: -1}", "conntrack.min: invalid value -1: expected 0 or more"),
        (
            "conntrack: {tcpEstablishedTimeout: -1s}",
            "conntrack.tcpEstablishedTimeout: invalid value -1s: expected 0 or more",
        ),
        (
            "conntrack: {tcpCloseWaitTimeout: -1s}",
            "conntrack.tcpCloseWaitTimeout: invalid value -1s: expected 0 or more",
        ),
        ("conntrack: {udpTimeout: -1s}", "conntrack.udpTimeout: invalid value -1s: expected 0 or more"),
        (
            "conntrack: {udpStreamTimeout: -1s}",
            "conntrack.udpStreamTimeout: invalid value -1s: expected 0 or more",
        ),
        (
            "healthzBindAddress: localhost:1",
            "healthzBindAddress: invalid value \"localhost:1\": expected an address with a port",
        ),
        (
            "metricsBindAddress: 1.2.3.4:65536",
            "metricsBindAddress: invalid value \"1.2.3.4:65536\": expected an address",
        ),
        ("iptables: {masqueradeBit: -1}", "iptables.masqueradeBit: invalid value -1: expected a bit"),
        ("ipvs: {syncPeriod: -1s}", "ipvs.syncPeriod: invalid value -1s: expected 0 or more"),
        ("ipvs: {minSyncPeriod: -1s}", "ipvs.minSyncPeriod: invalid value -1s: expected 0 or more"),
        ("ipvs: {tcpTimeout: -1s}", "ipvs.tcpTimeout: invalid value -1s: expected 0 or more"),
        ("ipvs: {tcpFinTimeout: -1s}", "ipvs.tcpFinTimeout: invalid value -1s: expected 0 or more"),
        ("ipvs: {udpTimeout: -1s}", "ipvs.udpTimeout: invalid value -1s: expected 0 or more"),
        ("oomScoreAdj: 1001", "oomScoreAdj: invalid value 1001: expected an OOM score adjustment"),
        (
            "showHiddenMetricsForVersion: v1",
            "showHiddenMetricsForVersion: invalid value \"v1\": expected a version",
        ),
    ] {
        let refusal = refusal_of_file(fields);
        assert!(refusal.starts_with(expected), "{fields}: {refusal}");
    }
    let without_flag =
        with_file("hostnameOverride: \" \"", &["--hostname-override="]).unwrap_err().to_string();
    assert!(
        without_flag.ends_with("config.conf: hostnameOverride: invalid value \" \": expected a node's name"),
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
