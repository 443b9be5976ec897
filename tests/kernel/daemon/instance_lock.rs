//! One proxy per node, even if each has a /run of its own: pods of two DaemonSets.

use std::{
    fs::{self, File, Permissions},
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::ensure;
use nix::{
    fcntl::{FcntlArg, fcntl},
    libc,
};
use testkit::{
    daemon::{binary, eventually},
    lab::{Host, Lab},
};

/// A read-only /run in which only the directory of the control socket and the host's lock file can be written, and no
/// capability but CAP_NET_ADMIN.
const OWN_RUN: &str = r#"
set -e
mount -t tmpfs tmpfs /run
mkdir /run/kube-ipvs
mount -t tmpfs tmpfs /run/kube-ipvs
touch /run/xtables.lock
mount --bind "$0" /run/xtables.lock
mount -o remount,ro /run
exec setpriv --no-new-privs --bounding-set=-all,+net_admin --inh-caps=-all "$@"
"#;

/// The same, but there is no place for the control socket either.
const READ_ONLY_RUN: &str = r#"
set -e
mount -t tmpfs tmpfs /run
touch /run/xtables.lock
mount --bind "$0" /run/xtables.lock
mount -o remount,ro /run
exec setpriv --no-new-privs --bounding-set=-all,+net_admin --inh-caps=-all "$@"
"#;

/// The same, but there is no lock of the host's either.
const NOTHING_TO_LOCK: &str = r#"
set -e
mount -t tmpfs -o ro tmpfs /run
exec "$@"
"#;

/// A /run/kube-ipvs and a lock file of the host's that others see too: the directory `run` beside the latter.
const SHARED_RUN: &str = r#"
set -e
mount -t tmpfs tmpfs /run
mkdir /run/kube-ipvs
mount --bind "$(dirname "$0")/run" /run/kube-ipvs
touch /run/xtables.lock
mount --bind "$0" /run/xtables.lock
exec setpriv --no-new-privs --bounding-set=-all,+net_admin --inh-caps=-all "$@"
"#;

/// What a daemon says that sees another by the host's lock file alone.
const WAITS: &str = "it holds /run/xtables.lock (process ";

const UNPRIVILEGED: u32 = 65_534;

/// A daemon with the usual control socket, in a /run of its own. It is killed when dropped.
pub(super) struct Daemon {
    pub(super) child: Child,
    log: PathBuf,
}

/// Makes what daemons in this directory share.
pub(super) fn prepare(directory: &Path) {
    File::create(directory.join("xtables.lock")).unwrap();
}

impl Daemon {
    /// `name` tells its log from others in the directory.
    pub(super) fn start(host: &Host, directory: &Path, name: &str) -> Self {
        Self::start_in(OWN_RUN, host, directory, name)
    }

    fn start_in(run: &str, host: &Host, directory: &Path, name: &str) -> Self {
        let log = directory.join(name);
        let file = File::create(&log).unwrap();
        let manifests = directory.join("manifests");
        fs::create_dir_all(&manifests).unwrap();
        let child = host
            .command("unshare")
            .args(["--mount", "sh", "-c", run])
            .arg(directory.join("xtables.lock"))
            .arg(binary().unwrap())
            .args(["run", "--cluster-cidr=10.244.0.0/16", "--hostname-override=node", "--manifests"])
            .arg(manifests)
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .unwrap();
        Self { child, log }
    }

    pub(super) fn says(&self, words: &str) {
        eventually(words, || {
            let log = fs::read_to_string(&self.log)?;
            ensure!(log.contains(words), "{log}");
            Ok(())
        })
        .unwrap();
    }

    pub(super) fn has_said(&self, words: &str) -> bool {
        self.said().contains(words)
    }

    /// Its log.
    pub(super) fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// The kernel names the device of a lock's file as stat(2) does on a file system of memory, as /run is, but not on an
/// overlay.
#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn daemons_that_share_only_the_lock_of_iptables_wait_for_each_other() {
    let lab = Lab::new(1, 8080).unwrap();
    let files = tempfile::tempdir_in("/dev/shm").unwrap();
    let lock = File::create(files.path().join("xtables.lock")).unwrap();
    // A program that restores rules of iptables meanwhile does not make a daemon wait.
    lock.lock().unwrap();
    let (starts, waits) = ("kube-ipvs starts", WAITS);
    let mut first = Daemon::start(&lab.node, files.path(), "first");
    first.says(starts);
    let second = Daemon::start(&lab.node, files.path(), "second");
    second.says(waits);
    // Another network namespace is another node.
    let elsewhere = Daemon::start(&lab.client, files.path(), "elsewhere");
    elsewhere.says(starts);
    assert!(!elsewhere.has_said(waits));
    assert!(!second.has_said(starts), "two proxies on one node");
    first.kill();
    second.says(starts);
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn on_a_read_only_file_system_the_lock_of_iptables_alone_keeps_one_proxy() {
    let lab = Lab::new(0, 8080).unwrap();
    let files = tempfile::tempdir_in("/dev/shm").unwrap();
    prepare(files.path());
    let mut first = Daemon::start_in(READ_ONLY_RUN, &lab.node, files.path(), "first");
    first.says("kube-ipvs starts");
    for said in
        ["to keep a second kube-ipvs out", "continuing without it and trying again", "Read-only file system"]
    {
        assert!(first.has_said(said), "{}", fs::read_to_string(&first.log).unwrap());
    }
    let second = Daemon::start_in(READ_ONLY_RUN, &lab.node, files.path(), "second");
    second.says(WAITS);
    first.kill();
    second.says("kube-ipvs starts");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn start_without_any_lock_is_refused_with_one_line_that_names_the_cause() {
    let lab = Lab::new(0, 8080).unwrap();
    let files = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut daemon = Daemon::start_in(NOTHING_TO_LOCK, &lab.node, files.path(), "log");
    assert_eq!(daemon.child.wait().unwrap().code(), Some(1));
    let said = fs::read_to_string(&daemon.log).unwrap();
    let line = "kube-ipvs: cannot make the directory of /run/kube-ipvs/control.lock, to keep a second kube-ipvs out: \
                Read-only file system";
    assert!(said.lines().last().unwrap().starts_with(line), "{said}");
}

/// A process of a user without rights, killed when dropped.
struct Holder(Child);

impl Drop for Holder {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// Takes a lock for reading of all bytes of a file, which it only reads, and hands it to a process of a user without rights.
fn hold_all_bytes(path: &Path) -> Holder {
    let file = File::open(path).unwrap();
    let all = libc::flock { l_type: 0, l_whence: 0, l_start: 0, l_len: 0, l_pid: 0 };
    fcntl(&file, FcntlArg::F_OFD_SETLK(&all)).unwrap();
    Holder(Command::new("sleep").arg("600").stdin(file).uid(UNPRIVILEGED).gid(UNPRIVILEGED).spawn().unwrap())
}

/// Locks a file as a whole, which it only reads.
fn hold(path: &Path) -> Holder {
    let mut flock = Command::new("flock");
    flock
        .args(["--shared", "--no-fork"])
        .arg(path)
        .args(["sleep", "600"])
        .uid(UNPRIVILEGED)
        .gid(UNPRIVILEGED);
    let holder = Holder(flock.spawn().unwrap());
    eventually("the user has the lock", || {
        let free = File::open(path)?.try_lock().is_ok();
        ensure!(!free, "it is free");
        Ok(())
    })
    .unwrap();
    holder
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn an_unprivileged_user_who_holds_both_locks_stops_no_daemon() {
    let lab = Lab::new(0, 8080).unwrap();
    let files = tempfile::tempdir_in("/dev/shm").unwrap();
    // As an earlier version and the kubelet leave them.
    let (run, host) = (files.path().join("run"), files.path().join("xtables.lock"));
    let beside = run.join("control.lock");
    fs::create_dir(&run).unwrap();
    for (path, mode) in [(files.path(), 0o755), (&*run, 0o755), (&*beside, 0o644), (&*host, 0o644)] {
        if !path.exists() {
            File::create(path).unwrap();
        }
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }
    let (one, _other) = (hold(&beside), hold_all_bytes(&host));

    let mut first = Daemon::start_in(SHARED_RUN, &lab.node, files.path(), "first");
    first.says("kube-ipvs starts");
    assert!(first.has_said(&format!("locked (process {}, sleep, of user {UNPRIVILEGED})", one.0.id())));
    assert!(first.has_said("/run/xtables.lock is locked by a process that may only read it"));
    let modes =
        [&*run, &*beside, &*host].map(|path| fs::metadata(path).unwrap().permissions().mode() & 0o777);
    assert_eq!(modes, [0o700, 0o600, 0o600]);
    first.says("kube_ipvs::finding: /run/xtables.lock is locked by a process that may only read it");

    let second = Daemon::start_in(SHARED_RUN, &lab.node, files.path(), "second");
    second.says("it holds /run/kube-ipvs/control.lock (process ");
    assert!(!second.has_said("kube-ipvs starts"), "two proxies on one node");
    first.kill();
    second.says("kube-ipvs starts");
}
