//! What is converted does what it did before, and what cannot is named.

use std::{collections::BTreeSet, ffi::OsString, path::Path};

use serde_json::Value;

use super::{Converted, Error, Input, convert};
use crate::config::{
    Flags, GoDuration, KubeProxyConfiguration, Settings, Source, options::OPTIONS, tests::HEAD,
};

/// What is made of a file with these fields.
fn of_file(fields: &str) -> Converted {
    of(&format!("{HEAD}{fields}"))
}

fn of(text: &str) -> Converted {
    convert(&[Input { name: "in", text }], &[]).unwrap()
}

fn of_flags(flags: &[&str]) -> Converted {
    convert(&[], &flags.iter().map(OsString::from).collect::<Vec<_>>()).unwrap()
}

fn refusal(text: &str) -> String {
    convert(&[Input { name: "in", text }], &[]).unwrap_err().to_string()
}

/// The daemon's settings with this file.
fn settings(text: &str) -> Settings {
    let flags = Flags::parse(["--hostname-override=node".into()]).unwrap();
    Settings::with_text(&flags, Path::new("config.conf"), text).unwrap()
}

/// The fields that are in the file, but for those that are in each.
fn fields(converted: &Converted) -> String {
    let text = converted.to_yaml().unwrap();
    let always = ["apiVersion: ", "kind: ", "mode: ipvs", "clientConnection:", "  kubeconfig: "];
    let kept = text.lines().filter(|line| !always.iter().any(|field| line.starts_with(field)));
    kept.collect::<Vec<_>>().join("\n")
}

/// A container of kube-proxy in a Pod.
fn pod(container: &str) -> String {
    format!("kind: Pod\nspec:\n  containers: [{{name: kube-proxy, {container}}}]\n")
}

/// Every field that does something here, with another value than the default, and what it needs beside it.
const EFFECTIVE: [&str; 35] = [
    "bindAddress: 192.0.2.1",
    "bindAddressHardFail: true",
    "clusterCIDR: '10.244.0.0/16,fd00::/48'",
    "conntrack: {maxPerCore: 0}",
    "conntrack: {min: 0}",
    "conntrack: {tcpBeLiberal: true}",
    "conntrack: {tcpCloseWaitTimeout: 0s}",
    "conntrack: {tcpEstablishedTimeout: 2h}",
    "conntrack: {udpStreamTimeout: 5s}",
    "conntrack: {udpTimeout: 6s}",
    "detectLocalMode: NodeCIDR",
    "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: cbr0}",
    "detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: veth}",
    "featureGates: {AllowServiceExternalIPs: false}",
    "healthzBindAddress: '[::]:10256'",
    "iptables: {masqueradeAll: true}",
    "iptables: {masqueradeBit: 0}",
    "ipvs: {excludeCIDRs: [10.103.97.2/32, 'fd00:99::/112']}",
    "ipvs: {minSyncPeriod: 2s}",
    "ipvs: {scheduler: lc}",
    "ipvs: {strictARP: true}",
    "ipvs: {syncPeriod: 1m}",
    "ipvs: {tcpFinTimeout: 9s}",
    "ipvs: {tcpTimeout: 10s}",
    "ipvs: {udpTimeout: 11s}",
    "logging: {format: json}",
    "logging: {verbosity: 4}",
    "metricsBindAddress: 0.0.0.0:10249",
    "nodePortAddresses: [primary]",
    "nodePortAddresses: [10.0.0.0/8, 'fd00::/8']",
    "oomScoreAdj: 0",
    // What an address has as its default depends on the bind address.
    "bindAddress: '::'\nhealthzBindAddress: 0.0.0.0:10256\nmetricsBindAddress: 127.0.0.1:10249",
    "bindAddress: '::'\nhealthzBindAddress: '[::]:10256'",
    "bindAddress: 0.0.0.0",
    "healthzBindAddress: 0.0.0.0",
];

#[test]
fn every_field_that_does_something_here_does_the_same_afterwards() {
    for fields in EFFECTIVE {
        let before = format!("{HEAD}mode: ipvs\n{fields}\n");
        let converted = of(&before);
        let text = converted.to_yaml().unwrap();
        let (before, after) = (settings(&before), settings(&text));
        let kubeconfig = Some("/var/lib/kube-ipvs/kubeconfig.conf".into());
        assert_eq!(after.source, Source::Api { kubeconfig, master: None });
        assert_eq!(
            Settings { source: before.source.clone(), effective: before.effective.clone(), ..after },
            before,
            "{text}"
        );
        assert_eq!(converted.notes(), [""; 0], "{fields}");
    }
}

