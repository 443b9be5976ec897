//! An OCI image layout: files named by their digests, and an index that says which is what
//! (<https://github.com/opencontainers/image-spec/blob/v1.1.0/image-layout.md>).

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

/// What the manifests ask for. Without a host, nodes would look for it in a public registry, where the name
/// is not ours.
const NAME: &str = concat!("registry.example/kube-ipvs:", env!("CARGO_PKG_VERSION"));

/// tar's options for an archive that says nothing of this machine or of now.
const NEUTRAL: [&str; 6] =
    ["--format=gnu", "--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner"];

/// An image that grows platform by platform.
pub(super) struct Layout {
    directory: TempDir,
    manifests: Vec<Value>,
}

impl Layout {
    pub(super) fn new() -> anyhow::Result<Self> {
        let directory = tempfile::tempdir().context("making a directory for the image")?;
        fs::create_dir_all(directory.path().join("blobs/sha256")).context("making a directory for blobs")?;
        Ok(Self { directory, manifests: Vec::new() })
    }

    /// Adds the image of a platform. Returns how many bytes a node downloads.
    pub(super) fn add(&mut self, architecture: &str, program: &Path) -> anyhow::Result<usize> {
        let tar = layer(program)?;
        let diff_id = digest(&tar)?;
        // Without -n the time and the name would be in it.
        let compressed = filter(Command::new("gzip").args(["-9", "-n"]), &tar)?;
        let size = compressed.len();
        let layer = self.blob("application/vnd.oci.image.layer.v1.tar+gzip", &compressed)?;
        let config = json!({
            "architecture": architecture,
            "os": "linux",
            "config": {
                "Entrypoint": ["/usr/local/bin/kube-ipvs"],
                // For `kubectl exec POD -- kube-ipvs status`.
                "Env": ["PATH=/usr/local/bin"],
                "Labels": labels(),
            },
            "rootfs": {"type": "layers", "diff_ids": [diff_id]},
        });
        let config = self.blob("application/vnd.oci.image.config.v1+json", config.to_string().as_bytes())?;
        let media_type = "application/vnd.oci.image.manifest.v1+json";
        let manifest =
            json!({"schemaVersion": 2, "mediaType": media_type, "config": config, "layers": [layer]});
        let mut manifest = self.blob(media_type, manifest.to_string().as_bytes())?;
        manifest.insert("platform".to_owned(), json!({"architecture": architecture, "os": "linux"}));
        self.manifests.push(manifest.into());
        Ok(size)
    }

    /// Writes what was added as one file.
    pub(super) fn write(self, archive: &Path) -> anyhow::Result<()> {
        let media_type = "application/vnd.oci.image.index.v1+json";
        let index = |manifests: &[Value]| {
            json!({"schemaVersion": 2, "mediaType": media_type, "manifests": manifests}).to_string()
        };
        // One name for all platforms, so that the reader chooses its own.
        let mut image = self.blob(media_type, index(&self.manifests).as_bytes())?;
        let names = json!({
            "org.opencontainers.image.ref.name": NAME,
            "io.containerd.image.name": NAME,
        });
        image.insert("annotations".to_owned(), names);
        let file = |name: &str, text: &str| fs::write(self.directory.path().join(name), text);
        file("oci-layout", r#"{"imageLayoutVersion":"1.0.0"}"#).context("writing oci-layout")?;
        file("index.json", &index(&[image.into()])).context("writing index.json")?;
        let tar = tar(self.directory.path(), &["blobs", "index.json", "oci-layout"])?;
        fs::write(archive, tar).with_context(|| format!("writing {}", archive.display()))
    }

    /// Keeps the bytes, and returns what others refer to them by.
    fn blob(&self, media_type: &str, bytes: &[u8]) -> anyhow::Result<Map<String, Value>> {
        let digest = digest(bytes)?;
        let path = self.directory.path().join("blobs").join(digest.replace(':', "/"));
        fs::write(&path, bytes).with_context(|| format!("writing {}", path.display()))?;
        let descriptor =
            [("mediaType", media_type.into()), ("digest", digest.into()), ("size", bytes.len().into())];
        Ok(descriptor.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
    }
}

/// The files of an image, as a tar archive.
fn layer(program: &Path) -> anyhow::Result<Vec<u8>> {
    let root = tempfile::tempdir().context("making a directory for a layer")?;
    let directory = root.path().join("usr/local/bin");
    fs::create_dir_all(&directory).context("making a layer's directories")?;
    let copy = directory.join("kube-ipvs");
    fs::copy(program, &copy).with_context(|| format!("copying {}", program.display()))?;
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).context("making it executable")?;
    // The name that kubeadm's DaemonSet calls.
    symlink("kube-ipvs", directory.join("kube-proxy")).context("linking kube-proxy")?;
    tar(root.path(), &["usr"])
}

fn labels() -> Value {
    json!({
        "org.opencontainers.image.title": "kube-ipvs",
        "org.opencontainers.image.version": env!("CARGO_PKG_VERSION"),
        "org.opencontainers.image.licenses": "Apache-2.0",
        "org.opencontainers.image.source": "https://github.com/kube-ipvs/kube-ipvs",
    })
}

fn tar(directory: &Path, names: &[&str]) -> anyhow::Result<Vec<u8>> {
    // Directories get the umask's rights otherwise.
    let command = &mut Command::new("tar");
    command.arg("--create").arg("--directory").arg(directory).args(NEUTRAL).arg("--mode=u=rwX,go=rX");
    filter(command.args(names), &[])
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
    use super::*;

    #[test]
    fn image_is_reproducible_and_has_the_program_under_both_names() {
        let files = tempfile::tempdir().unwrap();
        let program = files.path().join("program");
        fs::write(&program, "a program").unwrap();
        let archives = ["one.tar", "other.tar"].map(|name| files.path().join(name));
        for archive in &archives {
            let mut layout = Layout::new().unwrap();
            layout.add("amd64", &program).unwrap();
            layout.add("arm64", &program).unwrap();
            layout.write(archive).unwrap();
        }
        assert!(fs::read(&archives[0]).unwrap() == fs::read(&archives[1]).unwrap());

        let unpack = |archive: &Path, into: &Path| {
            fs::create_dir_all(into).unwrap();
            let status = Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(into).status();
            assert!(status.unwrap().success());
        };
        let layout = files.path().join("layout");
        unpack(&archives[0], &layout);
        let read = |path: &Path| -> Value { serde_json::from_slice(&fs::read(path).unwrap()).unwrap() };
        let blob = |descriptor: &Value| {
            let path = layout.join("blobs").join(descriptor["digest"].as_str().unwrap().replace(':', "/"));
            assert_eq!(path.metadata().unwrap().len(), descriptor["size"].as_u64().unwrap());
            path
        };
        let index = read(&blob(&read(&layout.join("index.json"))["manifests"][0]));
        for (number, architecture) in ["amd64", "arm64"].into_iter().enumerate() {
            let manifest = &index["manifests"][number];
            assert_eq!(manifest["platform"]["architecture"], architecture);
            let manifest = read(&blob(manifest));
            let config = read(&blob(&manifest["config"]));
            assert_eq!(config["architecture"], architecture);
            let root = files.path().join(architecture);
            unpack(&blob(&manifest["layers"][0]), &root);
            let entry_point = config["config"]["Entrypoint"][0].as_str().unwrap().trim_start_matches('/');
            for name in [entry_point, "usr/local/bin/kube-proxy"] {
                assert_eq!(fs::read_to_string(root.join(name)).unwrap(), "a program");
            }
        }
    }
}
