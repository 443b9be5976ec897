//! Runs a command as root on a kernel that has IPVS, and gets what it needs.
//!
//! kube-ipvs needs a kernel with `ip_vs` and `dummy`, and many machines have none: containers on a cloud kernel,
//! continuous integration, a laptop with another system's kernel. A [`Guest`] runs a command
//!
//! - on this machine's kernel, if it has both (`--kernel host`),
//! - in QEMU with the distribution's own kernel package, or that of another of its suites, which is downloaded and
//!   unpacked but not installed, and an initramfs made on the spot (`--kernel qemu`, `--kernel qemu:SUITE`),
//! - in User Mode Linux, built from the distribution's newest kernel source (`--kernel uml`), or a binary that is there
//!   (`--kernel uml:PATH`).
//!
//! The command sees the same paths everywhere: a file given in [`Guest::files`] is at its own path, whether the guest
//! is the host itself, has the host's root file system under it (User Mode Linux), or has only what was put into its
//! initramfs (QEMU).
//!
//! What a command takes of the machine is found before it begins ([`needs`]). Packages that are missing are installed
//! with `apt-get`, as root or through sudo, after the whole command line was printed.
//! Downloads and builds go to `$XDG_CACHE_HOME/kube-ipvs` (by default `~/.cache/kube-ipvs`), outside the repository, so
//! that a fresh clone finds them.

pub mod api_server;
pub mod cache;
pub mod files;
pub mod go;
pub mod needs;
pub mod oci;
pub mod platform;
pub mod programs;
pub mod source;
pub mod workspace;

/// Kernels, their sources and root file systems out of the distribution's packages.
mod debian {
    pub(crate) mod apt;
    pub(crate) mod kernel_package;
    pub mod root;
}
mod kernel;
mod qemu;
mod relay;
mod uml;

use std::{
    ffi::OsString,
    net::SocketAddrV4,
    path::PathBuf,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::Context as _;
pub use debian::root as debian_root;
pub use kernel::{Kernel, KernelArgs};
pub use relay::{EndedEarly, Tap, quoted};
pub use uml::{binary as user_mode_linux, processor};

/// The exit code of a command that was killed because it took too long, as `timeout(1)` has it.
pub const TIMED_OUT: u8 = 124;

/// Environment variables with these prefixes reach the command in the guest.
const PASSED_ON: [&str; 5] = ["KUBE_IPVS_", "KUBEBUILDER_", "REQUIRE_", "RUST_", "PROPTEST_"];

/// What a command needs around it.
pub struct Guest {
    /// The kernel to run on.
    pub kernel: Kernel,
    /// Host files and whole directories to be found at the same paths in the guest. A program
    /// brings the shared libraries it is linked with. Absolute paths.
    pub files: Vec<PathBuf>,
    /// One host directory the command can write to. Under QEMU it comes back when the command ends.
    pub share: Option<PathBuf>,
    /// Environment variables, over those that are passed on anyway.
    pub env: Vec<(OsString, OsString)>,
    /// How long the command may take, boot included.
    pub timeout: Duration,
    /// The guest's memory in MiB; nothing to the host.
    pub memory: u32,
    /// Which of several guests side by side this is: they are spread over the processors.
    pub lane: usize,
    /// The one way out of a QEMU guest, which has no network otherwise.
    pub forward: Option<Forward>,
}

/// Lets the guest reach one TCP port on the host's loopback.
#[derive(Clone, Copy)]
pub struct Forward {
    /// Where the guest connects to. An address in 10.0.2.0/24 other than .2, .3 and .15, which are
    /// the gateway, the name server and the guest.
    pub guest: SocketAddrV4,
    /// The port on the host's 127.0.0.1.
    pub host_port: u16,
}

impl Guest {
    /// A guest with 2 GiB of memory, five minutes, and nothing shared.
    pub fn new(kernel: Kernel) -> Self {
        Self {
            kernel,
            files: Vec::new(),
            share: None,
            env: Vec::new(),
            timeout: Duration::from_secs(5 * 60),
            memory: 2048,
            // Several commands at a time are spread a little so.
            lane: std::process::id() as usize,
            forward: None,
        }
    }

    /// Runs `command` and returns its exit code, [`TIMED_OUT`] if it had to be killed. Its output
    /// appears on this process's own stdout and stderr while it runs.
    pub fn run(&self, command: &[OsString]) -> anyhow::Result<u8> {
        self.run_tapped(command, &|_| {})
    }

    /// As [`Guest::run`]; `tap` sees what the command writes to stdout as well, in pieces that
    /// need not be whole lines.
    pub fn run_tapped(&self, command: &[OsString], tap: Tap<'_>) -> anyhow::Result<u8> {
        self.kernel.prepare()?;
        match &self.kernel {
            Kernel::Host => run_on_host(self, command, tap),
            Kernel::Qemu(package) => qemu::run(self, package, command, tap),
            Kernel::Uml(linux) => uml::run(self, &uml::binary(linux.as_deref())?, command, tap),
        }
    }

    /// The environment of the command. In the guest "the host" is the guest: a nested
    /// `cargo xtask` must not boot another. Whether its kernel is its own, with its clock, cannot be seen there.
    fn environment(&self) -> Vec<(OsString, OsString)> {
        let passed_on = std::env::vars_os().filter(|(name, _)| {
            PASSED_ON.iter().any(|prefix| name.as_encoded_bytes().starts_with(prefix.as_bytes()))
        });
        passed_on
            .chain([("KUBE_IPVS_KERNEL".into(), "host".into())])
            .chain((self.kernel != Kernel::Host).then(|| ("KUBE_IPVS_OWN_KERNEL".into(), "1".into())))
            .chain(self.env.iter().cloned())
            .collect()
    }
}

/// `program`, to be stopped after `timeout` with all its children, and when this process dies,
/// however that comes about. Exits with [`TIMED_OUT`] when it was stopped.
fn supervised(program: impl Into<OsString>, timeout: Duration) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM", "timeout", "--kill-after=5"]);
    command.arg(timeout.as_secs().to_string()).arg(program.into());
    command
}

/// A directory for the files of one run; gone when dropped.
fn job_directory() -> anyhow::Result<tempfile::TempDir> {
    tempfile::Builder::new().prefix("kube-ipvs-vm-").tempdir().context("creating a temporary directory")
}

/// Runs `command` on the host's kernel.
pub(crate) fn run_on_host(guest: &Guest, command: &[OsString], tap: Tap<'_>) -> anyhow::Result<u8> {
    let (program, args) = command.split_first().context("no command")?;
    let child = supervised(program, guest.timeout)
        .args(args)
        .envs(guest.environment())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting {}", program.display()))?;
    relay::until_exit(child, tap)
}