#[test]
fn every_field_either_does_something_or_is_named_with_a_reason() {
    let mut all = BTreeSet::new();
    leaves("", &KubeProxyConfiguration::default().tree(), &mut all);
    for fields in EFFECTIVE {
        let given: Value = serde_saphyr::from_str(fields).unwrap();
        let mut found = BTreeSet::new();
        leaves("", &given, &mut found);
        // The gates are a field whose own fields have any name.
        all.retain(|field| !found.iter().any(|found| found.starts_with(field.as_str())));
    }
    all.retain(|field| !OPTIONS.iter().any(|option| option.field == field && option.ignored.is_some()));
    // Of one node, of another pod, and what is always there.
    assert_eq!(
        all.iter().map(String::as_str).collect::<Vec<_>>(),
        ["apiVersion", "clientConnection.kubeconfig", "hostnameOverride", "kind", "mode"]
    );
}

/// The paths of a tree's fields that hold no fields.
fn leaves(path: &str, tree: &Value, found: &mut BTreeSet<String>) {
    match tree {
        Value::Object(fields) if !fields.is_empty() => {
            for (name, value) in fields {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                leaves(&path, value, found);
            }
        }
        _ => drop(found.insert(path.to_owned())),
    }
}

#[test]
fn what_differs_from_the_default_is_written_and_nothing_else() {
    assert_eq!(
        fields(&of_file("mode: ipvs\nipvs: {scheduler: rr, syncPeriod: 30s}\noomScoreAdj: -999\n")),
        ""
    );
    assert_eq!(
        fields(&of_file("mode: ipvs\nipvs: {scheduler: lc, syncPeriod: 30s}\n")),
        "ipvs:\n  scheduler: lc"
    );
    assert_eq!(fields(&of_flags(&["--proxy-mode=ipvs"])), "ipvs:\n  minSyncPeriod: 1s", "the flags' default");
}

#[test]
fn what_is_converted_once_more_stays_the_same() {
    let once =
        of_file("mode: nftables\nipvs: {scheduler: lc}\nconntrack: {min: 1}\nwinkernel: {enableDSR: true}\n");
    let twice = of(&once.to_yaml().unwrap());
    assert_eq!(twice, Converted { notes: Vec::new(), ..once });
}

#[test]
fn a_file_in_another_mode_keeps_what_that_mode_reads() {
    for (given, expected) in [
        ("", ""),
        ("iptables: {syncPeriod: 1m, minSyncPeriod: 10s}", "ipvs:\n  minSyncPeriod: 10s\n  syncPeriod: 1m0s"),
        ("iptables: {syncPeriod: 1m}\nipvs: {syncPeriod: 2m}", "ipvs:\n  syncPeriod: 2m0s"),
        (
            "iptables: {masqueradeAll: true, masqueradeBit: 1}",
            "iptables:\n  masqueradeAll: true\n  masqueradeBit: 1",
        ),
        ("nftables: {masqueradeAll: true, masqueradeBit: 1, syncPeriod: 1m}", ""),
    ] {
        for mode in ["", "mode: \"\"\n", "mode: iptables\n"] {
            assert_eq!(fields(&of_file(&format!("{mode}{given}\n"))), expected, "{mode}{given}");
        }
    }
    for (given, expected) in [
        ("", "nodePortAddresses:\n- primary"),
        ("nodePortAddresses: [10.0.0.0/8]", "nodePortAddresses:\n- 10.0.0.0/8"),
        ("nodePortAddresses: [primary, localhost]", "nodePortAddresses:\n- primary\n- localhost"),
        (
            "nodePortAddresses: [primary]\nnftables: {masqueradeAll: true, masqueradeBit: 1, minSyncPeriod: 5s}",
            "iptables:\n  masqueradeAll: true\n  masqueradeBit: 1\nipvs:\n  minSyncPeriod: 5s\nnodePortAddresses:\n- primary",
        ),
        (
            "nodePortAddresses: [primary]\niptables: {masqueradeAll: true, masqueradeBit: 1, syncPeriod: 1m}",
            "nodePortAddresses:\n- primary",
        ),
    ] {
        assert_eq!(fields(&of_file(&format!("mode: nftables\n{given}\n"))), expected, "{given}");
    }
    assert!(
        refusal(&format!("{HEAD}mode: kernelspace\n"))
            .starts_with("in: mode: mode \"kernelspace\" is not supported")
    );
}

