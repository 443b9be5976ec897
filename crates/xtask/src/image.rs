//! `cargo xtask image`: the container image, without a container engine and without a registry.
//!
//! The image is one program, linked statically with musl, under two names, and the licences of what is linked into it:
//! there is nothing to take from a base image. No CA certificates: the one to trust is in the kubeconfig. No
//! /etc/passwd, time zones or shell: nothing reads them. The same sources and tools give the same image, byte for byte.
//!
//! Beside the image of each platform are two documents about it, which a registry lists as its referrers: its SBOM,
//! read back from the program, and how it was built.

use std::{
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, Result};
use guest::{
    files,
    oci::{Compression, Descriptor, Labels, Layer, Layout},
    platform::{self, Platform},
    source::Source,
    workspace,
};
use serde_json::{Value, json};

use crate::{notices, provenance};

/// Without a host, nodes would look for it in a public registry, where the name is not ours.
const REPOSITORY: &str = "registry.example/kube-ipvs";
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The file with the licences.
const NOTICES: &str = "third-party-notices";

/// Builds the image in target/image.
pub(crate) fn run(platforms: &Platforms) -> Result<ExitCode> {
    let directory = workspace::root().join("target/image");
    for file in write(platforms.chosen(), &directory)? {
        println!("{}", file.display());
    }
    // For an image that is made otherwise: Containerfile.
    files::write(&directory.join(NOTICES), notices::text()?)?;
    Ok(ExitCode::SUCCESS)
}

/// Builds the programs, and writes an OCI archive for all platforms and the SBOM of each. Returns the files.
pub(crate) fn write(platforms: &[Platform], directory: &Path) -> Result<Vec<PathBuf>> {
    let source = Source::here();
    if source.as_ref().is_none_or(|source| !source.is_clean) {
        eprintln!("xtask: these sources are no commit: the image will not say how it was built");
    }
    let mut layout = Layout::new(labels(source.as_ref()))?;
    let notices = notices::text()?;
    let (mut images, mut documents, mut files) = (Vec::new(), Vec::new(), Vec::new());
    for &platform in platforms {
        let program = platform::build_program(platform)?;
        let sbom = platform::sbom(&program)?;
        let file = directory.join(format!("kube-ipvs-{VERSION}-{}.cdx.json", platform.architecture()));
        files::write(&file, &sbom)?;
        files.push(file);
        let layer = layer(&layout, &program, &notices)?;
        eprintln!("xtask: linux/{}: {:.1} MB compressed", platform.architecture(), megabytes(layer.size));
        let image = layout.image(platform.architecture(), config(), &[&layer])?;
        documents.push(layout.referrer(&image, "application/vnd.cyclonedx+json", &sbom, None)?);
        // Of changed sources nothing can be said.
        if let Some(source) = source.as_ref().filter(|source| source.is_clean) {
            let (media_type, predicate) = (provenance::MEDIA_TYPE, provenance::PREDICATE);
            let text = provenance(source, platform, &image)?;
            documents.push(layout.referrer(&image, media_type, text.as_bytes(), Some(predicate))?);
        }
        images.push(image);
    }
    // One name for all platforms, so that the reader chooses its own. What a document is about is there before it.
    images.append(&mut documents);
    let image = layout.for_platforms(&images)?;
    layout.name(image, &format!("{REPOSITORY}:{VERSION}"));
    let archive = directory.join(format!("kube-ipvs-{VERSION}.oci.tar"));
    layout.write(&archive)?;
    files.push(archive);
    Ok(files)
}

/// The only layer: the program under both its names, and the licences of what is linked into it.
fn layer(layout: &Layout, program: &Path, notices: &str) -> Result<Layer> {
    let root = tempfile::tempdir().context("making a directory for a layer")?;
    let programs = root.path().join("usr/local/bin");
    files::copy(program, &programs.join("kube-ipvs"))?;
    // The name that kubeadm's DaemonSet calls.
    symlink("kube-ipvs", programs.join("kube-proxy")).context("linking kube-proxy")?;
    files::write(&root.path().join("usr/share/doc/kube-ipvs").join(NOTICES), notices)?;
    layout.layer(root.path(), Compression::Gzip)
}

