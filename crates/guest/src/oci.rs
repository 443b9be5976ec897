//! Container images, made without a container engine and without a registry: an OCI image layout, which is files
//! named by their digests and an index that says which is what
//! (<https://github.com/opencontainers/image-spec/blob/v1.1.0/image-layout.md>).

use std::{collections::BTreeMap, path::Path};

use anyhow::Context as _;
use serde::Serialize;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::files;

/// Images that are written as one archive. The same files give the same archive, byte for byte.
pub struct Layout {
    directory: TempDir,
    labels: Labels,
    named: Vec<Descriptor>,
}

/// What images say of themselves (<https://github.com/opencontainers/image-spec/blob/v1.1.0/annotations.md>).
pub type Labels = BTreeMap<&'static str, String>;

/// What a layout refers to its files by. The fields are in the order in which programs in Go write them: a program that
/// copies an image reads the index and writes it again, and a registry has the same digest only then.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    media_type: String,
    /// `sha256:` and hexadecimal digits.
    pub digest: String,
    size: usize,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    annotations: BTreeMap<&'static str, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    platform: Option<Platform>,
}

/// Which machines run an image.
#[derive(Clone, Debug, Serialize)]
struct Platform {
    architecture: String,
    os: &'static str,
}

/// The list of what is in a layout, or of an image for several platforms.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Index<'a> {
    schema_version: u8,
    media_type: &'static str,
    manifests: &'a [Descriptor],
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    annotations: &'a Labels,
}

/// A part of a root file system, which several images may share.
pub struct Layer {
    descriptor: Descriptor,
    diff_id: String,
    /// How many bytes a node downloads.
    pub size: usize,
}

/// Whether a layer is compressed: what is downloaded is, and what stays on this machine need not be.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// gzip, as small as it gets.
    Gzip,
    /// As it is.
    None,
}

impl Layout {
    /// A layout without images. Those that come say this of themselves.
    pub fn new(labels: Labels) -> anyhow::Result<Self> {
        let directory = tempfile::tempdir().context("making a directory for images")?;
        Ok(Self { directory, labels, named: Vec::new() })
    }

    /// Makes a layer of the files in the directory `root`.
    pub fn layer(&self, root: &Path, compression: Compression) -> anyhow::Result<Layer> {
        let tar = files::tar(root)?;
        let diff_id = digest(&tar)?;
        let (media_type, bytes) = match compression {
            Compression::Gzip => ("+gzip", files::gzip(&tar)?),
            Compression::None => ("", tar),
        };
        let descriptor = self.blob(&format!("application/vnd.oci.image.layer.v1.tar{media_type}"), &bytes)?;
        Ok(Layer { descriptor, diff_id, size: bytes.len() })
    }

    /// Makes an image: what its program is called with
    /// (<https://github.com/opencontainers/image-spec/blob/v1.1.0/config.md>), and its layers, the lowest first.
    pub fn image(
        &self,
        architecture: &str,
        mut config: Value,
        layers: &[&Layer],
    ) -> anyhow::Result<Descriptor> {
        let diff_ids: Vec<&str> = layers.iter().map(|layer| layer.diff_id.as_str()).collect();
        if !self.labels.is_empty() {
            set(&mut config, "Labels", json!(self.labels));
        }
        let mut config = json!({
            "architecture": architecture,
            "os": "linux",
            "config": config,
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
        });
        if let Some(created) = self.labels.get(CREATED) {
            set(&mut config, "created", json!(created));
        }
        let config = self.blob("application/vnd.oci.image.config.v1+json", config.to_string().as_bytes())?;
        let layers: Vec<&Descriptor> = layers.iter().map(|layer| &layer.descriptor).collect();
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": config,
            "layers": layers,
            "annotations": self.labels,
        });
        let mut manifest = self.blob(MANIFEST, manifest.to_string().as_bytes())?;
        manifest.platform = Some(Platform { architecture: architecture.to_owned(), os: "linux" });
        Ok(manifest)
    }

    /// A document about an image, its subject: its media type, by which readers find it, its text, and the type of its
    /// predicate, if it is an in-toto statement. A registry lists it among the subject's referrers
    /// (<https://github.com/opencontainers/distribution-spec/blob/v1.1.0/spec.md#listing-referrers>).
    ///
    /// Put it [behind its subject](Layout::for_platforms): a copy of that image with all its platforms has it
    /// too. No node takes it for its own image, because its platform is unknown; so Docker's BuildKit does it.
    pub fn referrer(
        &self,
        subject: &Descriptor,
        media_type: &str,
        bytes: &[u8],
        predicate: Option<&str>,
    ) -> anyhow::Result<Descriptor> {
        let mut layer = self.blob(media_type, bytes)?;
        if let Some(predicate) = predicate {
            layer.annotations = BTreeMap::from([("in-toto.io/predicate-type", predicate.to_owned())]);
        }
        let subject = Descriptor { platform: None, ..subject.clone() };
        let reference = BTreeMap::from([
            ("vnd.docker.reference.type", "attestation-manifest".to_owned()),
            ("vnd.docker.reference.digest", subject.digest.clone()),
        ]);
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "artifactType": media_type,
            "config": self.blob("application/vnd.oci.empty.v1+json", b"{}")?,
            "layers": [layer],
            "subject": subject,
            "annotations": self.labels,
        });
        let mut manifest = self.blob(MANIFEST, manifest.to_string().as_bytes())?;
        manifest.platform = Some(Platform { architecture: "unknown".to_owned(), os: "unknown" });
        manifest.annotations = reference;
        Ok(manifest)
    }

    /// One image for several platforms, of which the reader chooses its own.
    pub fn for_platforms(&self, images: &[Descriptor]) -> anyhow::Result<Descriptor> {
        self.blob(INDEX, index(images, &self.labels)?.as_bytes())
    }

    /// Gives an image a name.
    pub fn name(&mut self, mut image: Descriptor, name: &str) {
        let names = ["org.opencontainers.image.ref.name", "io.containerd.image.name"];
        image.annotations = names.into_iter().map(|key| (key, name.to_owned())).collect();
        self.named.push(image);
    }

    /// Writes the images that have names as one file.
    pub fn write(self, to: &Path) -> anyhow::Result<()> {
        let directory = self.directory.path();
        files::write(&directory.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#)?;
        files::write(&directory.join("index.json"), index(&self.named, &Labels::new())?)?;
        files::write(to, files::tar(directory)?)
    }

    /// Keeps the bytes.
    fn blob(&self, media_type: &str, bytes: &[u8]) -> anyhow::Result<Descriptor> {
        let digest = digest(bytes)?;
        let path = self.directory.path().join("blobs").join(digest.replace(':', "/"));
        files::write(&path, bytes)?;
        let media_type = media_type.to_owned();
        Ok(Descriptor { media_type, digest, size: bytes.len(), annotations: BTreeMap::new(), platform: None })
    }
}

