//! What the settings of the chart make of the manifests, monitoring included.

use serde_json::{Value, json};

use super::{Cluster, VALUES, chart, config_map, essence, helm, kustomize, read};
use crate::support::operator::Clients;

#[test]
#[ignore = "needs kube-apiserver, kubectl and helm: cargo xtask test --tier api"]
fn an_api_server_accepts_the_chart_with_every_setting() {
    let Some(cluster) = Cluster::new() else { return };
    let privileged = cluster.dry_run(&chart(&cluster.clients, &["hardened=false"]).unwrap());
    let pod = &privileged["DaemonSet/kube-ipvs"]["spec"]["template"]["spec"];
    assert_eq!(pod["initContainers"], Value::Null);
    assert_eq!(pod["containers"][0]["securityContext"]["privileged"], true);

    let settings = [
        "image.repository=mirror.example/kube-ipvs",
        "image.tag=1.2.3",
        "imagePullSecrets[0].name=pull",
        "server=https://10.0.0.1:6443",
        "config.clusterCIDR=10.1.0.0/16\\,fd00:1::/64",
        "config.ipvs.strictARP=true",
        "eject=silent\\,refusing",
        "weightsByDistance=node=100\\,zone=10\\,other=1",
        "extraArgs[0]=--vip-binding=route",
        "extraEnv[0].name=RUST_LOG",
        "extraEnv[0].value=debug",
        "extraVolumes[0].name=ca",
        "extraVolumes[0].hostPath.path=/etc/ssl",
        "extraVolumeMounts[0].name=ca",
        "extraVolumeMounts[0].mountPath=/etc/ssl",
        "nodeSelector.disk=ssd",
        "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].key=gpu",
        "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].operator=DoesNotExist",
        "priorityClassName=system-cluster-critical",
        "labels.team=network",
        "annotations.owner=network",
        "podLabels.mesh=none",
        "podAnnotations.scrape=yes",
        "serviceAccount.name=proxy",
        "serviceAccount.annotations.role=proxy",
        "updateStrategy.rollingUpdate.maxUnavailable=1",
        "resources.limits.memory=256Mi",
    ];
    let set = cluster.dry_run(&chart(&cluster.clients, &settings).unwrap());
    let pod = &set["DaemonSet/kube-ipvs"]["spec"]["template"]["spec"];
    for container in [&pod["initContainers"][0], &pod["containers"][0]] {
        let arguments: Vec<String> = serde_json::from_value(container["args"].clone()).unwrap();
        let flags = [
            "--eject=silent,refusing",
            "--weights-by-distance=node=100,zone=10,other=1",
            "--vip-binding=route",
        ];
        assert!(arguments.ends_with(&flags.map(str::to_owned)), "{arguments:?}");
        let command_line = ["kube-ipvs".to_owned()].into_iter().chain(arguments);
        kube_ipvs::cli::parse(command_line.map(Into::into)).unwrap();
        assert_eq!(container["image"], "mirror.example/kube-ipvs:1.2.3");
        assert_eq!(container["resources"]["limits"]["memory"], "256Mi");
    }
    assert_eq!(pod["imagePullSecrets"][0]["name"], "pull");
    assert_eq!(pod["nodeSelector"]["disk"], "ssd");
    assert_eq!(pod["containers"][0]["env"][1], json!({ "name": "RUST_LOG", "value": "debug" }));
    for named in [&pod["containers"][0]["volumeMounts"], &pod["volumes"]] {
        assert_eq!(named.as_array().unwrap().last().unwrap()["name"], "ca");
    }
    assert!(pod["affinity"]["nodeAffinity"].is_object());
    assert_eq!(pod["priorityClassName"], "system-cluster-critical");
    assert_eq!(pod["serviceAccountName"], "proxy");
    assert_eq!(set["ServiceAccount/proxy"]["metadata"]["annotations"]["role"], "proxy");
    assert_eq!(set["ClusterRoleBinding/kube-ipvs"]["subjects"][0]["name"], "proxy");
    assert!(set.values().all(|object| object["metadata"]["labels"]["team"] == "network"), "{set:?}");
    let daemon_set = &set["DaemonSet/kube-ipvs"];
    assert_eq!(daemon_set["metadata"]["annotations"]["owner"], "network");
    let metadata = &daemon_set["spec"]["template"]["metadata"];
    assert_eq!(metadata["labels"], json!({ "k8s-app": "kube-ipvs", "mesh": "none" }));
    assert_eq!(metadata["annotations"], json!({ "scrape": "yes" }));
    assert_eq!(set["DaemonSet/kube-ipvs"]["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"], 1);
    let (_, configuration) = essence((String::new(), set[&config_map(&set)].clone()));
    let file = &configuration["data"]["config.conf"];
    assert_eq!(file["clusterCIDR"], "10.1.0.0/16,fd00:1::/64");
    assert_eq!(file["ipvs"]["strictARP"], true);
    assert_eq!(file["ipvs"]["scheduler"], "rr");
    let server = &configuration["data"]["kubeconfig.conf"]["clusters"][0]["cluster"]["server"];
    assert_eq!(server, "https://10.0.0.1:6443");
}

