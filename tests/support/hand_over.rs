//! A node is handed over: the command, and who takes the node.

use std::{
    fs::{self, File},
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpListener},
    process::Child,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use testkit::{
    daemon::{binary, eventually, eventually_within},
    lab::Host,
};

/// How long the command may take to end, beyond what it waits.
const PATIENCE: Duration = Duration::from_secs(60);

/// `kube-ipvs cleanup --hand-over`, while it runs.
pub(crate) struct HandOver {
    child: Child,
    files: tempfile::TempDir,
}

impl HandOver {
    pub(crate) fn start(node: &Host, arguments: &[&str]) -> Self {
        let files = tempfile::tempdir().unwrap();
        let log = File::create(files.path().join("said")).unwrap();
        let mut command = node.command(&binary().unwrap().to_string_lossy());
        command.args(["cleanup", "--hand-over"]).args(arguments);
        let child = command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        Self { child, files }
    }

    fn said(&self) -> String {
        fs::read_to_string(self.files.path().join("said")).unwrap()
    }

    /// Waits until it says so.
    pub(crate) fn says(&self, words: &str) {
        eventually(&format!("it says {words:?}"), || self.has_said(words)).unwrap();
    }

    /// Waits so long for what depends on another program.
    pub(crate) fn says_within(&self, limit: Duration, words: &str) {
        eventually_within(limit, &format!("it says {words:?}"), || self.has_said(words)).unwrap();
    }

    fn has_said(&self, words: &str) -> Result<()> {
        let said = self.said();
        ensure!(said.contains(words), "{said}");
        Ok(())
    }

    /// As kubelet ends it.
    pub(crate) fn terminate(&self) {
        kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGTERM).unwrap();
    }

    /// Waits for its end; what it has said, and its exit code.
    pub(crate) fn ended(&mut self) -> (String, Option<i32>) {
        let code = eventually_within(PATIENCE, "it ends", || self.child.try_wait()?.context("it goes on"));
        (self.said(), code.unwrap().code())
    }
}

impl Drop for HandOver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Says which mode the node's kube-proxy has, as long as it lives.
pub(crate) struct Successor {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Successor {
    pub(crate) fn in_mode(node: &Host, mode: &'static str) -> Self {
        let listener = node.inside(|| TcpListener::bind((Ipv4Addr::LOCALHOST, 10_249))).unwrap().unwrap();
        listener.set_nonblocking(true).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let Ok((mut client, _)) = listener.accept() else {
                    thread::sleep(Duration::from_millis(10));
                    continue;
                };
                client.set_nonblocking(false)?;
                let _ = client.read(&mut [0; 512])?;
                write!(client, "HTTP/1.0 200 OK\r\n\r\n{mode}")?;
            }
            Ok(())
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Successor {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
