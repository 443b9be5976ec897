//! User Mode Linux as guest: a Linux kernel that is an ordinary program, on the host's own root
//! file system. Starts in half a second and runs user code at the processor's speed.
//!
//! The binary must have everything built in: hostfs, overlayfs, IPVS with its schedulers, dummy,
//! veth, bridge, nf_tables.

use std::{
    collections::HashSet,
    ffi::{OsStr, OsString},
    fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use nix::{
    sched::{CpuSet, sched_getaffinity},
    unistd::Pid,
};

use crate::{
    Guest, TIMED_OUT, cache,
    debian::apt::{Apt, Suite},
    files, job_directory,
    platform::Platform,
    programs::{self, Program, program},
    relay::{self, Tap, quoted},
    supervised,
};

const INIT: &str = include_str!("uml/init.sh");

/// The binary at `path`, or else the one that is built here.
pub fn binary(path: Option<&Path>) -> anyhow::Result<PathBuf> {
    match path {
        Some(path) => path.canonicalize().with_context(|| format!("--kernel uml: {}", path.display())),
        None => ensure(),
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
    fs::write(file("settings"), settings(guest)?)?;
    fs::write(file("command"), relay::script_for(&guest.environment(), &directory, command))?;
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
fn settings(guest: &Guest) -> anyhow::Result<String> {
    let busybox = quoted(programs::find("busybox").context("busybox is missing")?);
    let share = quoted(guest.share.as_deref().unwrap_or(Path::new("")));
    Ok(format!("busybox={busybox}\nshare={share}\n"))
}

/// The package that depends on the source of the distribution's kernel, in Debian and Ubuntu.
const SOURCE: &str = "linux-source";

/// What is built in: names of options without `CONFIG_`, and lines of comment.
const CONFIG: &str = include_str!("uml/linux.config");

/// The options that a test kernel must have.
const NEEDED: [&str; 4] = ["IP_VS", "NF_TABLES", "DUMMY", "VETH"];

/// How many lines `make` prints, roughly: it differs between versions.
const STEPS: usize = 1400;

/// How often the progress is printed.
const PAUSE: Duration = Duration::from_secs(30);

/// What building takes.
const TOOLS: &[Program] = &[
    program("make", "make"),
    program("gcc", "gcc"),
    program("bc", "bc"),
    program("bison", "bison"),
    program("flex", "flex"),
    program("xz", "xz-utils"),
];

/// The kernel, from the cache or built now.
///
/// What was built once is not looked up again, as with a kernel package: later runs need no network and
/// compare with earlier ones. Other options, or removing the directory from the cache, build it anew.
pub(crate) fn ensure() -> anyhow::Result<PathBuf> {
    if !cfg!(target_arch = "x86_64") {
        bail!("User Mode Linux is for x86-64 only");
    }
    let directory = cache::made_once("uml", &name(), |place| {
        programs::ensure(TOOLS)?;
        eprintln!(
            "xtask: building User Mode Linux once: this takes 5 to 30 minutes, and 2 GB of disk meanwhile."
        );
        eprintln!("xtask: --kernel qemu does without, but without KVM tests then take ten times as long");
        let started = Instant::now();
        let tree = unpacked(&Apt::new(Some(&Suite::Newest), Platform::HERE)?, place)?;
        fs::write(tree.join("options"), options())?;
        programs::run(&mut make(&tree, &["--silent", "KCONFIG_ALLCONFIG=options", "allnoconfig"]))?;
        check(&files::read(&tree.join(".config"))?)?;
        let jobs = std::thread::available_parallelism().context("how many processors there are")?;
        run_with_progress(&mut make(&tree, &[&format!("--jobs={jobs}"), "linux"]))?;
        let made = place.join("made");
        files::copy(&tree.join("linux"), &made.join("linux"))?;
        eprintln!("xtask: built in {} s", started.elapsed().as_secs());
        Ok(made)
    })?;
    Ok(directory.join("linux"))
}

/// The name of the directory in the cache with the kernel.
fn name() -> String {
    cache::fingerprint(&[CONFIG])
}

/// The programs that building takes: none if it has been built.
pub(crate) fn tools() -> anyhow::Result<&'static [Program]> {
    Ok(if cache::directory("uml")?.join(name()).is_dir() { &[] } else { TOOLS })
}

/// Downloads the source package and unpacks what is in it. Returns the directory with the kernel's tree.
fn unpacked(apt: &Apt, directory: &Path) -> anyhow::Result<PathBuf> {
    apt.download(SOURCE, directory)?;
    let is_package = |name: &str| Path::new(name).extension() == Some(OsStr::new("deb"));
    let package = only(directory, is_package)?;
    programs::run(Command::new("dpkg-deb").arg("--extract").arg(&package).arg(directory))?;
    // Debian has the archive there, Ubuntu in a directory beside the packaging.
    let sources = directory.join("usr/src");
    let archive = |place: &Path| only(place, |name| name.starts_with(SOURCE) && name.contains(".tar."));
    let archive = archive(&sources)
        .or_else(|_| archive(&only(&sources, |name| name.starts_with(SOURCE) && !name.contains(".tar."))?))?;
    eprintln!("xtask: unpacking {}", archive.display());
    programs::run(
        Command::new("tar").arg("--extract").arg("--file").arg(&archive).arg("--directory").arg(directory),
    )?;
    only(directory, |name| name.starts_with(SOURCE) && !is_package(name))
}

/// The first entry of a directory with such a name.
fn only(directory: &Path, is_it: impl Fn(&str) -> bool) -> anyhow::Result<PathBuf> {
    let mut found = files::list(directory)?.into_iter();
    found
        .find(|path| path.file_name().and_then(OsStr::to_str).is_some_and(&is_it))
        .with_context(|| format!("no kernel source in {}", directory.display()))
}

/// The names in [`CONFIG`].
fn wanted() -> impl Iterator<Item = &'static str> {
    CONFIG.lines().filter(|line| !line.starts_with('#')).flat_map(str::split_whitespace)
}

/// [`CONFIG`] as `make` reads it.
fn options() -> String {
    wanted().flat_map(|name| ["CONFIG_", name, "=y\n"]).collect()
}

/// Ends with an error if this configuration, which `make` has written, lacks something needed. Options come
/// and go with the versions of the kernel, and one that it does not know, or whose dependencies have changed,
/// `make` leaves out without a word: what is only wanted is printed.
fn check(config: &str) -> anyhow::Result<()> {
    let missing = missing(config);
    if let Some(needed) = NEEDED.iter().find(|needed| missing.contains(needed)) {
        bail!("this kernel source has no {needed}, or it depends on options that uml.config does not name");
    }
    if !missing.is_empty() {
        eprintln!("xtask: options that this kernel source does not have: {}", missing.join(" "));
    }
    Ok(())
}

/// What is wanted and not built in.
fn missing(config: &str) -> Vec<&'static str> {
    let built_in: HashSet<_> =
        config.lines().filter_map(|line| line.strip_prefix("CONFIG_")?.strip_suffix("=y")).collect();
    wanted().filter(|&name| !built_in.contains(name)).collect()
}

