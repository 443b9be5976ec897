//! Configuration files, good and bad, and what is written as one.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{complaint, file, kube_ipvs};

#[test]
fn a_malformed_configuration_file_is_named_with_line_and_column() {
    let (_directory, path) =
        file("config.conf", "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nipvs: {\n  - x\n");
    let complaint = complaint(64, &["--config", path.to_str().unwrap()]);
    assert!(complaint.starts_with(&format!("kube-ipvs: {}:3:", path.display())), "{complaint}");
}

#[test]
fn a_missing_configuration_file_is_named() {
    assert_eq!(
        complaint(64, &["--config=/nonexistent/config.conf"]),
        "kube-ipvs: /nonexistent/config.conf: the configuration file cannot be read: \
         No such file or directory (os error 2)"
    );
}

#[test]
fn a_bad_value_in_the_configuration_file_is_named_with_its_field() {
    let (_directory, path) =
        file("config.conf", &KUBEADM_CONFIG.replace("scheduler: \"\"", "scheduler: ROUND"));
    let complaint = complaint(64, &["--config", path.to_str().unwrap()]);
    assert!(
        complaint.starts_with(&format!("kube-ipvs: {}: ipvs.scheduler: \"ROUND\"", path.display())),
        "{complaint}"
    );
}

/// Without the rights for more this is all, and it is said all the same.
#[test]
fn preflight_names_what_keeps_a_daemon_from_starting_and_takes_only_flags_of_one() {
    let (path, said) = preflight("mode: userspace");
    let problem =
        format!("problem  configuration: {}: mode: mode \"userspace\" is not supported", path.display());
    assert!(said.starts_with(&problem), "{said}");
    assert!(said.ends_with("; nothing was changed\n"), "{said}");

    for (flag, complained) in
        [("--bogus", "unexpected argument '--bogus' found"), ("--cleanup", "only flags of a running daemon")]
    {
        let complaint = complaint(64, &["preflight", "--", flag]);
        assert!(complaint.contains(complained), "{complaint}");
    }
}

#[test]
fn preflight_warns_of_another_mode_of_kube_proxy_and_reports_for_ours() {
    for mode in ["iptables", "nftables"] {
        let (path, said) = preflight(&format!("mode: {mode}"));
        let warning =
            format!("warning  configuration: {}: mode: mode \"{mode}\" is not supported", path.display());
        assert!(said.starts_with(&warning), "{said}");
        let first = said.lines().next().unwrap();
        assert!(first.contains("; this report is for mode ipvs; remedy: set mode: ipvs"), "{said}");
    }
    let (_, said) = preflight("mode: ipvs");
    assert!(!said.contains("configuration: "), "{said}");
}

