use std::slice;

use clap::Parser as _;
use serde_json::{Value, json};

use super::{
    super::{
        Command, CommandLine,
        tests::canned::{Canned, answers},
    },
    *,
};

fn finding(verdict: &str, subject: &str, what: &str) -> Value {
    json!({ "verdict": verdict, "subject": subject, "what": what, "remedy": null })
}

/// The answer of a node with these findings, the worst first.
fn report(findings: &[Value]) -> Canned {
    Canned::answer(0, &json!({ "node": "n", "verdict": findings[0]["verdict"], "findings": findings }))
}

#[test]
fn what_all_nodes_say_is_printed_once_and_what_some_say_by_their_nodes() {
    let kernel = |version: &str| finding("ok", "kernel", &format!("Linux {version}"));
    let proxy = finding("note", "proxy", "kube-proxy in iptables mode");
    let mut missing = finding("problem", "scheduler mh", "the kernel has no module ip_vs_mh");
    missing["remedy"] = json!("install it");
    let usual = || report(&[proxy.clone(), kernel("6.12.0")]);
    let answers = answers::<Report>(&[
        ("a", usual()),
        ("b", report(&[missing.clone(), proxy.clone(), kernel("6.1.0")])),
        ("c", usual()),
        ("d", report(&[missing, proxy.clone(), kernel("6.12.0")])),
        ("e", usual()),
    ]);
    let expected = "\
all 5 nodes:
  note     proxy: kube-proxy in iptables mode

b, d:
  problem  scheduler mh: the kernel has no module ip_vs_mh; remedy: install it

b:
  ok       kernel: Linux 6.1.0

a, c, d and 1 more:
  ok       kernel: Linux 6.12.0
";
    assert_eq!(text::text(&answers), expected);
}

#[test]
fn a_node_without_a_report_says_why_beneath_the_others() {
    let alike = finding("warning", "kernel", "Linux 3.10.0");
    let of_other_version = finding("catastrophe", "kernel", "Linux 3.10.0");
    let answers = answers::<Report>(&[
        ("a", report(slice::from_ref(&alike))),
        ("b", report(slice::from_ref(&alike))),
        ("c", Canned::TimesOut),
        ("d", report(&[of_other_version])),
    ]);
    let text = text::text(&answers);
    let (reports, silent) = text.split_once("NODE").unwrap();
    assert_eq!(reports, "2 nodes:\n  warning  kernel: Linux 3.10.0\n\n");
    assert!(silent.contains("\nc        no answer: timed out"), "{text}");
    assert!(silent.contains("\nd        no answer: cannot read its answer"), "{text}");
    assert!(silent.ends_with("\n2 nodes  above\n"), "{text}");
}

/// The Job and the permissions for this command line.
fn objects(arguments: &[&str]) -> (Value, Vec<Value>) {
    let command_line = [&["kubectl-ipvs", "preflight"], arguments].concat();
    let Command::Preflight(preflight) = CommandLine::try_parse_from(command_line).unwrap().command else {
        panic!("another command");
    };
    let objects = Objects {
        namespace: Kubectl(&preflight.nodes.cluster).namespace(),
        image: preflight.image().unwrap(),
        timeout: preflight.timeout,
        daemon_flags: &preflight.daemon_flags,
    };
    let permissions: Value = serde_json::from_str(&objects.permissions().unwrap()).unwrap();
    let permissions = permissions["items"].as_array().unwrap().clone();
    (serde_json::from_str(&objects.job("node-1").unwrap()).unwrap(), permissions)
}

#[test]
fn the_job_of_a_node_is_that_of_the_manifest_with_its_node_its_image_and_the_flags() {
    let (job, permissions) = objects(&["--image=r/kube-ipvs:1", "--proxy-namespace=proxies"]);
    let labels = json!({ "k8s-app": "kube-ipvs-preflight" });
    let metadata = json!({ "generateName": "preflight-", "namespace": "proxies", "labels": labels });
    assert_eq!(job["metadata"], metadata);
    assert_eq!([&job["spec"]["activeDeadlineSeconds"], &job["spec"]["ttlSecondsAfterFinished"]], [180, 3600]);
    let pod = &job["spec"]["template"]["spec"];
    assert_eq!((&pod["nodeName"], &pod["hostNetwork"]), (&json!("node-1"), &json!(true)));
    assert_eq!(pod["tolerations"], json!([{ "operator": "Exists" }]));
    let container = &pod["containers"][0];
    assert_eq!(container["image"], "r/kube-ipvs:1");
    let usual = ["preflight", "--output=json", "--", "--config=/var/lib/kube-proxy/config.conf"];
    assert_eq!(container["args"], json!([&usual[..], &["--hostname-override=node-1"]].concat()));

    assert_eq!(permissions.len(), 3);
    assert_eq!(permissions[0]["metadata"]["namespace"], "proxies");
    let subject =
        json!({ "kind": "ServiceAccount", "name": pod["serviceAccountName"], "namespace": "proxies" });
    assert_eq!(permissions[2]["subjects"], json!([subject]));
    let label = LABEL_AND_VALUE;
    for object in permissions.iter().chain([&job]) {
        assert_eq!(object["metadata"]["labels"][label.0], label.1, "{object}");
    }
}

/// The key and the value of the label by which everything is removed.
const LABEL_AND_VALUE: (&str, &str) = ("k8s-app", "kube-ipvs-preflight");

#[test]
fn flags_after_two_hyphens_replace_the_config_map() {
    let flags = ["--image=i", "--", "--cluster-cidr=10.42.0.0/16", "--eject=silent"];
    let (job, _) = objects(&flags);
    let arguments = &job["spec"]["template"]["spec"]["containers"][0]["args"];
    let expected = ["preflight", "--output=json", "--", flags[2], flags[3], "--hostname-override=node-1"];
    assert_eq!(arguments, &json!(expected));
    assert_eq!(format!("{}={}", LABEL_AND_VALUE.0, LABEL_AND_VALUE.1), objects::LABEL);
}

#[test]
fn the_image_is_by_default_that_of_the_manifests() {
    let expected = concat!("registry.example/kube-ipvs:", env!("CARGO_PKG_VERSION"));
    assert_eq!(objects::image_of_manifests().unwrap(), expected);
    assert!(expected.starts_with(objects::PLACEHOLDER));
}
