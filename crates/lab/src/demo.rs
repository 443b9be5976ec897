//! `cargo xtask demo`: shows the main job.
//!
//! This half runs on the host: it builds the daemon and runs this same program again in the test
//! kernel, where [`story`] shows what kube-ipvs does, step by step.

mod feed;
mod story;

use std::{ffi::OsString, path::PathBuf, process::ExitCode, time::Duration};

use guest::{Guest, KernelArgs, image_program, platform::Platform, workspace};

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
    Ok((image_program::build(platform)?, platform.program("kube-ipvs-lab", "lab")?))
}
