//! `kubectl ipvs preflight`: `kube-ipvs preflight` on the nodes before kube-ipvs is installed, by a Job on each.

mod job;
mod objects;
mod text;

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, ensure};
use operator::output::{print_as, say};
use program::Bounds;
use serde::Deserialize;
use service::one_line;
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    flag,
};

use super::{
    CALLED, Nodes,
    fleet::{self, Answer, Answered, FleetJson, NoAnswer},
    kubectl::{Kubectl, OF_LIST},
};
use job::NodeJob;
use objects::Objects;

/// The nodes to check, and the future daemon.
#[derive(clap::Args, Debug)]
pub(super) struct Preflight {
    #[command(flatten)]
    nodes: Nodes,
    /// Check the nodes with these labels, as for kubectl
    #[arg(
        short = 'l',
        long,
        value_name = "LABELS",
        default_value = "kubernetes.io/os=linux",
        conflicts_with = "only"
    )]
    selector: String,
    /// The image of kube-ipvs, where the nodes find it; by default that of the manifests
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,
    /// Time for each node in seconds, in which it also pulls the image
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: u64,
    /// The flags that the daemon will have, all but --hostname-override, as in `-- --cluster-cidr=10.42.0.0/16`. By
    /// default it has kubeadm's ConfigMap kube-proxy
    #[arg(last = true, value_name = "FLAGS", default_value = "--config=/var/lib/kube-proxy/config.conf")]
    daemon_flags: Vec<String>,
}

/// There is no `--image`, and the manifests have only a placeholder.
#[derive(Debug, thiserror::Error)]
#[error("the nodes cannot pull {0}, which is a placeholder: name your image with --image")]
pub(super) struct NoImage(String);

/// The part of `kube-ipvs preflight -o json` that is read.
#[derive(Debug, Deserialize)]
struct Report {
    verdict: Verdict,
    findings: Vec<Finding>,
}

/// A finding of a node; the worst one is the first.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    verdict: Verdict,
    subject: String,
    what: String,
    remedy: Option<String>,
}

/// The verdict of a finding, and of a report that of its worst finding.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "kebab-case")]
enum Verdict {
    Problem,
    Warning,
    Note,
    Ok,
}

/// A node of the cluster.
#[derive(Debug, PartialEq, Eq)]
struct Node {
    name: String,
    /// Whether its kubelet reports to the API server. One that reports `NotReady`, because the network of pods is not ready,
    /// starts pods in the host's network.
    reports: bool,
}

/// The time to remove the Jobs of all nodes: kubectl removes one after the other.
const OF_REMOVAL: Bounds = Bounds { time: Duration::from_secs(300), ..OF_LIST };

/// The columns of [`Node::list`].
const COLUMNS: &str =
    "custom-columns=NAME:.metadata.name,READY:.status.conditions[?(@.type==\"Ready\")].status";

/// The kinds of the objects that are created.
const KINDS: &str = "jobs,serviceaccounts,clusterroles,clusterrolebindings";

impl Preflight {
    /// Checks the nodes, and prints their findings. Returns whether every node has a report without a warning or problem.
    pub(super) fn run(&self) -> anyhow::Result<bool> {
        let kubectl = Kubectl(&self.nodes.cluster);
        let objects = Objects {
            namespace: kubectl.namespace(),
            image: self.image()?,
            timeout: self.timeout,
            daemon_flags: &self.daemon_flags,
        };
        let interrupted = interrupted().context("catching signals")?;
        let nodes = self.nodes(&kubectl)?;
        ensure!(!nodes.is_empty(), "no node has the labels {}", self.selector);
        only_run(&kubectl)?;
        let answers = kubectl
            .printed(&["apply", "--filename", "-"], objects.permissions()?.as_bytes(), OF_LIST)
            .map(|_| self.ask(&kubectl, &objects, nodes, &interrupted));
        let removed = remove(&kubectl);
        if let Err(error) = &removed {
            let (why, namespace, label) = (one_line(error), kubectl.namespace(), objects::LABEL);
            say(format_args!(
                "{CALLED}: cannot remove the Jobs and their permissions: {why}; try: \
                 kubectl -n {namespace} delete {KINDS} -l {label}"
            ));
        }
        ensure!(!interrupted.load(Ordering::Relaxed), "interrupted");
        let answers = answers.context("creating the permissions")?;
        print_as(self.nodes.output.format, &FleetJson::new(&answers), || text::text(&answers))?;
        Ok(removed.is_ok() && answers.iter().all(Answered::is_in_order))
    }

