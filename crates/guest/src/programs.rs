//! The programs xtask and the tests call, getting those that are missing, and what Linux says of a process.

use std::{
    collections::BTreeSet,
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context as _, anyhow, bail, ensure};

/// A program and the Debian package that brings it.
#[derive(Clone, Copy)]
pub struct Program {
    /// The name of the executable.
    pub name: &'static str,
    /// The package, of the same name in Debian and Ubuntu.
    pub package: &'static str,
}

/// A program of a package.
pub(crate) const fn program(name: &'static str, package: &'static str) -> Program {
    Program { name, package }
}

/// What the demo and the tests look at the kernel with. kube-ipvs itself calls none of them.
pub const CROSS_CHECKS: &[Program] = &[
    program("ip", "iproute2"),
    program("tc", "iproute2"),
    program("ipvsadm", "ipvsadm"),
    program("nft", "nftables"),
    program("iptables", "iptables"),
    program("iptables-save", "iptables"),
    program("iptables-restore", "iptables"),
    program("ip6tables", "iptables"),
    program("ip6tables-save", "iptables"),
    program("ip6tables-restore", "iptables"),
    program("iptables-legacy", "iptables"),
    program("iptables-legacy-save", "iptables"),
    program("iptables-legacy-restore", "iptables"),
    program("ip6tables-legacy", "iptables"),
    program("ip6tables-legacy-save", "iptables"),
    program("ip6tables-legacy-restore", "iptables"),
    program("ipset", "ipset"),
    program("conntrack", "conntrack"),
    program("curl", "curl"),
    program("nc", "netcat-openbsd"),
    program("unshare", "util-linux"),
    program("nsenter", "util-linux"),
];

/// What a guest needs besides, or is made with.
pub const GUEST_TOOLS: &[Program] = &[
    program("modprobe", "kmod"),
    program("busybox", "busybox-static"),
    program("strip", "binutils"),
    // Programs that start others. BusyBox's prefer its own applets to what is in PATH: its `env ip`
    // is not iproute2.
    program("env", "coreutils"),
    program("nice", "coreutils"),
    program("timeout", "coreutils"),
    program("xargs", "findutils"),
    program("setsid", "util-linux"),
    program("setpriv", "util-linux"),
    // BusyBox's lack options that tests use, or are not there.
    program("bash", "bash"),
    program("script", "bsdutils"),
    program("stty", "coreutils"),
    program("sysctl", "procps"),
    program("umount", "mount"),
];

/// Where an executable is. Looks into the `sbin` directories too, which an ordinary user's PATH
/// leaves out.
pub fn find(name: impl AsRef<Path>) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|directory| directory.join(&name))
        .find(|candidate| is_executable(candidate))
}

fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// Whether this process runs as root.
pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Runs a program that makes something ready. What it prints goes to stderr: stdout belongs to what is run then.
pub fn run(command: &mut Command) -> anyhow::Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let status = command.stdin(Stdio::null()).stdout(io::stderr()).status();
    let status = status.with_context(|| format!("starting {name}"))?;
    ensure!(status.success(), "{name} failed ({status})");
    Ok(())
}

/// Whether a program succeeds, which prints nothing here.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

/// Runs a program; the text that it prints.
pub fn printed(command: &mut Command) -> anyhow::Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    String::from_utf8(feed(command, &[])?).with_context(|| format!("what {name} prints"))
}

/// Gives a program these bytes; what it prints. The error has what it writes to stderr, if the caller has that piped.
pub fn feed(command: &mut Command, input: &[u8]) -> anyhow::Result<Vec<u8>> {
    let name = command.get_program().to_string_lossy().into_owned();
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut child = child.with_context(|| format!("starting {name}"))?;
    let mut stdin = child.stdin.take().context("a child without stdin")?;
    // It prints before it has read everything.
    let (output, written) = thread::scope(|scope| {
        let writer = scope.spawn(move || stdin.write_all(input));
        (child.wait_with_output(), writer.join())
    });
    let output = output.with_context(|| format!("waiting for {name}"))?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success() || complaint.trim().is_empty(), "{}", complaint.trim_end());
    ensure!(output.status.success(), "{name} failed ({})", output.status);
    written
        .map_err(|_| anyhow!("writing to {name} panicked"))?
        .with_context(|| format!("writing to {name}"))?;
    Ok(output.stdout)
}

