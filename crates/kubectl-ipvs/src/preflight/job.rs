//! The Job of one node, from its creation to the output of its pod.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use serde::Deserialize;
use serde_json::Value;
use service::{one_line, printable_line};

use super::{
    super::{
        fleet::{NoAnswer, said},
        kubectl::{Kubectl, OF_NODE},
    },
    objects::Objects,
};

/// The time between two requests for the state of the pod.
const PAUSE: Duration = Duration::from_secs(1);

/// The exit codes of `kube-ipvs preflight` with a report.
const WITH_REPORT: [i64; 3] = [0, 1, 2];

/// The reasons of a waiting container that does not start by itself, or not soon. After a first `ErrImagePull` the kubelet
/// tries again.
const IN_VAIN: [&str; 6] = [
    "CreateContainerConfigError",
    "CreateContainerError",
    "ErrImageNeverPull",
    "ImagePullBackOff",
    "InvalidImageName",
    "RunContainerError",
];

/// The words with which an admission plugin, such as PodSecurity or a quota, or a webhook refuses a pod. After another
/// error the Job controller may succeed later.
const REFUSED: [&str; 2] = ["is forbidden: ", "denied the request"];

/// The Job of a node.
pub(super) struct NodeJob<'a> {
    pub(super) kubectl: &'a Kubectl<'a>,
    pub(super) objects: &'a Objects<'a>,
    pub(super) node: &'a str,
    pub(super) timeout: Duration,
    pub(super) interrupted: &'a AtomicBool,
}

/// The progress of a Job.
enum Progress {
    /// `kube-ipvs` has printed a report.
    Reported(Vec<u8>),
    /// The report is pending, for this reason.
    Waiting(String),
}

impl NodeJob<'_> {
    /// Runs the Job and returns its output.
    pub(super) fn run(&self) -> Result<Vec<u8>, NoAnswer> {
        let started = Instant::now();
        self.check_interrupted()?;
        let job = self.objects.job(self.node).map_err(|error| NoAnswer::Failed(format!("{error:#}")))?;
        let create = ["create", "--filename", "-", "--output", "name"];
        let created = self.kubectl.printed(&create, job.as_bytes(), OF_NODE)?;
        // `job.batch/preflight-x7k2f`
        let created = String::from_utf8_lossy(&created);
        let name = created.trim().rsplit('/').next().unwrap_or_default();
        loop {
            match self.progress(name)? {
                Progress::Reported(output) => return Ok(output),
                Progress::Waiting(why) if started.elapsed() >= self.timeout => {
                    return Err(NoAnswer::Failed(format!(
                        "timed out after {} s: {why}",
                        self.timeout.as_secs()
                    )));
                }
                Progress::Waiting(_) => thread::sleep(PAUSE),
            }
            self.check_interrupted()?;
        }
    }

    fn check_interrupted(&self) -> Result<(), NoAnswer> {
        match self.interrupted.load(Ordering::Relaxed) {
            true => Err(NoAnswer::Failed("interrupted".to_owned())),
            false => Ok(()),
        }
    }

    /// The progress of the Job. It is an error if no report can come. A request that fails is repeated.
    fn progress(&self, job: &str) -> Result<Progress, NoAnswer> {
        let pods = match self.list("pods", "--selector", &format!("job-name={job}")) {
            Ok(pods) => pods,
            Err(error) => return Ok(Progress::failed("get pods", &error)),
        };
        let Some(pod) = pods.first() else { return self.progress_without_pod(job) };
        let text =
            |field: &str| printable_line(pod.pointer(field).and_then(Value::as_str).unwrap_or_default());
        let (phase, container) = (text("/status/phase"), "/status/containerStatuses/0/state");
        let why = |from: &str| {
            joined(["reason", "message"].map(|field| text(&format!("{from}/{field}")).into_owned()), ": ")
        };
        let waiting = format!("{container}/waiting");
        if IN_VAIN.contains(&&*text(&format!("{waiting}/reason"))) {
            return Err(NoAnswer::Failed(format!("its container cannot start: {}", why(&waiting))));
        }
        if !["Succeeded", "Failed"].contains(&&*phase) {
            return Ok(Progress::Waiting(joined([format!("its pod is {phase}"), why(&waiting)], ", ")));
        }
        let name = text("/metadata/name");
        let terminated = format!("{container}/terminated");
        match pod.pointer(&format!("{terminated}/exitCode")).and_then(Value::as_i64) {
            Some(code) if WITH_REPORT.contains(&code) => {
                Ok(self.log(&name).map_or_else(|error| Progress::failed("logs", &error), Progress::Reported))
            }
            Some(code) => {
                let log = self.log(&name).ok().and_then(|log| said(&log));
                let exited = format!("kube-ipvs exited with {code}");
                Err(NoAnswer::Failed(joined([exited, why(&terminated), log.unwrap_or_default()], ": ")))
            }
            None => Err(NoAnswer::Failed(joined([format!("its pod is {phase}"), why("/status")], ": "))),
        }
    }

    /// The progress of a Job without a pod. Only an Event says why the Job controller cannot create one.
    fn progress_without_pod(&self, job: &str) -> Result<Progress, NoAnswer> {
        let failed = format!("involvedObject.name={job},reason=FailedCreate");
        let events = self.list("events", "--field-selector", &failed).unwrap_or_default();
        let message = events.last().and_then(|event| event.get("message")?.as_str()).unwrap_or_default();
        let why = joined([format!("its Job {job} has no pod"), printable_line(message).into_owned()], ": ");
        if REFUSED.iter().any(|refused| message.contains(refused)) {
            return Err(NoAnswer::Failed(why));
        }
        Ok(Progress::Waiting(why))
    }

    /// The objects of a kind that a selector chooses.
    fn list(&self, kind: &str, selector: &str, selected: &str) -> Result<Vec<Value>, NoAnswer> {
        let get = ["get", kind, selector, selected, "--output", "json"];
        let printed = self.kubectl.printed(&get, b"", OF_NODE)?;
        let List { items } = serde_json::from_slice(&printed).map_err(NoAnswer::Malformed)?;
        Ok(items)
    }

    /// The log of the pod, which is the output of `kube-ipvs`.
    fn log(&self, pod: &str) -> Result<Vec<u8>, NoAnswer> {
        self.kubectl.printed(&["logs", pod], b"", OF_NODE)
    }
}

impl Progress {
    /// A request that has failed, with kubectl's command.
    fn failed(command: &str, error: &NoAnswer) -> Self {
        Self::Waiting(format!("kubectl {command}: {}", one_line(error)))
    }
}

/// What `kubectl get -o json` prints.
#[derive(Deserialize)]
struct List {
    items: Vec<Value>,
}

/// Joins the texts that are not empty.
fn joined<const N: usize>(texts: [String; N], between: &str) -> String {
    texts.into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join(between)
}
