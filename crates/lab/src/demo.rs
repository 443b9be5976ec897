//! `cargo xtask demo`: shows the main job.
//!
//! This half runs on the host: it builds the daemon and runs this same program again in the test
//! kernel, where [`story`] shows what kube-ipvs does, step by step.

mod story;

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context as _, Result};
use guest::{
    Guest, KernelArgs,
    platform::{self, Platform},
    workspace,
};
use testkit::{control_plane::ControlPlane, daemon::Daemon, lab::Host};

/// The command line of `cargo xtask demo`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    kernel: KernelArgs,
    /// The processor; another than this machine's is emulated by QEMU
    #[arg(long, value_enum, default_value_t = Platform::HERE)]
    arch: Platform,
    /// Feed the daemon from a real kube-apiserver instead of files
    #[arg(long)]
    api: bool,
    /// Tell the story here and now: what the test kernel runs
    #[arg(long, hide = true)]
    inside: bool,
}

/// Shows the main job; fails with the step that failed.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.inside {
        story::tell(args.api)?;
        return Ok(ExitCode::SUCCESS);
    }
    // What is missing is reported before anything is built.
    let kernel = args.kernel.choose_for(args.arch);
    kernel.prepare()?;
    eprintln!("xtask: building kube-ipvs");
    let (daemon, inside) = programs(kernel.platform())?;
    let myself = workspace::myself()?;
    let mut guest = Guest { timeout: Duration::from_secs(600), ..Guest::new(kernel) };
    guest.env.push(("KUBE_IPVS_BIN".into(), daemon.clone().into()));
    guest.files = vec![daemon, inside.clone(), workspace::root().join("manifests")];
    let mut command: Vec<OsString> = vec![inside.into(), "demo".into(), "--inside".into()];
    // The server, where it runs on the host, lives until the demo has ended.
    let _server = if args.api {
        command.push("--api".into());
        guest::api_server::equip(&mut guest, &myself)?
    } else {
        None
    };
    eprintln!("xtask: the demo runs on {}", guest.kernel);
    let code = guest.run(&command)?;
    Ok(ExitCode::from(code))
}

/// The daemon, and this program, for the processor of the guest.
fn programs(platform: Platform) -> anyhow::Result<(PathBuf, PathBuf)> {
    if platform.is_here() {
        return Ok((workspace::daemon()?, workspace::myself()?));
    }
    // Emulated, the optimised one is worth the wait for it.
    Ok((platform::build_program(platform)?, platform.program("kube-ipvs-lab", "lab")?))
}

/// The source of Services.
enum Feed {
    /// Manifests in a directory.
    Directory(tempfile::TempDir),
    /// A real kube-apiserver.
    Api(Box<ControlPlane>),
}

impl Feed {
    /// An empty directory.
    fn directory() -> Result<Self> {
        Ok(Self::Directory(tempfile::tempdir()?))
    }

    /// An API server: the one that the environment names, or a new one.
    fn api() -> Result<Self> {
        Ok(Self::Api(Box::new(crate::control_plane::inside()?)))
    }

    /// Makes the source reachable from `node`.
    fn reach_from(&self, node: &Host) -> Result<()> {
        match self {
            Self::Directory(_) => Ok(()),
            Self::Api(server) => node.reach(server.address()?),
        }
    }

    /// Applies a manifest of `manifests/demo`, without the lines that contain `leave_out`.
    fn put(&self, name: &str, leave_out: Option<&str>) -> Result<()> {
        let path = manifest(name);
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let kept = |line: &&str| leave_out.is_none_or(|words| !line.contains(words));
        let text: String = text.lines().filter(kept).flat_map(|line| [line, "\n"]).collect();
        match self {
            Self::Directory(directory) => write_whole(&directory.path().join(name), &text),
            Self::Api(server) => {
                for object in &serde_saphyr::from_multiple(&text)? {
                    server.apply(object)?;
                }
                Ok(())
            }
        }
    }

    /// Starts the daemon on `node`, fed from here.
    fn daemon(&self, node: &Host, arguments: &[&str]) -> Result<Daemon> {
        match self {
            Self::Directory(directory) => Daemon::with_manifests(node, directory.path(), arguments),
            Self::Api(server) => {
                let kubeconfig = server.proxy_kubeconfig();
                let kubeconfig = kubeconfig.to_string_lossy();
                let arguments: Vec<_> =
                    ["--kubeconfig", &kubeconfig].into_iter().chain(arguments.iter().copied()).collect();
                Daemon::start(node, &arguments)
            }
        }
    }
}

fn manifest(name: &str) -> PathBuf {
    workspace::root().join("manifests/demo").join(name)
}

/// Writes the file whole: a watcher of the directory never sees half of it.
fn write_whole(path: &Path, text: &str) -> Result<()> {
    let half = path.with_extension("half");
    fs::write(&half, text)?;
    fs::rename(&half, path)?;
    Ok(())
}