#[test]
fn flags_in_another_mode_keep_what_that_mode_takes_of_them() {
    let flags = ["--masquerade-all", "--iptables-masquerade-bit=1", "--iptables-sync-period=1m"];
    let with = |mode| of_flags(&[&[mode][..], &flags].concat());
    assert_eq!(
        fields(&with("--proxy-mode=iptables")),
        "iptables:\n  masqueradeAll: true\n  masqueradeBit: 1\nipvs:\n  syncPeriod: 1m0s"
    );
    let nftables = with("--proxy-mode=nftables");
    assert_eq!(
        fields(&nftables),
        "iptables:\n  masqueradeAll: true\nipvs:\n  syncPeriod: 1m0s\nnodePortAddresses:\n- primary"
    );
    assert_eq!(
        nftables.notes(),
        [
            "--proxy-mode: nftables becomes ipvs: docs/migration.md#from-iptables-or-nftables-mode",
            "--nodeport-addresses: none means primary in nftables mode, and all in ipvs mode: primary is written",
            "--iptables-masquerade-bit: the value for nftables mode is written, 14",
            "--iptables-sync-period: 1m0s is written as ipvs.syncPeriod",
        ]
    );
    assert_eq!(
        of_flags(&["--proxy-mode=nftables", "--nodeport-addresses=primary,localhost"]).notes(),
        [
            "--proxy-mode: nftables becomes ipvs: docs/migration.md#from-iptables-or-nftables-mode",
            "--nodeport-addresses: loopback addresses (localhost) have no effect here: NodePorts are never served there",
        ]
    );
    let without_localhost = of_flags(&["--iptables-localhost-nodeports=false"]);
    assert_eq!(without_localhost.notes().len(), 1, "{without_localhost:?}");
}

#[test]
fn every_way_to_write_a_flag_is_read() {
    for container in [
        "command: [/usr/local/bin/kube-proxy, --ipvs-scheduler=lc, --proxy-mode=ipvs, -v2, --ipvs-strict-arp]",
        "command: [kube-proxy], args: [--ipvs_scheduler, lc, --proxy-mode, ipvs, -v, '2', --ipvs-strict-arp=true]",
        "args: [--ipvs-scheduler=lc, --proxy-mode=ipvs, --v=2, --ipvs-strict-arp]",
        "command: [/go-runner, --also-stdout=true, /usr/local/bin/kube-proxy], \
         args: [--ipvs-strict-arp, --ipvs-scheduler=lc, --proxy-mode=ipvs, -v=2]",
    ] {
        let converted = of(&pod(container));
        let expected =
            "ipvs:\n  minSyncPeriod: 1s\n  scheduler: lc\n  strictARP: true\nlogging:\n  verbosity: 2";
        assert_eq!(fields(&converted), expected, "{container}");
        assert_eq!(converted.notes(), [""; 0], "{container}");
    }
}

#[test]
fn flags_that_no_file_can_say_are_named() {
    let converted = of(&pod(
        "args: [--proxy-mode=ipvs, --master=https://192.0.2.1:6443, --hostname-override=n, --machine-id-file=/etc/id, \
         --cleanup, --drain-timeout=5m, --bind-address, $(POD_IP), --hostname-override=$(NODE_NAME), --udp-timeout, 250ms, \
         --healthz-port=0]",
    ));
    assert_eq!(
        converted.notes(),
        [
            "--master: set it as server in manifests/base/kubeconfig.conf",
            "--hostname-override: left out: our DaemonSet gives each node its own name; a service needs --hostname-override",
            "--machine-id-file: no effect here: this id is not used",
            "--cleanup: left out: it is not configuration",
            "--drain-timeout: the file has no field for it: keep it as a flag",
            "--bind-address=$(POD_IP): left out: the file is for all nodes, and the value differs from node to node",
            "--udp-timeout: no effect here: kube-proxy 1.37 has no such flag",
            "--healthz-bind-address: a file cannot disable this address: it is 0.0.0.0:10256",
        ]
    );
    assert_eq!(fields(&converted), "ipvs:\n  minSyncPeriod: 1s");
}

