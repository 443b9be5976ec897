//! Calls kubectl, as the user is logged in.

use std::{
    os::unix::process::CommandExt as _,
    path::PathBuf,
    process::{Command, Output},
    time::Duration,
};

use anyhow::Context as _;
use program::Bounds;

use super::{
    fleet::{NoAnswer, said},
    pod::Pod,
};

/// The bounds of a node's answer. Its own `kube-ipvs` gives the daemon up to 20 s; what goes through 100,000
/// Services takes 30 MB. Ten nodes answer at a time.
pub(super) const OF_NODE: Bounds = Bounds { time: Duration::from_secs(30), output: 64 << 20 };

/// The bounds of the API server's list of the pods, each of which has some 15 KB.
pub(super) const OF_LIST: Bounds = Bounds { output: 256 << 20, ..OF_NODE };

/// Which cluster, by kubectl's own flags.
#[derive(clap::Args, Debug)]
pub(super) struct Cluster {
    /// The context of the kubeconfig, as for kubectl
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// The kubeconfig, as for kubectl
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The namespace of the proxies' pods
    #[arg(long, value_name = "NAME", default_value = "kube-system")]
    proxy_namespace: String,
}

/// kubectl for a cluster.
pub(super) struct Kubectl<'a>(pub(super) &'a Cluster);

impl<'a> Kubectl<'a> {
    /// Lists the proxies' pods.
    pub(super) fn pods(&self) -> anyhow::Result<Vec<Pod>> {
        let list =
            self.printed(&["get", "pods", "--selector", Pod::LABELS, "--output", "json"], b"", OF_LIST);
        Pod::list(&list.context("kubectl get pods")?).context("what kubectl get pods prints cannot be read")
    }

    /// The error for an empty list of pods.
    pub(super) fn found_nothing(&self) -> String {
        format!("no pod in the namespace {} has the label {}", self.namespace(), Pod::LABELS)
    }

    /// The namespace of the proxies' pods.
    pub(super) fn namespace(&self) -> &'a str {
        &self.0.proxy_namespace
    }

    /// Runs a command of `kube-ipvs` in a pod.
    pub(super) fn exec(&self, pod: &Pod, command: &[&str]) -> Result<Output, NoAnswer> {
        let exec = ["exec", &pod.name, "--container", &pod.container, "--", "kube-ipvs"];
        self.run(&[&exec[..], command, &["--output", "json"]].concat(), b"", OF_NODE)
    }

    /// What kubectl prints with these arguments and this input, if it succeeds.
    pub(super) fn printed(
        &self,
        arguments: &[&str],
        input: &[u8],
        bounds: Bounds,
    ) -> Result<Vec<u8>, NoAnswer> {
        succeeded(self.run(arguments, input, bounds)?)
    }

    /// Runs kubectl to its end, even if the user presses Ctrl-C: a terminal sends SIGINT to its foreground process group,
    /// and this kubectl has a group of its own. A plugin for the login could not ask for a password there.
    pub(super) fn uninterrupted(&self, arguments: &[&str], bounds: Bounds) -> Result<Vec<u8>, NoAnswer> {
        let mut kubectl = self.command();
        succeeded(run(kubectl.args(arguments).process_group(0), b"", bounds)?)
    }

    /// The output of kubectl with these arguments and this input.
    pub(super) fn run(&self, arguments: &[&str], input: &[u8], bounds: Bounds) -> Result<Output, NoAnswer> {
        run(self.command().args(arguments), input, bounds)
    }

    fn command(&self) -> Command {
        let Cluster { context, kubeconfig, proxy_namespace } = self.0;
        let mut kubectl = Command::new("kubectl");
        if let Some(context) = context {
            kubectl.args(["--context", context]);
        }
        if let Some(kubeconfig) = kubeconfig {
            kubectl.arg("--kubeconfig").arg(kubeconfig);
        }
        kubectl.args(["--namespace", proxy_namespace]);
        kubectl
    }
}

fn run(kubectl: &mut Command, input: &[u8], bounds: Bounds) -> Result<Output, NoAnswer> {
    program::run(kubectl, input, bounds).map_err(|error| match error {
        program::Error::TimedOut(after) => NoAnswer::TimedOut { seconds: after.as_secs() },
        program::Error::TooLong(most) => NoAnswer::TooLong { mebibytes: most >> 20 },
        program::Error::Io(error) => NoAnswer::NoKubectl(error),
    })
}

/// The standard output of a kubectl that has succeeded.
fn succeeded(Output { status, stdout, stderr }: Output) -> Result<Vec<u8>, NoAnswer> {
    if status.success() {
        return Ok(stdout);
    }
    Err(NoAnswer::Failed(said(&stderr).unwrap_or_else(|| status.to_string())))
}
