//! `cargo xtask image`: the container image, without a container engine and without a registry.
//!
//! The image is one program, linked statically with musl, under two names: there is nothing to take from a
//! base image. No CA certificates: the one to trust is in the kubeconfig. No /etc/passwd, time zones or
//! shell: nothing reads them. The same sources and tools give the same image, byte for byte.
//!
//! What is written: an OCI archive for all platforms, and beside it the SBOM of each, read back from the
//! program.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use guest::image_program::{self, Platform};
use guest::oci::{Compression, Layer, Layout};
use guest::workspace;
use serde_json::{Value, json};

/// What the manifests ask for. Without a host, nodes would look for it in a public registry, where the name
/// is not ours.
const NAME: &str = concat!("registry.example/kube-ipvs:", env!("CARGO_PKG_VERSION"));

/// The command line of `cargo xtask image`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Build for this platform alone; may be given several times
    #[arg(long = "platform", value_name = "ARCH", value_enum)]
    platforms: Vec<Platform>,
}

/// Builds the image in target/image.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let platforms = if args.platforms.is_empty() { &Platform::ALL } else { args.platforms.as_slice() };
    let name = concat!("kube-ipvs-", env!("CARGO_PKG_VERSION"));
    let directory = workspace::root().join("target/image");
    fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;

    let mut layout = Layout::new()?;
    let mut images = Vec::new();
    for &platform in platforms {
        let program = image_program::build(platform)?;
        let sbom = directory.join(format!("{name}-{}.cdx.json", platform.architecture()));
        fs::write(&sbom, image_program::sbom(&program)?).with_context(|| sbom.display().to_string())?;
        let layer = layer(&layout, &program)?;
        println!(
            "linux/{}: {:.1} MB compressed; {}",
            platform.architecture(),
            megabytes(layer.size),
            sbom.display()
        );
        images.push(layout.image(platform.architecture(), &config(), &[&layer])?);
    }
    // One name for all platforms, so that the reader chooses its own.
    let image = layout.for_platforms(&images)?;
    layout.name(image, NAME);
    let archive = directory.join(format!("{name}.oci.tar"));
    layout.write(&archive)?;
    println!("{}", archive.display());
    Ok(ExitCode::SUCCESS)
}

/// The only layer: the program under both its names.
fn layer(layout: &Layout, program: &Path) -> Result<Layer> {
    let root = tempfile::tempdir().context("making a directory for a layer")?;
    let directory = root.path().join("usr/local/bin");
    fs::create_dir_all(&directory).context("making a layer's directories")?;
    let copy = directory.join("kube-ipvs");
    fs::copy(program, &copy).with_context(|| format!("copying {}", program.display()))?;
    // Whatever the umask is here.
    for path in copy.ancestors().take_while(|path| *path != root.path()) {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).context("making it executable")?;
    }
    // The name that kubeadm's DaemonSet calls.
    symlink("kube-ipvs", directory.join("kube-proxy")).context("linking kube-proxy")?;
    layout.layer(root.path(), Compression::Gzip)
}

fn config() -> Value {
    json!({
        "Entrypoint": ["/usr/local/bin/kube-ipvs"],
        // For `kubectl exec POD -- kube-ipvs status`.
        "Env": ["PATH=/usr/local/bin"],
        "Labels": {
            "org.opencontainers.image.title": "kube-ipvs",
            "org.opencontainers.image.version": env!("CARGO_PKG_VERSION"),
            "org.opencontainers.image.licenses": "Apache-2.0",
            "org.opencontainers.image.source": "https://github.com/kube-ipvs/kube-ipvs",
        },
    })
}

#[expect(clippy::cast_precision_loss, reason = "one digit after the point is shown")]
fn megabytes(bytes: usize) -> f64 {
    bytes as f64 / 1e6
}