#[test]
fn beside_a_file_those_flags_count_that_kube_proxy_lets_count() {
    let file = format!("{HEAD}mode: ipvs\nipvs: {{scheduler: lc}}\nlogging: {{verbosity: 1}}\n");
    let daemon = pod("args: [--config=/var/lib/kube-proxy/config.conf, --v=4, --ipvs-scheduler=sh]");
    let inputs = [("daemon", &daemon), ("file", &file)].map(|(name, text)| Input { name, text });
    let converted = convert(&inputs, &["--cluster-cidr=10.1.0.0/16".into()]).unwrap();
    assert_eq!(fields(&converted), "ipvs:\n  scheduler: lc\nlogging:\n  verbosity: 4");
    assert_eq!(
        converted.notes(),
        ["--ipvs-scheduler: no effect beside file", "--cluster-cidr: no effect beside file"]
    );
}

#[test]
fn typed_flags_come_last() {
    let daemon = pod("args: [--proxy-mode=ipvs, --ipvs-scheduler=lc, --ipvs-exclude-cidrs=10.1.0.0/16]");
    let typed = ["--ipvs-scheduler=sh", "--ipvs-exclude-cidrs=10.2.0.0/16"].map(OsString::from);
    let converted = convert(&[Input { name: "daemon", text: &daemon }], &typed).unwrap();
    assert_eq!(
        fields(&converted),
        "ipvs:\n  excludeCIDRs:\n  - 10.1.0.0/16\n  - 10.2.0.0/16\n  minSyncPeriod: 1s\n  scheduler: sh"
    );
}

#[test]
fn pods_of_several_nodes_are_one_command_line_and_others_are_not() {
    let item = |args: &str| {
        format!("- {{kind: Pod, spec: {{containers: [{{name: kube-proxy, args: [{args}]}}]}}}}\n")
    };
    let list = |items: &[String]| format!("kind: List\nitems:\n{}", items.concat());
    let of_node = |node: &str| item(&format!("--proxy-mode=ipvs, --hostname-override={node}"));
    let nodes = of(&list(&[of_node("one"), of_node("two")]));
    assert_eq!(nodes.notes().len(), 1, "{nodes:?}");
    assert_eq!(
        refusal(&list(&[of_node("one"), item("--proxy-mode=iptables")])),
        "in: contains a command line of kube-proxy, and so does in: give one of them"
    );
    let file = format!("{HEAD}mode: ipvs\n");
    let inputs = ["one", "two"].map(|name| Input { name, text: &file });
    assert_eq!(
        convert(&inputs, &[]).unwrap_err().to_string(),
        "two: contains a configuration file, and so does one: give one of them"
    );
}

#[test]
fn the_file_that_a_command_line_names_is_asked_for() {
    let mounted = "args: [--config=/var/lib/kube-proxy/config.conf], volumeMounts: [{name: c, mountPath: /var/lib/kube-proxy}]";
    let volumes = "  volumes: [{name: c, configMap: {name: kube-proxy-config-0a1b}}]\n";
    assert_eq!(
        refusal(&format!("{}{volumes}", pod(mounted))),
        "in: the configuration is in --config=/var/lib/kube-proxy/config.conf: give that file too, or the ConfigMap \
         kube-proxy-config-0a1b that contains it"
    );
    assert!(
        refusal(&pod("args: [--config=/etc/kube-proxy.yaml]")).ends_with("or the ConfigMap that contains it")
    );
    let typed = convert(&[], &["--config=/config.conf".into()]).unwrap_err().to_string();
    assert!(typed.starts_with("the command line: the configuration is in --config=/config.conf"), "{typed}");
}

