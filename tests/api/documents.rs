//! The commands of README.md and docs for a cluster, with the real kubectl and Helm, at a real kube-apiserver.

use std::{path::Path, process::Command as Process};

use anyhow::{Result, ensure};
use testkit::{control_plane::ControlPlane, daemon::eventually};

use crate::support::{
    documents::{self, Command},
    operator::Clients,
};

/// What an API server without nodes can do. `debug`, `exec`, `logs` and `rollout` want pods that run.
const WITHOUT_NODES: [&str; 5] = ["apply", "delete", "get", "patch", "set"];

/// Of kinds that no API server has by itself: the Prometheus operator brings them. They are built, and not applied.
const OF_OTHERS_KINDS: &str = "apply -k manifests/monitoring";

/// Pods are orphaned by kube-controller-manager, which is not there, and kubectl would wait for it.
const ORPHANING: &str = "--cascade=orphan";

/// These want a release that is there: `crates/cluster` has one.
const OF_A_RELEASE: [&str; 2] = ["helm rollback ", "helm uninstall "];

/// What is on the cluster before a command: kubeadm's kube-proxy, with Talos' label, and its next ConfigMap; and ours.
const BEFORE: &str = "kubectl apply -k manifests/kubeadm && kubectl apply -k manifests &&
    kubectl -n kube-system create configmap kube-proxy --from-literal=config.conf='mode: ipvs
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
metricsBindAddress: \"\"
ipvs: {excludeCIDRs: null}' --dry-run=client -o yaml | kubectl label --local -f - k8s-app=kube-proxy -o yaml |
    kubectl apply -f - &&
    kubectl -n kube-system create configmap kube-proxy-next --from-literal=config.conf='mode: nftables
kind: KubeProxyConfiguration' --dry-run=client -o yaml | kubectl apply -f -";

/// Runs a script in a directory with manifests, which it may change, and returns what it printed.
fn run(clients: &Clients, script: &str, kubeconfig: &str) -> Result<String> {
    let directory = tempfile::tempdir()?;
    let program = Path::new(env!("CARGO_BIN_EXE_kube-ipvs")).parent().unwrap_or(directory.path());
    let script = format!(
        "cp -r {}/manifests . && PATH=$PATH:{} && {{ {script}\n}}",
        documents::root().display(),
        program.display()
    );
    let mut shell = Process::new("bash");
    shell.args(["-o", "pipefail", "-c", &script]).current_dir(directory.path()).env("KUBECONFIG", kubeconfig);
    clients.run(&mut shell, "")
}

/// The commands of these programs, but for those of our plugin of kubectl: `tests/unit/documentation.rs` has them.
fn commands(programs: &[&str]) -> Vec<Command> {
    let documents = documents::for_operators();
    let commands = documents.iter().flat_map(Command::all);
    let commands = commands.filter(|command| !command.text.starts_with("kubectl ipvs"));
    commands.filter(|command| programs.contains(&command.program())).collect()
}

/// The command, asked for its help: words and flags that it does not have are refused all the same.
fn with_help(command: &str) -> String {
    let end =
        [" -- ", " | ", "  # "].iter().filter_map(|end| command.find(end)).min().unwrap_or(command.len());
    format!("{} --help", &command.get(..end).unwrap())
}

#[test]
#[ignore = "needs kubectl and helm: cargo xtask test --tier api"]
fn kubectl_and_helm_know_every_word_and_flag_of_the_documents() {
    let Some(clients) = Clients::from_env_or_skip() else { return };
    let is_known = |script: &str| {
        let help = run(&clients, &with_help(script), "/nonexistent")?;
        let usage = help.split("Usage:\n").nth(1).and_then(|rest| rest.lines().next()).unwrap_or_default();
        ensure!(!usage.is_empty() && !usage.contains("SUBCOMMAND"), "{usage}");
        Ok(())
    };
    let commands = commands(&["kubectl", "helm"]);
    assert!(commands.len() > 20, "{}", commands.len());
    for command in commands {
        is_known(&command.text).unwrap_or_else(|why| panic!("{}: {why:#}", command.at));
    }
    for wrong in
        ["kubectl get pods --bogus", "kubectl set imag daemonset/kube-proxy", "helm instal kube-ipvs"]
    {
        assert!(is_known(wrong).is_err(), "{wrong}");
    }
}

#[test]
#[ignore = "needs kube-apiserver, kubectl and helm: cargo xtask test --tier api"]
fn what_the_documents_do_to_a_cluster_can_be_done() {
    let Some(clients) = Clients::from_env_or_skip() else { return };
    let Some(server) = ControlPlane::from_env_or_skip().unwrap() else { return };
    let kubeconfig = server.admin_kubeconfig();
    let kubeconfig = kubeconfig.to_str().unwrap();
    let run = |script: &str| run(&clients, script, kubeconfig);
    eventually("there is the namespace kube-system", || run("kubectl get namespace kube-system")).unwrap();

    let of_kubectl = commands(&["kubectl"]).into_iter().filter(|command| {
        let words: Vec<_> = command.text.split_whitespace().take_while(|word| *word != "--").collect();
        WITHOUT_NODES.iter().any(|verb| words.contains(verb))
    });
    let of_kubectl: Vec<_> = of_kubectl.collect();
    assert!(of_kubectl.len() > 15, "{}", of_kubectl.len());
    for command in of_kubectl {
        run(BEFORE).unwrap_or_else(|error| panic!("{}: {error}", command.at));
        let script = command.text.replace(OF_OTHERS_KINDS, "kustomize manifests/monitoring");
        let script = script.replace(ORPHANING, "--cascade=orphan --dry-run=server");
        run(&script).unwrap_or_else(|error| panic!("{}: {error}", command.at));
    }
    let mut of_helm = commands(&["helm"]);
    of_helm.retain(|command| !OF_A_RELEASE.iter().any(|begin| command.text.starts_with(begin)));
    for command in of_helm {
        run(&format!("{} --dry-run=client", command.text)).unwrap_or_else(|error| panic!("{error}"));
    }
}