#[test]
#[ignore = "needs kube-apiserver, kubectl and helm: cargo xtask test --tier api"]
fn an_image_digest_an_existing_service_account_and_updates_by_hand_are_accepted() {
    let Some(cluster) = Cluster::new() else { return };
    let digest = format!("sha256:{}", "0123456789abcdef".repeat(4));
    let image = format!("image.digest={digest}");
    let settings = [&image, "serviceAccount.create=false", "updateStrategy.type=OnDelete"];
    let set = cluster.dry_run(&chart(&cluster.clients, &settings).unwrap());
    let spec = &set["DaemonSet/kube-ipvs"]["spec"];
    let image = &spec["template"]["spec"]["containers"][0]["image"];
    assert_eq!(image, &format!("registry.example/kube-ipvs@{digest}"));
    assert_eq!(spec["updateStrategy"], json!({ "type": "OnDelete" }));
    assert!(!set.contains_key("ServiceAccount/kube-ipvs"));
}

#[test]
#[ignore = "needs helm: cargo xtask test --tier api"]
fn the_chart_says_what_must_be_set_and_refuses_what_it_does_not_know() {
    let Some(clients) = Clients::from_env_or_skip() else { return };
    helm(&clients, "lint", &VALUES).unwrap();
    let refused = |settings: &[&str]| chart(&clients, settings).unwrap_err().to_string();
    assert!(refused(&["image.repository="]).contains("image.repository: set it"));
    assert!(refused(&["server="]).contains("server: set it"));
    for (wrong, said) in [
        ("imagee.tag=1", "'imagee' not allowed"),
        ("maxUnavailable=1", "'maxUnavailable' not allowed"),
        ("image.digest=0123", "/image/digest"),
        ("config.mode=iptables", "/config/mode"),
        ("updateStrategy.type=Recreate", "/updateStrategy/type"),
        ("server=10.0.0.1", "/server"),
        ("eject=slow", "/eject"),
        ("weightsByDistance=node=100", "/weightsByDistance"),
    ] {
        let refused = refused(&[wrong]);
        assert!(refused.contains(said), "{wrong}: {refused}");
    }
}

#[test]
#[ignore = "needs helm: cargo xtask test --tier api"]
fn the_probes_ask_where_health_is_served() {
    let Some(clients) = Clients::from_env_or_skip() else { return };
    let asked = |address| {
        let set = format!("config.healthzBindAddress={address}");
        let objects = read(&chart(&clients, &[&set])?);
        let container = &objects["DaemonSet/kube-ipvs"]["spec"]["template"]["spec"]["containers"][0];
        let asked = ["livenessProbe", "readinessProbe"].map(|probe| {
            let get = &container[probe]["httpGet"];
            (get["host"].as_str().map(str::to_owned), get["port"].as_u64().unwrap())
        });
        assert_eq!(asked[0], asked[1]);
        Ok::<_, anyhow::Error>(asked[0].clone())
    };
    let at = |host: Option<&str>, port| (host.map(str::to_owned), port);
    assert_eq!(asked("").unwrap(), at(None, 10256));
    assert_eq!(asked("0.0.0.0:10300").unwrap(), at(None, 10300));
    assert_eq!(asked("[::]:10256").unwrap(), at(None, 10256));
    assert_eq!(asked("127.0.0.1:10256").unwrap(), at(Some("127.0.0.1"), 10256));
    assert_eq!(asked("[::1]:10256").unwrap(), at(Some("::1"), 10256));
    for without_port in ["127.0.0.1", "::1", "10256"] {
        let refused = asked(without_port).unwrap_err().to_string();
        assert!(refused.contains("config.healthzBindAddress: set an address with its port"), "{refused}");
    }
}

