//! kubectl, which tells of objects.

use std::{
    io::{BufReader, Read as _},
    process::{Child, Stdio},
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Deserializer, Value};

use super::{PAUSE, locked};
use crate::kubectl;

/// One watch. It ends with the API server, and is started again.
#[derive(Default)]
pub(super) struct Watch {
    kubectl: Mutex<Option<Child>>,
    stop: AtomicBool,
}

impl Watch {
    /// Does something again and again, with a pause after each time. While it fails in one way, that is said once.
    pub(super) fn until_stopped(&self, mut work: impl FnMut() -> Result<()>) {
        let mut last = String::new();
        while !self.stop.load(Relaxed) {
            let complaint = work().err().map(|error| format!("load balancer: {error:#}")).unwrap_or_default();
            if complaint != last && !complaint.is_empty() {
                eprintln!("{complaint}");
            }
            last = complaint;
            thread::sleep(PAUSE);
        }
    }

    /// Sees every event of these objects until kubectl ends. It begins with all of them.
    pub(super) fn follow(&self, objects: &[&str], see: impl Fn(&Value) -> Result<()>) -> Result<()> {
        let mut kubectl = kubectl::command()?;
        kubectl.arg("get").args(objects).args(["--watch", "--output-watch-events", "--output=json"]);
        // In chunks, a long list would be one event with lists in it.
        kubectl.arg("--chunk-size=0");
        kubectl.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = kubectl.spawn().context("starting kubectl get --watch")?;
        let events = child.stdout.take().context("a child without stdout")?;
        let mut complaints = child.stderr.take().context("a child without stderr")?;
        *locked(&self.kubectl) = Some(child);
        if self.stop.load(Relaxed) {
            self.end();
        }
        let events = Deserializer::from_reader(BufReader::new(events)).into_iter::<Value>();
        for event in events.map_while(Result::ok) {
            if let Err(error) = see(&event) {
                eprintln!("load balancer: {error:#}");
            }
        }
        self.end_kubectl();
        let mut complaint = String::new();
        complaints.read_to_string(&mut complaint)?;
        ensure!(complaint.is_empty(), "kubectl get --watch: {}", complaint.trim_end());
        Ok(())
    }

    /// Ends it for good.
    pub(super) fn end(&self) {
        self.stop.store(true, Relaxed);
        self.end_kubectl();
    }

    fn end_kubectl(&self) {
        if let Some(mut child) = locked(&self.kubectl).take() {
            // It may have ended by itself.
            drop(child.kill());
            drop(child.wait());
        }
    }
}
