//! `cargo xtask image`: the container image, without a container engine and without a registry.
//!
//! The image is one program, linked statically with musl, under two names: there is nothing to take from a
//! base image. No CA certificates: the one to trust is in the kubeconfig. No /etc/passwd, time zones or
//! shell: nothing reads them. The same sources and tools give the same image, byte for byte.
//!
//! What is written: an OCI archive for all platforms, and beside it the SBOM of each, read back from the
//! program.

mod layout;

use std::fs;
use std::process::ExitCode;

use anyhow::Context as _;

use guest::image_program::{self, Platform};
use guest::workspace;
use layout::Layout;

/// The command line of `cargo xtask image`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Build for this platform alone; may be given several times
    #[arg(long = "platform", value_name = "ARCH", value_enum)]
    platforms: Vec<Platform>,
}

/// Builds the image in target/image.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let platforms = if args.platforms.is_empty() { &Platform::ALL } else { args.platforms.as_slice() };
    let name = concat!("kube-ipvs-", env!("CARGO_PKG_VERSION"));
    let directory = workspace::root().join("target/image");
    fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;

    let mut layout = Layout::new()?;
    for &platform in platforms {
        let program = image_program::build(platform)?;
        let sbom = directory.join(format!("{name}-{}.cdx.json", platform.architecture()));
        fs::write(&sbom, image_program::sbom(&program)?).with_context(|| sbom.display().to_string())?;
        let size = layout.add(platform.architecture(), &program)?;
        println!(
            "linux/{}: {:.1} MB compressed; {}",
            platform.architecture(),
            megabytes(size),
            sbom.display()
        );
    }
    let archive = directory.join(format!("{name}.oci.tar"));
    layout.write(&archive)?;
    println!("{}", archive.display());
    Ok(ExitCode::SUCCESS)
}

#[expect(clippy::cast_precision_loss, reason = "one digit after the point is shown")]
fn megabytes(bytes: usize) -> f64 {
    bytes as f64 / 1e6
}
