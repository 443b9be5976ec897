//! User Mode Linux as guest: a Linux kernel that is an ordinary program, on the host's own root
//! file system. Starts in half a second and runs user code at the processor's speed.
//!
//! The binary must have everything built in: hostfs, overlayfs, IPVS with its schedulers, dummy,
//! veth, bridge, nf_tables.

pub(crate) mod build;

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context as _, bail};
use nix::{
    sched::{CpuSet, sched_getaffinity},
    unistd::Pid,
};

use crate::{
    Guest, TIMED_OUT, job_directory, programs,
    relay::{self, Tap},
    supervised,
};

const INIT: &str = include_str!("uml/init.sh");

/// The binary at `path`, or else the one that is built here.
pub fn binary(path: Option<&Path>) -> anyhow::Result<PathBuf> {
    match path {
        Some(path) => path.canonicalize().with_context(|| format!("--kernel uml: {}", path.display())),
        None => build::ensure(),
    }
}

/// Boots the binary `linux` and runs `command`.
pub(crate) fn run(guest: &Guest, linux: &Path, command: &[OsString], tap: Tap<'_>) -> anyhow::Result<u8> {
    if guest.forward.is_some() {
        bail!("a User Mode Linux guest has no network; run the server inside it");
    }
    let job = job_directory()?;
    let file = |name: &str| job.path().join(name);
    let directory = std::env::current_dir().context("the current directory")?;
    fs::write(file("init"), INIT)?;
    fs::set_permissions(file("init"), std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    fs::write(file("settings"), settings(guest)?.as_encoded_bytes())?;
    fs::write(
        file("command"),
        relay::script_for(&guest.environment(), &directory, command).as_encoded_bytes(),
    )?;
    for output in ["stdout", "stderr"] {
        fs::write(file(output), "")?;
    }
    let console = fs::File::create(file("console"))?;

    let child = supervised("taskset", guest.timeout)
        .args(["--cpu-list", &processor(guest.lane)?.to_string()])
        .arg(linux)
        .args(["root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro", "quiet", "seccomp=on"])
        .args(["con=null", "con0=null,fd:1", "con1=null"])
        .arg(format!("mem={}M", guest.memory))
        .arg(format!("init={}", file("init").display()))
        .arg(format!("xtask.job={}", job.path().display()))
        .stdin(Stdio::null())
        .stdout(console.try_clone()?)
        .stderr(console)
        .spawn()
        .with_context(|| format!("starting {}", linux.display()))?;
    let status = relay::files_until_exit(child, &file("stdout"), &file("stderr"), tap)?;

    if let Ok(code) = fs::read_to_string(file("exit")).unwrap_or_default().trim().parse() {
        return Ok(code);
    }
    let has_timed_out = status.code() == Some(TIMED_OUT.into());
    Ok(relay::conclude(&file("console"), guest, has_timed_out, status)?)
}

/// The processor that the guest has for itself. Its kernel and each of its programs are processes that wait
/// for one another at every system call, which takes seven times as long where they are on different
/// processors.
pub fn processor(lane: usize) -> anyhow::Result<usize> {
    let allowed = sched_getaffinity(Pid::this()).context("the processors that may be used")?;
    let allowed: Vec<_> =
        (0..CpuSet::count()).filter(|processor| allowed.is_set(*processor).unwrap_or(false)).collect();
    lane.checked_rem(allowed.len()).and_then(|index| allowed.get(index)).copied().context("no processor")
}

/// The shell variables init reads.
fn settings(guest: &Guest) -> anyhow::Result<OsString> {
    let busybox = programs::find("busybox").context("busybox is missing")?;
    let mut settings = OsString::from("busybox=");
    settings.push(relay::quoted(busybox.as_os_str()));
    settings.push("\nshare=");
    settings.push(relay::quoted(guest.share.as_deref().unwrap_or(Path::new("")).as_os_str()));
    settings.push("\n");
    Ok(settings)
}