fn config() -> Value {
    json!({
        "Entrypoint": ["/usr/local/bin/kube-ipvs"],
        // For `kubectl exec POD -- kube-ipvs status`.
        "Env": ["PATH=/usr/local/bin"],
    })
}

/// <https://github.com/opencontainers/image-spec/blob/v1.1.0/annotations.md>
fn labels(source: Option<&Source>) -> Labels {
    let mut labels = Labels::from([
        ("org.opencontainers.image.title", "kube-ipvs".to_owned()),
        ("org.opencontainers.image.version", VERSION.to_owned()),
        ("org.opencontainers.image.licenses", env!("CARGO_PKG_LICENSE").to_owned()),
        ("org.opencontainers.image.source", env!("CARGO_PKG_REPOSITORY").to_owned()),
    ]);
    if let Some(source) = source {
        labels.insert("org.opencontainers.image.revision", source.revision());
        labels.insert("org.opencontainers.image.created", source.time.clone());
    }
    labels
}

fn provenance(source: &Source, platform: Platform, image: &Descriptor) -> Result<String> {
    let sha256 = image.digest.trim_start_matches("sha256:").to_owned();
    let subject = (REPOSITORY.to_owned(), sha256);
    provenance::statement(source, "cargo xtask image", &[platform], &[subject])
}

#[expect(clippy::cast_precision_loss, reason = "one digit after the point is shown")]
fn megabytes(bytes: usize) -> f64 {
    bytes as f64 / 1e6
}

/// What `--platform` chooses.
#[derive(clap::Args)]
pub(crate) struct Platforms {
    /// Build for this platform alone; may be given several times
    #[arg(long = "platform", value_name = "ARCH", value_enum)]
    platforms: Vec<Platform>,
}

impl Platforms {
    /// The platforms that were chosen, or all.
    pub(crate) fn chosen(&self) -> &[Platform] {
        if self.platforms.is_empty() { &Platform::ALL } else { &self.platforms }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot go on must stop")]

    use std::{fs, process::Command};

    use super::*;

    fn unpack(archive: &Path, into: &Path) {
        fs::create_dir_all(into).unwrap();
        let status = Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(into).status();
        assert!(status.unwrap().success());
    }

    #[test]
    fn image_has_the_program_under_both_names_and_says_what_it_is() {
        let files = tempfile::tempdir().unwrap();
        let program = files.path().join("program");
        fs::write(&program, "a program").unwrap();
        let source = Source {
            commit: "0123456789abcdef0123456789abcdef01234567".to_owned(),
            seconds: 1_774_883_289,
            time: "2026-03-30T15:08:09Z".to_owned(),
            is_clean: true,
        };
        let mut layout = Layout::new(labels(Some(&source))).unwrap();
        let layer = layer(&layout, &program, "notices").unwrap();
        let image = layout.image("amd64", config(), &[&layer]).unwrap();
        layout.name(image, REPOSITORY);
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
        assert_eq!(config["created"], source.time);
        let label = |name| &config["config"]["Labels"][format!("org.opencontainers.image.{name}")];
        assert_eq!(label("revision"), "0123456789ab");
        assert_eq!(label("source"), "https://github.com/kube-ipvs/kube-ipvs");
    }

    #[test]
    fn the_provenance_names_the_image_and_the_commit() {
        let source = Source {
            commit: "0123456789abcdef0123456789abcdef01234567".to_owned(),
            seconds: 0,
            time: String::new(),
            is_clean: true,
        };
        let layout = Layout::new(labels(Some(&source))).unwrap();
        let image = layout.image("arm64", config(), &[]).unwrap();
        let text = provenance(&source, Platform::Arm64, &image).unwrap();
        let statement: Value = serde_json::from_str(&text).unwrap();
        let sha256 = statement["subject"][0]["digest"]["sha256"].as_str().unwrap();
        assert_eq!(format!("sha256:{sha256}"), image.digest);
        let build = &statement["predicate"]["buildDefinition"];
        assert_eq!(build["externalParameters"]["source"]["digest"]["gitCommit"], source.commit);
        assert_eq!(build["internalParameters"]["targets"][0], "aarch64-unknown-linux-musl");
    }
}