fn make(tree: &Path, arguments: &[&str]) -> Command {
    let mut make = Command::new("make");
    make.arg("ARCH=um").args(arguments).current_dir(tree);
    make
}

/// Runs `make`, which prints a line for each step, and says now and then how far it is.
fn run_with_progress(make: &mut Command) -> anyhow::Result<()> {
    let mut child = make.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("starting make")?;
    let mut last = Instant::now();
    let lines = child.stdout.take().into_iter().flat_map(|stdout| BufReader::new(stdout).lines());
    for (number, _) in lines.map_while(Result::ok).enumerate() {
        if last.elapsed() > PAUSE {
            eprintln!("xtask: {number} of about {STEPS} steps are done");
            last = Instant::now();
        }
    }
    let status = child.wait().context("waiting for make")?;
    ensure!(status.success(), "make failed ({status})");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_a_line_each_and_comments_none() {
        let options = options();
        assert!(options.lines().any(|line| line == "CONFIG_IP_VS_TWOS=y"), "{options}");
        let is_option = |line: &str| {
            line.strip_prefix("CONFIG_").and_then(|line| line.strip_suffix("=y")).is_some_and(|name| {
                name.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_')
            })
        };
        assert_eq!(options.lines().find(|line| !is_option(line)), None);
    }

    #[test]
    fn kernel_source_is_refused_only_without_what_is_needed() {
        let all = options();
        assert_eq!(missing(&all), [""; 0]);
        let without =
            |name: &str| all.replace(&format!("CONFIG_{name}=y\n"), &format!("# CONFIG_{name} is not set\n"));
        for needed in NEEDED {
            let error = check(&without(needed)).unwrap_err().to_string();
            assert!(error.contains(&format!("has no {needed},")), "{error}");
        }
        let (without_twos, without_veth) =
            (without("IP_VS_TWOS"), all.replace("CONFIG_VETH=y", "CONFIG_VETH=m"));
        assert_eq!((missing(&without_twos), missing(&without_veth)), (vec!["IP_VS_TWOS"], vec!["VETH"]));
        check(&without_twos).unwrap();
    }
}