/// What preflight says of kubeadm's file with this mode. It fails, since no API server runs here.
fn preflight(mode: &str) -> (PathBuf, String) {
    let (_directory, path) = file("config.conf", &KUBEADM_CONFIG.replace("mode: \"\"", mode));
    let output = kube_ipvs(&["preflight", "--", "--config", path.to_str().unwrap()]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    (path, said)
}

/// The command line that kubeadm writes into the DaemonSet, with the file that it writes into the
/// ConfigMap: the program accepts both as they are, and stops where the kubeconfig of the file isn't.
#[test]
fn kubeadm_s_command_line_and_configuration_are_taken_as_they_are() {
    let (_directory, path) = file("config.conf", KUBEADM_CONFIG);
    let output = kube_ipvs(&[&format!("--config={}", path.display()), "--hostname-override=node-1"]);
    assert_eq!(
        String::from_utf8(output.stderr).unwrap(),
        "kube-ipvs: kubeconfig /var/lib/kube-proxy/kubeconfig.conf: No such file or directory (os error 2)\n",
        "not one warning"
    );
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn an_unknown_field_is_a_warning_and_what_has_no_effect_is_another() {
    let content = KUBEADM_CONFIG.replace("portRange: \"\"", "portRange: 1-2\nmodus: ipvs");
    let (_directory, path) = file("config.conf", &content);
    let output = kube_ipvs(&["--config", path.to_str().unwrap(), "--logging-format=json"]);
    let said = String::from_utf8(output.stderr).unwrap();
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines.len(), 3, "{said}");
    assert!(lines[0].contains("unknown field modus is ignored") && lines[0].starts_with('{'), "{said}");
    assert!(lines[1].contains("accepted without effect: portRange"), "{said}");
    assert!(lines[2].starts_with("kube-ipvs: kubeconfig "), "{said}");
}

/// Kubermatic's addon writes these fields of former versions of kube-proxy.
#[test]
fn fields_of_former_versions_are_named_and_what_is_beside_them_counts() {
    let content = KUBEADM_CONFIG.replace("  maxPerCore: null\n  min: null\n", "  max: null\n  min: 524288\n");
    let content = format!("{content}resourceContainer: /kube-proxy\nudpIdleTimeout: 250ms\n");
    let (directory, path) = file("config.conf", &content);
    let written = directory.path().join("written");
    let output =
        kube_ipvs(&["--config", path.to_str().unwrap(), "--write-config-to", written.to_str().unwrap()]);
    assert!(output.status.success());
    let said = String::from_utf8(output.stderr).unwrap();
    for field in ["conntrack.max", "resourceContainer", "udpIdleTimeout"] {
        assert_eq!(said.matches(&format!("unknown field {field} is ignored")).count(), 1, "{field}: {said}");
    }
    assert!(fs::read_to_string(written).unwrap().contains("  min: 524288\n"));
}

/// Nothing is removed here: the last argument of each cannot be.
#[test]
fn a_cleanup_spares_what_file_and_flag_say_and_takes_the_file_of_any_mode() {
    let head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: iptables\n";
    let (_directory, misspelt) =
        file("config.conf", &format!("{head}ipvs: {{excludeCIDR: [10.99.0.0/16]}}\n"));
    let (_directory, bad) = file("bad.conf", &format!("{head}ipvs: {{excludeCIDRs: [10.99.0.0/33]}}\n"));
    let (_directory, malformed) = file("malformed.conf", &format!("{head}ipvs: [\n"));
    let [misspelt, bad, malformed] = [&misspelt, &bad, &malformed].map(|path| path.to_str().unwrap());
    for command in ["cleanup", "--cleanup"] {
        assert_eq!(
            complaint(1, &[command, "--config", misspelt, "--control-socket=/dev/null/control.sock"]),
            format!("kube-ipvs: warning: {misspelt}: unknown field ipvs.excludeCIDR is ignored")
        );
        let not_a_range =
            complaint(64, &[command, "--config", misspelt, "--ipvs-exclude-cidrs=10.98.0.0/33"]);
        assert!(
            not_a_range.starts_with("kube-ipvs: --ipvs-exclude-cidrs: invalid value \"10.98.0.0/33\""),
            "{not_a_range}"
        );
        let not_a_range = complaint(64, &[command, "--config", bad]);
        assert!(not_a_range.starts_with(&format!("kube-ipvs: {bad}: ipvs.excludeCIDRs: ")), "{not_a_range}");
        let place = complaint(64, &[command, "--config", malformed]);
        assert!(place.starts_with(&format!("kube-ipvs: {malformed}:")), "{place}");
    }
}

#[test]
fn a_configuration_is_written_and_reads_back_without_a_kernel_or_an_api_server() {
    let (directory, kubeadm) = file("config.conf", KUBEADM_CONFIG);
    let [first, second] = ["first", "second"].map(|name| directory.path().join(name));
    let write = |from: &Path, to: &Path| {
        let output = kube_ipvs(&[
            &format!("--config={}", from.display()),
            &format!("--write-config-to={}", to.display()),
        ]);
        assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
        assert!(output.status.success() && output.stdout.is_empty());
        fs::read_to_string(to).unwrap()
    };
    let written = write(&kubeadm, &first);
    for line in [
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1",
        "clusterCIDR: 10.244.0.0/16",
        "  kubeconfig: /var/lib/kube-proxy/kubeconfig.conf",
        "  tcpEstablishedTimeout: 24h0m0s",
        "  maxPerCore: 32768",
        "healthzBindAddress: 0.0.0.0:10256",
        "  masqueradeBit: 14",
        "mode: ipvs",
        "oomScoreAdj: -999",
    ] {
        assert!(written.lines().any(|written| written == line), "no line {line:?} in:\n{written}");
    }
    assert_eq!(write(&first, &second), written);
}

#[test]
fn a_place_that_cannot_be_written_to_is_named() {
    assert_eq!(
        complaint(1, &["--write-config-to=/nonexistent/config.conf"]),
        "kube-ipvs: /nonexistent/config.conf: the configuration file cannot be written: \
         No such file or directory (os error 2)"
    );
}

/// kubespray, kubeadm on older clusters and others switch gates on that mean nothing here.
#[test]
fn a_file_with_the_gate_for_the_ipvs_mode_is_taken() {
    let (_directory, path) =
        file("config.conf", &format!("{KUBEADM_CONFIG}featureGates: {{KubeProxyIPVS: true}}\n"));
    let output = kube_ipvs(&["--config", path.to_str().unwrap(), "--logging-format=json"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("accepted without effect: featureGates.KubeProxyIPVS"), "{said}");
    assert!(said.lines().last().unwrap().starts_with("kube-ipvs: kubeconfig "), "{said}");
}

/// What kubeadm 1.33 writes into the ConfigMap kube-system/kube-proxy for a pod network of 10.244.0.0/16.
const KUBEADM_CONFIG: &str = r#"apiVersion: kubeproxy.config.k8s.io/v1alpha1
bindAddress: 0.0.0.0
bindAddressHardFail: false
clientConnection:
  acceptContentTypes: ""
  burst: 0
  contentType: ""
  kubeconfig: /var/lib/kube-proxy/kubeconfig.conf
  qps: 0
clusterCIDR: 10.244.0.0/16
configSyncPeriod: 0s
conntrack:
  maxPerCore: null
  min: null
  tcpBeLiberal: false
  tcpCloseWaitTimeout: null
  tcpEstablishedTimeout: null
  udpStreamTimeout: 0s
  udpTimeout: 0s
detectLocal:
  bridgeInterface: ""
  interfaceNamePrefix: ""
detectLocalMode: ""
enableProfiling: false
healthzBindAddress: ""
hostnameOverride: ""
iptables:
  localhostNodePorts: null
  masqueradeAll: false
  masqueradeBit: null
  minSyncPeriod: 0s
  syncPeriod: 0s
ipvs:
  excludeCIDRs: null
  minSyncPeriod: 0s
  scheduler: ""
  strictARP: false
  syncPeriod: 0s
  tcpFinTimeout: 0s
  tcpTimeout: 0s
  udpTimeout: 0s
kind: KubeProxyConfiguration
logging:
  flushFrequency: 0
  options:
    json:
      infoBufferSize: "0"
    text:
      infoBufferSize: "0"
  verbosity: 0
metricsBindAddress: ""
mode: ""
nftables:
  masqueradeAll: false
  masqueradeBit: null
  minSyncPeriod: 0s
  syncPeriod: 0s
nodePortAddresses: null
oomScoreAdj: null
portRange: ""
showHiddenMetricsForVersion: ""
winkernel:
  enableDSR: false
  forwardHealthCheckVip: false
  networkName: ""
  rootHnsEndpointName: ""
  sourceVip: ""
windowsRunAsService: false
"#;