fn digest(bytes: &[u8]) -> anyhow::Result<String> {
    Ok(format!("sha256:{}", files::sha256(bytes)?))
}

const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// The label that is also the image's own time.
const CREATED: &str = "org.opencontainers.image.created";

/// Sets a field of an object.
fn set(object: &mut Value, field: &str, value: Value) {
    if let Value::Object(object) = object {
        object.insert(field.to_owned(), value);
    }
}

fn index(manifests: &[Descriptor], annotations: &Labels) -> anyhow::Result<String> {
    let index = Index { schema_version: 2, media_type: INDEX, manifests, annotations };
    serde_json::to_string(&index).context("writing an index")
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
    fn an_image_is_reproducible_and_its_files_are_found_by_name_platform_and_layer() {
        let files = tempfile::tempdir().unwrap();
        let roots = ["lower", "upper"].map(|name| files.path().join(name));
        for root in &roots {
            fs::create_dir_all(root.join("usr/bin")).unwrap();
            fs::write(root.join("usr/bin/program"), root.file_name().unwrap().as_encoded_bytes()).unwrap();
        }
        let archives = ["one.tar", "other.tar"].map(|name| files.path().join(name));
        for archive in &archives {
            let labels = Labels::from([(CREATED, "2026-03-30T15:08:09Z".to_owned())]);
            let mut layout = Layout::new(labels).unwrap();
            let lower = layout.layer(&roots[0], Compression::None).unwrap();
            let upper = layout.layer(&roots[1], Compression::Gzip).unwrap();
            let config = json!({"Entrypoint": ["/usr/bin/program"]});
            let image = |architecture| layout.image(architecture, config.clone(), &[&lower, &upper]).unwrap();
            let (amd64, arm64) = (image("amd64"), image("arm64"));
            let media_type = "application/vnd.cyclonedx+json";
            let about = layout.referrer(&amd64, media_type, b"{}", None).unwrap();
            let all = layout.for_platforms(&[amd64, arm64, about]).unwrap();
            layout.name(all, "registry.example/program:1");
            layout.write(archive).unwrap();
        }
        assert!(fs::read(&archives[0]).unwrap() == fs::read(&archives[1]).unwrap());

        let layout = files.path().join("layout");
        unpack(&archives[0], &layout);
        let read = |path: &Path| -> Value { serde_json::from_slice(&fs::read(path).unwrap()).unwrap() };
        let blob = |descriptor: &Value| {
            let path = layout.join("blobs").join(descriptor["digest"].as_str().unwrap().replace(':', "/"));
            assert_eq!(path.metadata().unwrap().len(), descriptor["size"].as_u64().unwrap());
            path
        };
        let named = &read(&layout.join("index.json"))["manifests"][0];
        assert_eq!(named["annotations"]["io.containerd.image.name"], "registry.example/program:1");
        let index = read(&blob(named));
        let about = &index["manifests"][2];
        assert_eq!(about["platform"]["architecture"], "unknown");
        let about = read(&blob(about));
        assert_eq!(about["artifactType"], "application/vnd.cyclonedx+json");
        assert_eq!(about["subject"]["digest"], index["manifests"][0]["digest"]);
        assert_eq!(fs::read(blob(&about["layers"][0])).unwrap(), b"{}");
        for (number, architecture) in ["amd64", "arm64"].into_iter().enumerate() {
            let manifest = &index["manifests"][number];
            assert_eq!(manifest["platform"]["architecture"], architecture);
            let manifest = read(&blob(manifest));
            let config = read(&blob(&manifest["config"]));
            assert_eq!(config["architecture"], architecture);
            assert_eq!(config["created"], "2026-03-30T15:08:09Z");
            assert_eq!(config["config"]["Labels"][CREATED], config["created"]);
            assert_eq!(config["config"]["Entrypoint"][0], "/usr/bin/program");
            for (layer, content) in ["lower", "upper"].into_iter().enumerate() {
                let root = files.path().join(architecture).join(content);
                unpack(&blob(&manifest["layers"][layer]), &root);
                assert_eq!(fs::read_to_string(root.join("usr/bin/program")).unwrap(), content);
            }
        }
    }
}