/// Makes sure that every one of `wanted` is there, installing packages if need be.
pub fn ensure(wanted: &[Program]) -> anyhow::Result<()> {
    let missing: Vec<Program> =
        wanted.iter().copied().filter(|program| find(program.name).is_none()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = missing.iter().map(|program| program.name).collect();
    let packages: BTreeSet<&str> = missing.iter().map(|program| program.package).collect();
    let packages = Vec::from_iter(packages);
    if find("apt-get").is_none() {
        bail!(
            "missing programs: {}. Install them with this machine's package manager (Debian has them in {})",
            names.join(", "),
            packages.join(", ")
        );
    }
    let by_hand = || {
        let (names, packages) = (names.join(", "), packages.join(" "));
        format!("missing programs: {names}. As root: apt-get update && apt-get install {packages}")
    };
    if !may_install() {
        bail!(by_hand());
    }
    eprintln!("xtask: missing programs: {}", names.join(", "));
    let mut install = vec!["install", "--yes", "--quiet=2", "--no-install-recommends"];
    install.extend(&packages);
    with_package_lists(|| apt_get(&install)).with_context(by_hand)?;
    match names.iter().find(|name| find(name).is_none()) {
        None => Ok(()),
        Some(name) => bail!("{name} is still missing after its package was installed"),
    }
}

/// Runs something that needs apt's package lists, which a container image comes without and an old
/// machine has out of date: fetches them first if there are none, and after a failure.
pub fn with_package_lists<T>(mut attempt: impl FnMut() -> anyhow::Result<T>) -> anyhow::Result<T> {
    let no_lists = !std::fs::read_dir("/var/lib/apt/lists").is_ok_and(|mut lists| {
        lists.any(|list| list.is_ok_and(|list| list.path().is_file() && list.file_name() != "lock"))
    });
    if no_lists {
        update()?;
        return attempt();
    }
    attempt().or_else(|error| {
        if !may_install() {
            return Err(error);
        }
        update()?;
        attempt()
    })
}

fn update() -> anyhow::Result<()> {
    if !may_install() {
        bail!("apt has no package lists. As root: apt-get update");
    }
    apt_get(&["update", "--quiet=2"])
}

/// Whether this process is root or can become it.
fn may_install() -> bool {
    is_root() || find("sudo").is_some()
}

/// Runs `apt-get`, as root or through sudo, after printing the whole command line. It asks nothing; sudo may ask for a
/// password.
fn apt_get(args: &[&str]) -> anyhow::Result<()> {
    let mut words = if is_root() { Vec::new() } else { vec!["sudo"] };
    words.extend(["env", "DEBIAN_FRONTEND=noninteractive", "apt-get"]);
    words.extend(args);
    eprintln!("xtask: running {}", words.join(" "));
    let [program, arguments @ ..] = &words[..] else { bail!("no command") };
    // What went wrong is on stderr; stdout has a line for every file unpacked.
    let status = Command::new(program).args(arguments).stdout(Stdio::null()).status();
    let status = status.with_context(|| format!("starting {program}"))?;
    ensure!(status.success(), "apt-get {} failed ({status})", args.join(" "));
    Ok(())
}

/// `USER_HZ` in include/asm-generic/param.h of Linux: in /proc processor time is in hundredths of a second on every
/// architecture.
const TICK: Duration = Duration::from_millis(10);

/// The processor time of a process, without its children's, from its `/proc/PID/stat`, proc_pid_stat(5).
pub fn processor_time(stat: &str) -> Option<Duration> {
    // The name, in parentheses, may contain spaces.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut ticks = fields.split_whitespace().skip(11).map_while(|field| field.parse::<u32>().ok());
    Some(TICK.saturating_mul(ticks.next()?.saturating_add(ticks.next()?)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on must stop")]

    use super::*;

    /// What every Debian has, and what build-essential brings.
    const GIVEN: [&str; 7] =
        ["bash", "bsdutils", "coreutils", "findutils", "mount", "util-linux", "binutils"];

    #[test]
    fn the_line_to_paste_in_the_readme_has_every_package_and_no_other() {
        let readme = std::fs::read_to_string(crate::workspace::root().join("README.md")).unwrap();
        let (_, line) = readme.split_once("`apt-get install ").unwrap();
        let (line, _) = line.split_once('`').unwrap();
        let mut named: BTreeSet<&str> = line.split_whitespace().collect();
        assert!(named.remove("build-essential") && named.remove("qemu-system-x86"), "{line}");
        let ours = CROSS_CHECKS.iter().chain(GUEST_TOOLS).map(|program| program.package);
        assert_eq!(named, ours.filter(|package| !GIVEN.contains(package)).collect());
    }

    #[test]
    fn a_process_s_own_time_is_without_its_childrens() {
        let stat = "7 (a (b) c) S 1 2 3 4 5 6 7 8 9 10 100 20 3000 400 20 0";
        assert_eq!(processor_time(stat), Some(Duration::from_millis(1200)));
        assert_eq!(processor_time("7 (a) S 1"), None);
    }
}
