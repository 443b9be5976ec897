//! Container images, made without a container engine and without a registry: an OCI image layout, which is files
//! named by their digests and an index that says which is what
//! (<https://github.com/opencontainers/image-spec/blob/v1.1.0/image-layout.md>).

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

/// tar's options for an archive that says nothing of this machine or of now.
const NEUTRAL: [&str; 6] =
    ["--format=gnu", "--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner"];

/// Images that are written as one archive. The same files give the same archive, byte for byte.
pub struct Layout {
    directory: TempDir,
    named: Vec<Descriptor>,
}

/// What a layout refers to its files by.
pub type Descriptor = Map<String, Value>;

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
    /// A layout without images.
    pub fn new() -> anyhow::Result<Self> {
        let directory = tempfile::tempdir().context("making a directory for images")?;
        fs::create_dir_all(directory.path().join("blobs/sha256")).context("making a directory for blobs")?;
        Ok(Self { directory, named: Vec::new() })
    }

    /// Makes a layer of the files in the directory `root`.
    pub fn layer(&self, root: &Path, compression: Compression) -> anyhow::Result<Layer> {
        let tar = tar(root)?;
        let diff_id = digest(&tar)?;
        let (media_type, bytes) = match compression {
            // Without -n the time and the name would be in it.
            Compression::Gzip => ("+gzip", filter(Command::new("gzip").args(["-9", "-n"]), &tar)?),
            Compression::None => ("", tar),
        };
        let descriptor = self.blob(&format!("application/vnd.oci.image.layer.v1.tar{media_type}"), &bytes)?;
        Ok(Layer { descriptor, diff_id, size: bytes.len() })
    }

    /// Makes an image: what its program is called with
    /// (<https://github.com/opencontainers/image-spec/blob/v1.1.0/config.md>), and its layers, the lowest first.
    pub fn image(&self, architecture: &str, config: &Value, layers: &[&Layer]) -> anyhow::Result<Descriptor> {
        let diff_ids: Vec<&str> = layers.iter().map(|layer| layer.diff_id.as_str()).collect();
        let config = json!({
            "architecture": architecture,
            "os": "linux",
            "config": config,
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
        });
        let config = self.blob("application/vnd.oci.image.config.v1+json", config.to_string().as_bytes())?;
        let layers: Vec<&Descriptor> = layers.iter().map(|layer| &layer.descriptor).collect();
        let media_type = "application/vnd.oci.image.manifest.v1+json";
        let manifest =
            json!({"schemaVersion": 2, "mediaType": media_type, "config": config, "layers": layers});
        let mut manifest = self.blob(media_type, manifest.to_string().as_bytes())?;
        manifest.insert("platform".to_owned(), json!({"architecture": architecture, "os": "linux"}));
        Ok(manifest)
    }

    /// One image for several platforms, of which the reader chooses its own.
    pub fn for_platforms(&self, images: &[Descriptor]) -> anyhow::Result<Descriptor> {
        self.blob(INDEX, index(images).as_bytes())
    }

    /// Gives an image a name.
    pub fn name(&mut self, mut image: Descriptor, name: &str) {
        let names = json!({
            "org.opencontainers.image.ref.name": name,
            "io.containerd.image.name": name,
        });
        image.insert("annotations".to_owned(), names);
        self.named.push(image);
    }

    /// Writes the images that have names as one file.
    pub fn write(self, archive: &Path) -> anyhow::Result<()> {
        let file = |name: &str, text: &str| fs::write(self.directory.path().join(name), text);
        file("oci-layout", r#"{"imageLayoutVersion":"1.0.0"}"#).context("writing oci-layout")?;
        file("index.json", &index(&self.named)).context("writing index.json")?;
        let tar = tar(self.directory.path())?;
        fs::write(archive, tar).with_context(|| format!("writing {}", archive.display()))
    }

    /// Keeps the bytes.
    fn blob(&self, media_type: &str, bytes: &[u8]) -> anyhow::Result<Descriptor> {
        let digest = digest(bytes)?;
        let path = self.directory.path().join("blobs").join(digest.replace(':', "/"));
        fs::write(&path, bytes).with_context(|| format!("writing {}", path.display()))?;
        let descriptor =
            [("mediaType", media_type.into()), ("digest", digest.into()), ("size", bytes.len().into())];
        Ok(descriptor.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
    }
}

const INDEX: &str = "application/vnd.oci.image.index.v1+json";

fn index(images: &[Descriptor]) -> String {
    json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": images}).to_string()
}

/// What is in a directory, without the directory itself.
fn tar(directory: &Path) -> anyhow::Result<Vec<u8>> {
    let entries = fs::read_dir(directory).with_context(|| directory.display().to_string())?;
    let mut names = entries.map(|entry| Ok(entry?.file_name())).collect::<std::io::Result<Vec<_>>>()?;
    names.sort();
    let command = &mut Command::new("tar");
    filter(command.arg("--create").arg("--directory").arg(directory).args(NEUTRAL).args(names), &[])
}

fn digest(bytes: &[u8]) -> anyhow::Result<String> {
    let printed = String::from_utf8(filter(&mut Command::new("sha256sum"), bytes)?)?;
    let hexadecimal = printed.split_whitespace().next().context("sha256sum prints nothing")?;
    Ok(format!("sha256:{hexadecimal}"))
}

/// Gives a program these bytes; what it prints.
fn filter(command: &mut Command, input: &[u8]) -> anyhow::Result<Vec<u8>> {
    let name = command.get_program().to_string_lossy().into_owned();
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting {name}"))?;
    let mut stdin = child.stdin.take().context("a child without stdin")?;
    // It prints before it has read everything.
    let (output, written) = std::thread::scope(|scope| {
        let writer = scope.spawn(move || stdin.write_all(input));
        (child.wait_with_output(), writer.join())
    });
    let output = output.with_context(|| format!("waiting for {name}"))?;
    ensure!(output.status.success(), "{name} failed ({})", output.status);
    match written {
        Ok(written) => written.with_context(|| format!("writing to {name}"))?,
        Err(_) => anyhow::bail!("writing to {name} panicked"),
    }
    Ok(output.stdout)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot go on must stop")]

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
            let mut layout = Layout::new().unwrap();
            let lower = layout.layer(&roots[0], Compression::None).unwrap();
            let upper = layout.layer(&roots[1], Compression::Gzip).unwrap();
            let config = json!({"Entrypoint": ["/usr/bin/program"]});
            let image = |architecture| layout.image(architecture, &config, &[&lower, &upper]).unwrap();
            let all = layout.for_platforms(&[image("amd64"), image("arm64")]).unwrap();
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
        for (number, architecture) in ["amd64", "arm64"].into_iter().enumerate() {
            let manifest = &index["manifests"][number];
            assert_eq!(manifest["platform"]["architecture"], architecture);
            let manifest = read(&blob(manifest));
            let config = read(&blob(&manifest["config"]));
            assert_eq!(config["architecture"], architecture);
            assert_eq!(config["config"]["Entrypoint"][0], "/usr/bin/program");
            for (layer, content) in ["lower", "upper"].into_iter().enumerate() {
                let root = files.path().join(architecture).join(content);
                unpack(&blob(&manifest["layers"][layer]), &root);
                assert_eq!(fs::read_to_string(root.join("usr/bin/program")).unwrap(), content);
            }
        }
    }
}
