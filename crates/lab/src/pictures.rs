//! `cargo xtask pictures`: the pictures of the documents, in docs/pictures.
//!
//! What a terminal shows is what the program printed there, on a node in a test kernel with the Services of
//! docs/examples and traffic to them. The way of a packet is drawn by Graphviz.

mod scene;
mod svg;

use std::{
    ffi::OsString,
    fs,
    process::{Command, ExitCode},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use guest::{Guest, KernelArgs, api_server, needs::GRAPHVIZ, programs, workspace};

/// The command line of `cargo xtask pictures`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    kernel: KernelArgs,
    /// Draw the terminals here and now: what the test kernel runs
    #[arg(long, hide = true)]
    inside: bool,
}

/// Draws all of them.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let directory = workspace::root().join("docs/pictures");
    if args.inside {
        scene::draw(&directory)?;
        return Ok(ExitCode::SUCCESS);
    }
    let kernel = args.kernel.choose_for_tests();
    kernel.prepare()?;
    let (daemon, myself) = (workspace::daemon()?, workspace::myself()?);
    let mut guest = Guest { timeout: Duration::from_secs(300), memory: 4096, ..Guest::new(kernel) };
    guest.env.push(("KUBE_IPVS_BIN".into(), daemon.clone().into()));
    guest.files = vec![daemon, myself.clone(), workspace::root().join("docs/examples")];
    guest.share = Some(directory.clone());
    let _api_server = api_server::equip(&mut guest, &myself)?;
    let command: [OsString; 3] = [myself.into(), "pictures".into(), "--inside".into()];
    ensure!(guest.run(&command)? == 0, "the terminals were not drawn");
    let mut dot = Command::new(GRAPHVIZ.name);
    dot.arg("-Tsvg").arg("-o").arg(directory.join("packet.svg"));
    programs::run(dot.arg(workspace::root().join("crates/lab/src/pictures/packet.dot")))?;
    for picture in fs::read_dir(&directory).context("reading docs/pictures")? {
        println!("{}", picture?.path().display());
    }
    Ok(ExitCode::SUCCESS)
}
