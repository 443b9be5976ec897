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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot go on must stop")]

    use std::process::Command;

    use super::*;

    fn unpack(archive: &Path, into: &Path) {
        fs::create_dir_all(into).unwrap();
        let status = Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(into).status();
        assert!(status.unwrap().success());
    }

    #[test]
    fn image_has_the_program_under_both_names() {
        let files = tempfile::tempdir().unwrap();
        let program = files.path().join("program");
        fs::write(&program, "a program").unwrap();
        let mut layout = Layout::new().unwrap();
        let layer = layer(&layout, &program).unwrap();
        let image = layout.image("amd64", &config(), &[&layer]).unwrap();
        layout.name(image, NAME);
        let archive = files.path().join("image.tar");
        layout.write(&archive).unwrap();

        let unpacked = files.path().join("layout");
        unpack(&archive, &unpacked);
        let read = |path: &Path| -> Value { serde_json::from_slice(&fs::read(path).unwrap()).unwrap() };
        let blob = |descriptor: &Value| {
            unpacked.join("blobs").join(descriptor["digest"].as_str().unwrap().replace(':', "/"))
        };
        let manifest = read(&blob(&read(&unpacked.join("index.json"))["manifests"][0]));
        let config = read(&blob(&manifest["config"]));
        let root = files.path().join("root");
        unpack(&blob(&manifest["layers"][0]), &root);
        let entry_point = config["config"]["Entrypoint"][0].as_str().unwrap().trim_start_matches('/');
        for name in [entry_point, "usr/local/bin/kube-proxy"] {
            assert_eq!(fs::read_to_string(root.join(name)).unwrap(), "a program");
        }
    }
}
