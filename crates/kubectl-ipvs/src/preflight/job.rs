//! One node's Job: makes it, waits for its pod, and reads what it has printed.

use std::{
    process::Output,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;
use service::printable_line;

use super::{
    super::{
        fleet::{NoAnswer, said},
        kubectl::{Kubectl, OF_NODE},
    },
    objects::Objects,
};

/// The time between two looks at the pod.
const PAUSE: Duration = Duration::from_secs(1);

/// The exit codes of `kube-ipvs preflight` with a report.
const WITH_REPORT: [i64; 3] = [0, 1, 2];

/// Why a container waits that does not start by itself, or not soon. After a first `ErrImagePull` the kubelet tries
/// again.
const IN_VAIN: [&str; 6] = [
    "CreateContainerConfigError",
    "CreateContainerError",
    "ErrImageNeverPull",
    "ImagePullBackOff",
    "InvalidImageName",
    "RunContainerError",
];

/// The Job of a node.
pub(super) struct NodeJob<'a> {
    pub(super) kubectl: &'a Kubectl<'a>,
    pub(super) objects: &'a Objects<'a>,
    pub(super) node: &'a str,
    pub(super) timeout: Duration,
    pub(super) interrupted: &'a AtomicBool,
}

/// Where a pod is on its way.
enum Progress {
    /// It has ended; its name.
    Ended(String),
    /// It has not; what is known of it.
    Waiting(String),
}

impl NodeJob<'_> {
    /// Runs it, and returns what it has printed.
    pub(super) fn run(&self) -> Result<Output, NoAnswer> {
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
                Progress::Ended(pod) => return self.logs(&pod),
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

    /// Where the Job's pod is. It is an error if the container cannot start, or has ended without a report.
    fn progress(&self, job: &str) -> Result<Progress, NoAnswer> {
        let of_job = format!("job-name={job}");
        let get = ["get", "pods", "--selector", &of_job, "--output", "json"];
        let list = self.kubectl.printed(&get, b"", OF_NODE)?;
        let list: Value = serde_json::from_slice(&list).map_err(NoAnswer::Malformed)?;
        let Some(pod) = list.pointer("/items/0") else {
            return Ok(Progress::Waiting(format!("its Job {job} has no pod")));
        };
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
        let name = text("/metadata/name").into_owned();
        let terminated = format!("{container}/terminated");
        match pod.pointer(&format!("{terminated}/exitCode")).and_then(Value::as_i64) {
            Some(code) if WITH_REPORT.contains(&code) => Ok(Progress::Ended(name)),
            Some(code) => {
                let logs = self.logs(&name).ok().and_then(|Output { stdout, .. }| said(&stdout));
                let exited = format!("kube-ipvs exited with {code}");
                Err(NoAnswer::Failed(joined([exited, why(&terminated), logs.unwrap_or_default()], ": ")))
            }
            None => Err(NoAnswer::Failed(joined([format!("its pod is {phase}"), why("/status")], ": "))),
        }
    }

    /// What the pod has printed, which is the report as the output of `kube-ipvs`.
    fn logs(&self, pod: &str) -> Result<Output, NoAnswer> {
        self.kubectl.run(&["logs", pod], b"", OF_NODE)
    }
}

/// The texts that are not empty, with this between them.
fn joined<const N: usize>(texts: [String; N], between: &str) -> String {
    texts.into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join(between)
}