    /// The image, which is a placeholder in the manifests until a registry is chosen.
    fn image(&self) -> anyhow::Result<String> {
        if let Some(image) = &self.image {
            return Ok(image.clone());
        }
        let image = objects::image_of_manifests()?;
        ensure!(!image.starts_with(objects::PLACEHOLDER), NoImage(image));
        Ok(image)
    }

    /// The chosen nodes.
    fn nodes(&self, kubectl: &Kubectl<'_>) -> anyhow::Result<Vec<Node>> {
        let mut get = vec!["get", "nodes", "--no-headers", "--output", COLUMNS];
        match self.nodes.only.as_slice() {
            [] => get.extend(["--selector", &self.selector]),
            only => get.extend(only.iter().map(String::as_str)),
        }
        let printed = kubectl.printed(&get, b"", OF_LIST).context("kubectl get nodes")?;
        let printed = String::from_utf8(printed).context("what kubectl get nodes prints cannot be read")?;
        Ok(Node::list(&printed))
    }

    /// Runs the Job of each node, several at a time.
    fn ask(
        &self,
        kubectl: &Kubectl<'_>,
        objects: &Objects<'_>,
        nodes: Vec<Node>,
        interrupted: &AtomicBool,
    ) -> Vec<Answered<Report>> {
        let timeout = Duration::from_secs(self.timeout);
        let report = |node: &Node| {
            if !node.reports {
                return Err(NoAnswer::NotReady);
            }
            let job = NodeJob { kubectl, objects, node: &node.name, timeout, interrupted };
            let (json, read): (_, Report) = fleet::parsed(&job.run()?)?;
            Ok(Answer { in_order: read.verdict >= Verdict::Note, complaint: None, json, read })
        };
        fleet::several_at_a_time(nodes, |node| {
            let answer = report(&node);
            Answered { node: node.name, pod: String::new(), answer }
        })
    }
}

impl Node {
    /// Reads what `kubectl get nodes` prints with [`COLUMNS`]. A node without the condition is new.
    fn list(printed: &str) -> Vec<Self> {
        let node = |line: &str| {
            let (name, ready) = line.split_once(' ')?;
            Some(Self { name: name.to_owned(), reports: ready.trim() != "Unknown" })
        };
        printed.lines().filter_map(node).collect()
    }
}

/// A flag that the first signal sets. A second signal ends the program.
fn interrupted() -> io::Result<Arc<AtomicBool>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&interrupted))?;
        flag::register(signal, Arc::clone(&interrupted))?;
    }
    Ok(interrupted)
}

/// Refuses a second run beside another one, whose end would remove the objects of both.
fn only_run(kubectl: &Kubectl<'_>) -> anyhow::Result<()> {
    let get = ["get", "jobs", "--selector", objects::LABEL, "--output", "name"];
    let jobs = kubectl.printed(&get, b"", OF_LIST).context("kubectl get jobs")?;
    let (namespace, label) = (kubectl.namespace(), objects::LABEL);
    ensure!(
        jobs.is_empty(),
        "another run is under way, or was killed: if it was, kubectl -n {namespace} delete jobs -l {label}"
    );
    Ok(())
}

/// Removes every object that this command creates, even if the user presses Ctrl-C.
fn remove(kubectl: &Kubectl<'_>) -> Result<(), NoAnswer> {
    let delete = ["delete", KINDS, "--selector", objects::LABEL, "--ignore-not-found", "--wait=false"];
    kubectl.uninterrupted(&delete, OF_REMOVAL).map(drop)
}

#[cfg(test)]
mod tests;