#[test]
fn what_is_not_read_is_refused_with_one_line() {
    for (text, expected) in [
        ("", "in: contains nothing of kube-proxy's configuration: "),
        ("# nothing\n---\n", "in: contains nothing of kube-proxy's configuration: "),
        ("hello", "in: contains nothing of kube-proxy's configuration: "),
        ("token: secret\nserver: https://192.0.2.1", "in: contains nothing of kube-proxy's configuration: "),
        ("kind: Service\n", "in: contains nothing of kube-proxy's configuration: "),
        ("kind: ConfigMap\ndata: {Corefile: x}\n", "in: contains nothing of kube-proxy's configuration: "),
        ("kind: List\nitems: []\n", "in: contains nothing of kube-proxy's configuration: "),
        (
            "kind: Pod\nspec: {containers: [{name: web, image: kube-proxy}]}\n",
            "in: contains nothing of kube-proxy's configuration: ",
        ),
        ("kind: [\n", "in:1:7: "),
        ("a: 1\n---\nkind: [\n", "in:3:7: "),
        ("kind: Pod\nspec: {containers: 1}\n", "in: Pod"),
        (
            "kind: KubeProxyConfiguration\n",
            "in: apiVersion \"\" with kind \"KubeProxyConfiguration\" is not supported",
        ),
    ] {
        let refusal = refusal(text);
        assert!(refusal.starts_with(expected) && refusal.lines().count() == 1, "{text}: {refusal}");
    }
    let script = refusal(&pod("command: [sh, -c, 'exec kube-proxy --v=2 2>&1 | tee /var/log/kube-proxy']"));
    assert_eq!(script, "in: the container runs \"sh\": give the flags that kube-proxy gets after --");
    let redirected = refusal(&pod("args: [--proxy-mode=ipvs, 1>>/var/log/kube-proxy.log]"));
    assert_eq!(redirected, "in: invalid argument \"1>>/var/log/kube-proxy.log\": expected a flag");
    let malformed = "kind: ConfigMap\ndata: {config.conf: \"kind: KubeProxyConfiguration\\nipvs: [\\n\"}\n";
    assert!(refusal(malformed).starts_with("in: config.conf:2:7: "), "{}", refusal(malformed));
}

#[test]
fn a_value_that_cannot_be_is_refused_by_its_place_in_the_input() {
    let config_map = format!(
        "kind: ConfigMap\ndata:\n  config.conf: |\n    {}ipvs: {{scheduler: RR}}\n",
        HEAD.replace('\n', "\n    ")
    );
    let refused = refusal(&config_map);
    assert!(refused.starts_with("in: config.conf: ipvs.scheduler: \"RR\" cannot be"), "{refused}");
    let flag = convert(&[], &["--cluster-cidr=x".into()]).unwrap_err();
    assert!(matches!(flag, Error::Configuration(ref error) if error.is_usage()), "{flag}");
    let duration = refusal(&pod("args: [--ipvs-sync-period=30]"));
    assert!(duration.starts_with("in: invalid value '30' for '--ipvs-sync-period"), "{duration}");
}

#[test]
fn a_distribution_s_own_pod_ranges_are_written_or_asked_for() {
    let asked =
        |converted: &Converted| converted.notes().iter().any(|note| note.starts_with("clusterCIDR: add"));
    let silent = of("disable-kube-proxy: true\n");
    assert!(asked(&silent), "{silent:?}");
    let typed = convert(
        &[Input { name: "in", text: "disable-kube-proxy: true\n" }],
        &["--cluster-cidr=10.42.0.0/16".into()],
    );
    assert!(!asked(&typed.unwrap()));
    let both = of("cluster-cidr: [10.42.0.0/16, 'fd00:42::/56']\nkube-proxy-arg+: proxy-mode+=ipvs\n");
    assert!(
        !asked(&both) && fields(&both).starts_with("clusterCIDR: 10.42.0.0/16,fd00:42::/56\n"),
        "{both:?}"
    );
    let own = of("cluster-cidr: 10.42.0.0/16\nkube-proxy-arg: ['--cluster-cidr=10.9.0.0/16']\n");
    assert!(fields(&own).starts_with("clusterCIDR: 10.9.0.0/16\n"), "{own:?}");
    assert!(asked(&of("version: v1alpha1\nmachine: {}\n")));
    assert!(!asked(&of_flags(&[])), "as it was");
}

#[test]
fn periods_of_zero_are_not_the_flags_default() {
    let zero = of_flags(&["--proxy-mode=ipvs", "--ipvs-min-sync-period=0"]);
    assert_eq!(fields(&zero), "");
    assert_eq!(settings(&zero.to_yaml().unwrap()).effective.ipvs.min_sync_period, GoDuration::default());
}
