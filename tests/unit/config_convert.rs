//! `kube-ipvs config convert`: what operators of each distribution have, and what they get.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Output, Stdio},
};

use serde_json::Value;

use crate::{kube_ipvs, support::documents::root};

/// Runs the command in the directory of the inputs.
fn convert(arguments: &[&str], standard_input: &str) -> Output {
    let mut command = kube_ipvs();
    command.args(["config", "convert"]).args(arguments).current_dir(distributions());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(standard_input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn converted(arguments: &[&str], standard_input: &str) -> String {
    let output = convert(arguments, standard_input);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// What it says, having failed with this exit code and printed nothing.
fn complaint(code: i32, arguments: &[&str]) -> String {
    let output = convert(arguments, "");
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {output:?}");
    assert_eq!(output.stdout, b"", "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

fn distributions() -> PathBuf {
    root().join("tests/distributions")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

#[test]
fn each_distribution_s_configuration_becomes_the_one_beside_it() {
    let files = fs::read_dir(distributions()).unwrap().map(|file| file.unwrap().path());
    let inputs: Vec<_> =
        files.filter(|path| path.extension().is_some_and(|it| it == "yaml" || it == "json")).collect();
    assert!(inputs.len() > 8, "{inputs:?}");
    for input in inputs {
        let output = convert(&[input.file_name().unwrap().to_str().unwrap()], "");
        let [config, notes] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        let beside = ["conf", "notes"].map(|extension| read(&input.with_extension(extension)));
        assert_eq!([config, notes], beside, "{}", input.display());
    }
}

#[test]
fn what_the_manifests_come_with_is_made_of_each_distribution_s_default() {
    let shipped = |directory: &str| {
        let file = read(&root().join("manifests").join(directory).join("config.conf"));
        file.split_inclusive('\n').filter(|line| !line.starts_with('#')).collect::<String>()
    };
    let of_k3s = converted(&["k3s-default.yaml", "--", "--cluster-cidr=10.42.0.0/16"], "");
    assert_eq!(shipped("k3s"), of_k3s);
    assert_eq!(shipped("rke2"), of_k3s);
    assert_eq!(shipped("talos"), read(&distributions().join("talos.conf")));
    assert_eq!(shipped("kubespray"), read(&distributions().join("kubespray.conf")));
    // What another cluster's operator has edited is where the converter says it is.
    let base: Value = serde_saphyr::from_str(&shipped("base")).unwrap();
    let other: Value = serde_saphyr::from_str(&of_k3s).unwrap();
    assert_eq!(base["clientConnection"], other["clientConnection"]);
}

#[test]
fn standard_input_is_read_without_a_file_and_in_place_of_one() {
    let file = read(&distributions().join("kubermatic.yaml"));
    let expected = read(&distributions().join("kubermatic.conf"));
    assert_eq!(converted(&[], &file), expected);
    assert_eq!(converted(&["-"], &file), expected);
    let said = String::from_utf8(convert(&[], &file).stderr).unwrap();
    assert!(
        said.contains("kube-ipvs: standard input: config.conf: unknown field conntrack.max is ignored\n"),
        "{said}"
    );
}

#[test]
fn flags_alone_are_a_configuration_and_several_inputs_are_one() {
    let flags = ["--", "--proxy-mode=ipvs", "--ipvs-min-sync-period=0", "--ipvs-strict-arp"];
    assert!(converted(&flags, "").contains("\nipvs:\n  strictARP: true\n"));
    let file = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: ipvs\nipvs: {scheduler: lc}\n";
    let daemon = "kind: Pod\nspec: {containers: [{name: kube-proxy, args: [--config=/c, --v=3]}]}\n";
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("daemon.yaml");
    fs::write(&path, daemon).unwrap();
    let both = converted(&["-", path.to_str().unwrap()], file);
    assert!(both.contains("  scheduler: lc\n") && both.contains("  verbosity: 3\n"), "{both}");
}

#[test]
fn the_daemon_takes_what_is_printed_without_a_warning() {
    let directory = tempfile::tempdir().unwrap();
    let [file, written] = ["config.conf", "written"].map(|name| directory.path().join(name));
    fs::write(&file, read(&distributions().join("changed-by-hand.conf"))).unwrap();
    let mut daemon = kube_ipvs();
    let output = daemon.arg("--config").arg(&file).arg("--write-config-to").arg(&written).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    assert!(read(&written).contains("  scheduler: lc\n"));
}

#[test]
fn json_has_the_configuration_and_the_notes() {
    let printed: Value = serde_json::from_str(&converted(&["-o", "json", "kubeadm.yaml"], "")).unwrap();
    assert_eq!(printed["config"]["clusterCIDR"], "10.244.0.0/16");
    let notes: Vec<_> =
        printed["notes"].as_array().unwrap().iter().map(|note| note.as_str().unwrap()).collect();
    let said = read(&distributions().join("kubeadm.notes"));
    assert_eq!(notes, said.lines().map(|line| line.trim_start_matches("kube-ipvs: ")).collect::<Vec<_>>());
}

#[test]
fn an_input_that_cannot_be_used_is_refused_with_one_line() {
    for (code, arguments, expected) in [
        (1, &["missing.yaml"][..], "kube-ipvs: cannot read missing.yaml: No such file or directory"),
        (
            1,
            &["kubeadm.conf", "kubermatic.yaml"],
            "kube-ipvs: kubermatic.yaml: config.conf: contains a configuration file, and",
        ),
        (1, &["kubeadm.notes"], "kube-ipvs: kubeadm.notes:1:27: mapping values are not allowed"),
        (1, &[], "kube-ipvs: standard input: contains nothing of kube-proxy's configuration"),
        (
            1,
            &["--", "--config=/etc/kube-proxy.yaml"],
            "kube-ipvs: the command line: the configuration is in --config=",
        ),
        (
            1,
            &["k3s.yaml", "--", "--cluster-cidr=x"],
            "kube-ipvs: --cluster-cidr: invalid value \"x\": expected a CIDR",
        ),
        (64, &["--", "--cluster-cidr=x"], "kube-ipvs: --cluster-cidr: invalid value \"x\": expected a CIDR"),
    ] {
        let said = complaint(code, arguments);
        assert!(said.starts_with(expected) && said.lines().count() == 1, "{arguments:?}: {said}");
    }
    let usage = complaint(64, &["k3s.yaml", "--", "--cluster-cdir=10.42.0.0/16"]);
    assert!(usage.starts_with("kube-ipvs: unexpected argument '--cluster-cdir' found\n"), "{usage}");
}
