//! Asks the nodes, several at a time.

use std::{
    io, iter,
    process::Output,
    sync::{Mutex, PoisonError},
    thread,
};

use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use service::{one_line, printable_line};

use super::pod::Pod;

/// How many nodes are asked at a time. Each takes a kubectl of some 50 MB and a connection to the API server.
const AT_A_TIME: usize = 10;

/// A node and its answer.
#[derive(Debug)]
pub(super) struct Answered<T> {
    /// The node's name; empty if its pod has no node yet.
    pub(super) node: String,
    /// The pod's name; empty if there is none.
    pub(super) pod: String,
    pub(super) answer: Result<Answer<T>, NoAnswer>,
}

/// The output of `kube-ipvs` in a pod.
#[derive(Debug)]
pub(super) struct Answer<T> {
    /// Whether its exit code was 0.
    pub(super) in_order: bool,
    /// Its message on standard error.
    pub(super) complaint: Option<String>,
    /// Its whole output, with the fields that `read` lacks.
    pub(super) json: Value,
    /// The part of it that is read.
    pub(super) read: T,
}

/// Why a node has no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoAnswer {
    /// The user has named a node that has no proxy.
    #[error("no pod of the proxy runs on it")]
    NoPod,
    /// The node's kubelet does not report, so that it starts no pod either.
    #[error("NotReady, not asked: its kubelet does not report")]
    NotReady,
    /// Nothing can be run in the pod.
    #[error("its pod {pod} is {phase}")]
    NotRunning {
        /// The pod.
        pod: String,
        /// The pod's phase.
        phase: String,
    },
    /// The answer takes too long.
    #[error("timed out after {seconds} s")]
    TimedOut {
        /// The time limit.
        seconds: u64,
    },
    /// The answer exceeds the size limit.
    #[error("its answer exceeds {mebibytes} MiB")]
    TooLong {
        /// The size limit.
        mebibytes: u64,
    },
    /// kubectl cannot be run.
    #[error("cannot run kubectl")]
    NoKubectl(#[source] io::Error),
    /// kubectl, or `kube-ipvs` in the pod, has printed an error.
    #[error("{0}")]
    Failed(String),
    /// The answer cannot be parsed: `kube-ipvs` there may have another version.
    #[error("cannot read its answer, perhaps of another version")]
    Malformed(#[source] serde_json::Error),
}

impl<T> Answered<T> {
    /// Whether it has answered and is in order.
    pub(super) fn is_in_order(&self) -> bool {
        self.answer.as_ref().is_ok_and(|answer| answer.in_order)
    }
}

/// Asks the pods of all nodes, or of these only, with `exec`. Returns their answers in the order of the nodes.
pub(super) fn ask<T: DeserializeOwned + Send>(
    mut pods: Vec<Pod>,
    only: &[String],
    exec: impl Fn(&Pod) -> Result<Output, NoAnswer> + Sync,
) -> Vec<Answered<T>> {
    let is_without_pod = |node: &&String| pods.iter().all(|pod| pod.node != **node);
    let without_pod: Vec<_> = only.iter().filter(is_without_pod).cloned().map(Err).collect();
    pods.retain(|pod| only.is_empty() || only.contains(&pod.node));
    let subjects = pods.into_iter().map(Ok).chain(without_pod).collect();
    several_at_a_time(subjects, |subject: Result<Pod, String>| match subject {
        Ok(pod) if pod.runs() => {
            let answer = exec(&pod).and_then(read);
            Answered { node: pod.node, pod: pod.name, answer }
        }
        Ok(Pod { node, name, phase, .. }) => {
            let not_running = NoAnswer::NotRunning { pod: name.clone(), phase };
            Answered { node, pod: name, answer: Err(not_running) }
        }
        Err(node) => Answered { node, pod: String::new(), answer: Err(NoAnswer::NoPod) },
    })
}

/// Asks about each of these, several at a time. Returns the answers in the order of the nodes.
pub(super) fn several_at_a_time<S: Send, T: Send>(
    subjects: Vec<S>,
    ask: impl Fn(S) -> Answered<T> + Sync,
) -> Vec<Answered<T>> {
    let next = Mutex::new(subjects.into_iter());
    // Nothing that holds the lock can panic.
    let take = || next.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = || iter::from_fn(take).map(&ask).collect::<Vec<_>>();
    let mut answers = thread::scope(|scope| {
        let beside = |_| thread::Builder::new().spawn_scoped(scope, work).ok();
        let others: Vec<_> = (1..AT_A_TIME).filter_map(beside).collect();
        let mut answers = work();
        answers.extend(others.into_iter().filter_map(|other| other.join().ok()).flatten());
        answers
    });
    answers.sort_by(|one, other| (&one.node, &one.pod).cmp(&(&other.node, &other.pod)));
    answers
}

/// Reads the output. The exit code can be 1 with an answer and without one: kubectl exits with that of `kube-ipvs`, or
/// with its own. Only an answer has output.
fn read<T: DeserializeOwned>(Output { status, stdout, stderr }: Output) -> Result<Answer<T>, NoAnswer> {
    let complaint = complaint(&stderr);
    if stdout.is_empty() {
        let why = complaint.or_else(|| said(&stderr));
        return Err(NoAnswer::Failed(why.unwrap_or_else(|| status.to_string())));
    }
    let (json, read) = parsed(&stdout)?;
    Ok(Answer { in_order: status.success(), complaint, json, read })
}

/// Parses an answer: all of it, and the part that is read.
pub(super) fn parsed<T: DeserializeOwned>(answer: &[u8]) -> Result<(Value, T), NoAnswer> {
    let mut json: Value = serde_json::from_slice(answer).map_err(NoAnswer::Malformed)?;
    tame(&mut json);
    let read = T::deserialize(&json).map_err(NoAnswer::Malformed)?;
    Ok((json, read))
}

/// Escapes what could pass for more than one line, or for another's. The answer of a node that was broken into must not
/// speak for other nodes. A proxy answers each thing in one line.
fn tame(json: &mut Value) {
    match json {
        Value::String(text) => *text = printable_line(text).into_owned(),
        Value::Array(values) => values.iter_mut().for_each(tame),
        Value::Object(fields) => fields.values_mut().for_each(tame),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// The message of `kube-ipvs` on standard error, to which kubectl adds the exit code.
fn complaint(stderr: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(stderr);
    let ours: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("kube-ipvs: ")).collect();
    said(ours.join("; ").as_bytes())
}

/// The text of standard error, in one line.
pub(super) fn said(stderr: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(stderr);
    let said = text.split_whitespace().collect::<Vec<_>>().join(" ");
    (!said.is_empty()).then(|| printable_line(&said).into_owned())
}

/// The JSON output: the answer of each node, with the node's name, its pod, and the error if there is one.
#[derive(Serialize)]
pub(super) struct FleetJson<'a> {
    nodes: Vec<NodeJson<'a>>,
}

#[derive(Serialize)]
struct NodeJson<'a> {
    node: &'a str,
    pod: &'a str,
    in_order: bool,
    complaint: Option<String>,
    answer: Option<&'a Value>,
}

impl<'a> FleetJson<'a> {
    pub(super) fn new<T>(answers: &'a [Answered<T>]) -> Self {
        let row = |answered: &'a Answered<T>| NodeJson {
            node: &answered.node,
            pod: &answered.pod,
            in_order: answered.is_in_order(),
            complaint: match &answered.answer {
                Ok(answer) => answer.complaint.clone(),
                Err(error) => Some(one_line(error)),
            },
            answer: answered.answer.as_ref().ok().map(|answer| &answer.json),
        };
        Self { nodes: answers.iter().map(row).collect() }
    }
}

#[cfg(test)]
mod tests;
