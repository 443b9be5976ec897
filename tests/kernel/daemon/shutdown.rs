//! The daemon ends when it is asked to, also while its writer hangs, and no other one begins before.

use std::{fs, thread, time::Duration};

use anyhow::{Context as _, bail};
use nix::{
    sys::{
        ptrace,
        signal::{Signal, kill},
        wait::{WaitPidFlag, waitpid},
    },
    unistd::Pid,
};
use testkit::{daemon::eventually_within, lab::Lab};

use super::instance_lock::{Daemon, prepare};

/// A daemon whose writer hangs, and another one that waits for the first to end.
struct Hanging {
    writer: Stopped,
    first: Daemon,
    second: Daemon,
    _lab: Lab,
    _files: tempfile::TempDir,
}

impl Hanging {
    fn new() -> Self {
        let lab = Lab::new(1, 8080).unwrap();
        let files = tempfile::tempdir_in("/dev/shm").unwrap();
        prepare(files.path());
        let first = Daemon::start(&lab.node, files.path(), "first");
        first.says("synced trigger=Start");
        // Then it waits for changes. Stopped in the middle of something it could hold a lock that others need.
        thread::sleep(Duration::from_secs(1));
        let writer = Stopped::new(thread_named("writer", first.child.id()).unwrap());
        let second = Daemon::start(&lab.node, files.path(), "second");
        second.says("waiting until it ends");
        Self { writer, first, second, _lab: lab, _files: files }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.first.child.id().cast_signed()), signal).unwrap();
    }

    /// Waits for the first one's end; its exit code.
    fn ended_within(&mut self, limit: Duration) -> Option<i32> {
        let child = &mut self.first.child;
        let ended = eventually_within(limit, "it ends", || {
            self.writer.bury();
            child.try_wait()?.context("it goes on")
        });
        ended.unwrap_or_else(|error| panic!("{error:#}: {}", self.first.said())).code()
    }
}

/// A thread that does what one does that a lock of the kernel keeps: nothing, until its process is killed.
struct Stopped(Pid);

impl Stopped {
    fn new(thread: Pid) -> Self {
        ptrace::seize(thread, ptrace::Options::empty()).unwrap();
        ptrace::interrupt(thread).unwrap();
        Self(thread)
    }

    /// Its process ends only when the one who stopped it has seen its end.
    fn bury(&self) {
        _ = waitpid(self.0, Some(WaitPidFlag::WNOHANG | WaitPidFlag::__WALL));
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        _ = ptrace::detach(self.0, None);
    }
}

/// The thread of this name of a process.
fn thread_named(name: &str, process: u32) -> anyhow::Result<Pid> {
    for thread in fs::read_dir(format!("/proc/{process}/task"))? {
        let thread = thread?;
        if fs::read_to_string(thread.path().join("comm"))?.trim_end() == name {
            return Ok(Pid::from_raw(thread.file_name().to_string_lossy().parse()?));
        }
    }
    bail!("no such thread")
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_second_signal_ends_a_daemon_whose_writer_hangs_and_then_another_begins() {
    for (signal, code) in [(Signal::SIGTERM, 143), (Signal::SIGINT, 130)] {
        let mut hanging = Hanging::new();
        hanging.signal(Signal::SIGTERM);
        thread::sleep(Duration::from_secs(3));
        assert!(hanging.first.child.try_wait().unwrap().is_none(), "it waits for its writer");
        assert!(!hanging.second.has_said("kube-ipvs starts"), "two writers");
        hanging.signal(signal);
        assert_eq!(hanging.ended_within(Duration::from_secs(5)), Some(code));
        hanging.second.says("kube-ipvs starts");
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_daemon_whose_writer_hangs_ends_before_the_kubelet_kills_it_and_says_why() {
    let mut hanging = Hanging::new();
    hanging.signal(Signal::SIGINT);
    assert_eq!(hanging.ended_within(Duration::from_secs(29)), Some(1));
    let why = "kube-ipvs: the writer thread hangs: it did not end within 20 s";
    assert!(hanging.first.has_said(why), "{}", hanging.first.said());
    hanging.second.says("kube-ipvs starts");
}