#[test]
#[ignore = "needs helm: cargo xtask test --tier api"]
fn a_pod_monitor_asks_for_metrics_that_prometheus_can_reach() {
    let Some(clients) = Clients::from_env_or_skip() else { return };
    let refused = chart(&clients, &["podMonitor.enabled=true"]).unwrap_err().to_string();
    assert!(refused.contains("set config.metricsBindAddress"), "{refused}");

    let chart = chart(&clients, &["podMonitor.enabled=true", "config.metricsBindAddress=0.0.0.0:10249"]);
    let objects = read(&chart.unwrap());
    let monitored = &objects["PodMonitor/kube-ipvs"]["spec"];
    let daemon_set = &objects["DaemonSet/kube-ipvs"]["spec"];
    assert_eq!(monitored["selector"], daemon_set["selector"]);
    let port = &daemon_set["template"]["spec"]["containers"][0]["ports"][0];
    assert_eq!(monitored["podMetricsEndpoints"][0]["port"], port["name"]);
    assert_eq!(port["containerPort"], 10249);
}

#[test]
#[ignore = "needs kubectl and helm: cargo xtask test --tier api"]
fn pod_monitor_names_each_daemon_by_its_node() {
    let Some(clients) = Clients::from_env_or_skip() else { return };
    let chart = chart(&clients, &["podMonitor.enabled=true", "config.metricsBindAddress=0.0.0.0:10249"]);
    // The kustomization finds the port itself, which has no name where the installer's DaemonSet is kept.
    let named = [read(&chart.unwrap()), read(&kustomize(&clients, "monitoring"))].map(|objects| {
        let endpoint = &objects["PodMonitor/kube-ipvs"]["spec"]["podMetricsEndpoints"][0];
        let mut relabelings = endpoint["relabelings"].as_array().unwrap().clone();
        relabelings.retain(|it| it["targetLabel"] == "instance" || it["targetLabel"] == "job");
        relabelings
    });
    assert_eq!(named[0].len(), 2);
    assert_eq!(named[0], named[1]);
}

#[test]
#[ignore = "needs helm: cargo xtask test --tier api"]
fn a_dashboard_needs_no_labels() {
    let Some(clients) = Clients::from_env_or_skip() else { return };
    let chart = chart(&clients, &["dashboard.enabled=true", "dashboard.labels=null"]).unwrap();
    let labels = &read(&chart)["ConfigMap/kube-ipvs-dashboard"]["metadata"]["labels"];
    assert!(
        labels["app.kubernetes.io/name"].is_string() && labels["grafana_dashboard"].is_null(),
        "{labels}"
    );
}

#[test]
#[ignore = "needs kube-apiserver, kubectl and helm: cargo xtask test --tier api"]
fn the_chart_has_the_alerts_and_the_dashboard_of_the_kustomization() {
    let Some(cluster) = Cluster::new() else { return };
    let kustomized = read(&kustomize(&cluster.clients, "monitoring"));
    let chart = chart(&cluster.clients, &["prometheusRule.enabled=true", "dashboard.enabled=true"]).unwrap();
    let chart = read(&chart);
    let rule = "PrometheusRule/kube-ipvs";
    assert_eq!(chart[rule]["spec"], kustomized[rule]["spec"]);
    let dashboard = "ConfigMap/kube-ipvs-dashboard";
    let stored = [&kustomized, &chart].map(|objects| {
        let manifest = objects[dashboard].to_string();
        cluster.dry_run(&manifest).remove(dashboard).unwrap()
    });
    for object in &stored {
        assert_eq!(object["metadata"]["labels"]["grafana_dashboard"], "1");
        let text = object["data"]["kube-ipvs.json"].as_str().unwrap();
        let shown: Value = serde_json::from_str(text).unwrap();
        assert_eq!(shown["uid"], "kube-ipvs");
    }
    assert_eq!(stored[0]["data"], stored[1]["data"]);
}
