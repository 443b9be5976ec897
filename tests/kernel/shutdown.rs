//! The daemon ends when it is asked to, also while its writer hangs, and no other one begins before.

use std::{fs, thread, time::Duration};

use anyhow::Context as _;
use nix::{
    sys::{
        ptrace,
        signal::{Signal, kill},
    },
    unistd::Pid,
};
use testkit::{daemon::eventually_within, lab::Lab};

use super::instance_lock::{Daemon, prepare};

/// A daemon whose writer hangs, and another one that waits for the first to end.
struct Hanging {
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
        first.says("kube-ipvs starts");
        // A stopped thread does what one does that a lock of the kernel keeps: nothing, until it is killed.
        let writer = thread_named("writer", first.child.id());
        ptrace::seize(writer, ptrace::Options::empty()).unwrap();
        ptrace::interrupt(writer).unwrap();
        let second = Daemon::start(&lab.node, files.path(), "second");
        second.says("waiting until it ends");
        Self { first, second, _lab: lab, _files: files }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.first.child.id().cast_signed()), signal).unwrap();
    }

    /// Waits for the first one's end; its exit code.
    fn ended_within(&mut self, limit: Duration) -> Option<i32> {
        let child = &mut self.first.child;
        eventually_within(limit, "it ends", || child.try_wait()?.context("it goes on")).unwrap().code()
    }
}

/// The thread of this name of a process.
fn thread_named(name: &str, process: u32) -> Pid {
    let threads = fs::read_dir(format!("/proc/{process}/task")).unwrap().map(|thread| thread.unwrap().path());
    let found = threads
        .into_iter()
        .find(|thread| fs::read_to_string(thread.join("comm")).unwrap().trim_end() == name)
        .unwrap();
    Pid::from_raw(found.file_name().unwrap().to_str().unwrap().parse().unwrap())
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
    assert!(hanging.first.has_said(why), "{}", fs::read_to_string(&hanging.first.log).unwrap());
    hanging.second.says("kube-ipvs starts");
}
