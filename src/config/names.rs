//! What an option is called in the file and on the command line.

use serde_json::Value;

/// Fields that a flag sets if there is no file.
#[rustfmt::skip]
const IN_PLACE_OF_A_FILE: [(&str, &str); 39] = [
    ("bindAddress", "--bind-address"),
    ("bindAddressHardFail", "--bind-address-hard-fail"),
    ("clientConnection.burst", "--kube-api-burst"),
    ("clientConnection.contentType", "--kube-api-content-type"),
    ("clientConnection.kubeconfig", "--kubeconfig"),
    ("clientConnection.qps", "--kube-api-qps"),
    ("clusterCIDR", "--cluster-cidr"),
    ("configSyncPeriod", "--config-sync-period"),
    ("conntrack.maxPerCore", "--conntrack-max-per-core"),
    ("conntrack.min", "--conntrack-min"),
    ("conntrack.tcpBeLiberal", "--conntrack-tcp-be-liberal"),
    ("conntrack.tcpCloseWaitTimeout", "--conntrack-tcp-timeout-close-wait"),
    ("conntrack.tcpEstablishedTimeout", "--conntrack-tcp-timeout-established"),
    ("conntrack.udpStreamTimeout", "--conntrack-udp-timeout-stream"),
    ("conntrack.udpTimeout", "--conntrack-udp-timeout"),
    ("detectLocal.bridgeInterface", "--pod-bridge-interface"),
    ("detectLocal.interfaceNamePrefix", "--pod-interface-name-prefix"),
    ("detectLocalMode", "--detect-local-mode"),
    ("enableProfiling", "--profiling"),
    ("featureGates", "--feature-gates"),
    ("healthzBindAddress", "--healthz-bind-address"),
    ("iptables.localhostNodePorts", "--iptables-localhost-nodeports"),
    ("iptables.masqueradeAll", "--masquerade-all"),
    ("iptables.masqueradeBit", "--iptables-masquerade-bit"),
    ("iptables.minSyncPeriod", "--iptables-min-sync-period"),
    ("iptables.syncPeriod", "--iptables-sync-period"),
    ("ipvs.excludeCIDRs", "--ipvs-exclude-cidrs"),
    ("ipvs.minSyncPeriod", "--ipvs-min-sync-period"),
    ("ipvs.scheduler", "--ipvs-scheduler"),
    ("ipvs.strictARP", "--ipvs-strict-arp"),
    ("ipvs.syncPeriod", "--ipvs-sync-period"),
    ("ipvs.tcpFinTimeout", "--ipvs-tcpfin-timeout"),
    ("ipvs.tcpTimeout", "--ipvs-tcp-timeout"),
    ("ipvs.udpTimeout", "--ipvs-udp-timeout"),
    ("metricsBindAddress", "--metrics-bind-address"),
    ("mode", "--proxy-mode"),
    ("nodePortAddresses", "--nodeport-addresses"),
    ("oomScoreAdj", "--oom-score-adj"),
    ("showHiddenMetricsForVersion", "--show-hidden-metrics-for-version"),
];

/// Fields that a flag sets even if the file does.
#[rustfmt::skip]
const BEFORE_A_FILE: [(&str, &str); 9] = [
    ("hostnameOverride", "--hostname-override"),
    ("logging.flushFrequency", "--log-flush-frequency"),
    ("logging.format", "--logging-format"),
    ("logging.options.json.infoBufferSize", "--log-json-info-buffer-size"),
    ("logging.options.json.splitStream", "--log-json-split-stream"),
    ("logging.options.text.infoBufferSize", "--log-text-info-buffer-size"),
    ("logging.options.text.splitStream", "--log-text-split-stream"),
    ("logging.verbosity", "--v"),
    ("logging.vmodule", "--vmodule"),
];

/// Every field that a flag sets, with that flag.
pub(super) fn all() -> impl Iterator<Item = (&'static str, &'static str)> {
    IN_PLACE_OF_A_FILE.into_iter().chain(BEFORE_A_FILE)
}

/// The flag that sets a field, if there is one.
pub(super) fn flag(field: &str) -> Option<&'static str> {
    all().find(|(name, _)| *name == field).map(|(_, flag)| flag)
}

/// Whether a flag sets a field.
pub(super) fn sets_a_field(flag: &str) -> bool {
    all().any(|(_, name)| name == flag)
}

/// The flags that would set something else than `usual` if there were no file.
pub(super) fn overruled_by_a_file(flags: &Value, usual: &Value) -> Vec<&'static str> {
    let differs = |(field, _): &&(&str, &str)| value(flags, field) != value(usual, field);
    IN_PLACE_OF_A_FILE.iter().filter(differs).map(|(_, flag)| *flag).collect()
}

/// The value of a field of a configuration.
fn value<'a>(configuration: &'a Value, field: &str) -> Option<&'a Value> {
    field.split('.').try_fold(configuration, |value, name| value.get(name))
}
