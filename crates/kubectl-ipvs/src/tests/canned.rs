//! Nodes with the answers that a test gives.

use std::{
    os::unix::process::ExitStatusExt as _,
    process::{ExitStatus, Output},
};

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::super::{
    fleet::{Answered, NoAnswer, ask},
    pod::Pod,
};

/// What happens when a node is asked.
#[derive(Clone, Debug)]
pub(crate) enum Canned {
    Answers {
        code: i32,
        stdout: String,
        stderr: String,
    },
    TimesOut,
    /// Its pod has this phase.
    Pod(&'static str),
}

impl Canned {
    /// An answer, and the exit code.
    pub(crate) fn answer(code: i32, json: &Value) -> Self {
        Self::Answers { code, stdout: json.to_string(), stderr: String::new() }
    }

    /// The same, with words on standard error.
    pub(crate) fn saying(self, words: &str) -> Self {
        match self {
            Self::Answers { code, stdout, stderr } => {
                Self::Answers { code, stdout, stderr: format!("{stderr}{words}\n") }
            }
            other => other,
        }
    }

    fn phase(&self) -> &str {
        if let Self::Pod(phase) = self { phase } else { "Running" }
    }

    fn output(&self) -> Result<Output, NoAnswer> {
        let Self::Answers { code, stdout, stderr } = self else {
            return Err(NoAnswer::TimedOut { seconds: 30 });
        };
        let [stdout, stderr] = [stdout, stderr].map(|text| text.clone().into_bytes());
        // As wait(2) has it: the exit code is in the upper byte.
        Ok(Output { status: ExitStatus::from_raw(code << 8), stdout, stderr })
    }
}

/// The pod of a node.
pub(crate) fn pod(node: &str, phase: &str) -> Pod {
    let [node, phase] = [node, phase].map(str::to_owned);
    Pod { name: format!("kube-ipvs-{node}"), node, container: "kube-ipvs".to_owned(), phase }
}

/// The answers of these nodes.
pub(crate) fn answers<T: DeserializeOwned + Send>(nodes: &[(&str, Canned)]) -> Vec<Answered<T>> {
    let pods = nodes.iter().map(|(node, canned)| pod(node, canned.phase())).collect();
    let canned = |of: &Pod| nodes.iter().find(|(node, _)| of.node == *node).unwrap().1.output();
    ask(pods, &[], canned)
}
