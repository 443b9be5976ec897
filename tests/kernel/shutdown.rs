//! The daemon ends when it is asked to, also while its writer hangs in the kernel, and no other one begins before.

use std::{fs, path::PathBuf, thread, time::Duration};

use anyhow::Context as _;
use nix::{
    sys::{
        signal::{Signal, kill},
        stat::Mode,
    },
    unistd::{Pid, mkfifo},
};
use testkit::{daemon::eventually_within, lab::Lab};

use super::instance_lock::{Daemon, prepare};

/// A /run of its own, as in the tests of the lock, and a /proc in which the kernel's text of IPVS can be replaced. The
/// real one is at `$REAL_PROC`.
const OWN_PROC: &str = r#"
set -e
mount -t tmpfs tmpfs /run
mkdir /run/kube-ipvs
touch /run/xtables.lock
mount --bind "$0" /run/xtables.lock
mkdir -p "$REAL_PROC"
mount -t proc proc "$REAL_PROC"
mount -t tmpfs tmpfs /proc
for entry in "$REAL_PROC"/*; do ln -s "$entry" /proc/; done
rm /proc/thread-self
mkdir -p /proc/thread-self/net
for entry in "$REAL_PROC"/thread-self/net/*; do
    ln -s "$REAL_PROC/thread-self/net/${entry##*/}" /proc/thread-self/net/
done
exec "$@"
"#;

/// The writer opens the text once in this time.
const PERIOD: &str = "--ipvs-sync-period=1s";

/// A daemon whose writer hangs in the kernel, and another one that waits for the first to end.
struct Hanging {
    first: Daemon,
    second: Daemon,
    _lab: Lab,
    _files: tempfile::TempDir,
}

impl Hanging {
    fn new() -> Self {
        let lab = Lab::new(1, 8080).unwrap();
        let files = tempfile::tempdir().unwrap();
        prepare(files.path());
        let real_proc = files.path().join("proc");
        let with_proc = OWN_PROC.replace("$REAL_PROC", &real_proc.display().to_string());
        let first = Daemon::start_with(&with_proc, &lab.node, files.path(), "first", &[PERIOD]);
        first.says("kube-ipvs starts");
        // Opening a pipe for reading waits for somebody who opens it for writing.
        let text = PathBuf::from(format!("/proc/{}/root/proc/thread-self/net/ip_vs", first.child.id()));
        fs::remove_file(&text).unwrap();
        mkfifo(&text, Mode::S_IRUSR).unwrap();
        thread::sleep(Duration::from_secs(4));
        let second = Daemon::start(&lab.node, files.path(), "second");
        second.says("it holds /run/xtables.lock: waiting until it ends");
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
