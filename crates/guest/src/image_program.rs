//! The program of an image, built for the image's platform on any machine.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::{platform::Platform, source::Source, workspace, workspace::CargoTool};

/// Writes the list of dependencies into the program: what is in an image can be asked of the image.
const AUDITABLE: CargoTool = CargoTool { name: "cargo-auditable", version: "0.7.7", arguments: &[] };
/// Reads it back, as CycloneDX.
const TO_CYCLONEDX: CargoTool = CargoTool { name: "auditable2cdx", version: "0.1.0", arguments: &[] };

/// Builds kube-ipvs for a platform; where it is.
pub fn build(platform: Platform) -> anyhow::Result<PathBuf> {
    let target = platform.target();
    eprintln!("xtask: building kube-ipvs for {target}");
    let root = workspace::root();
    let mut command = Command::new(AUDITABLE.installed()?);
    command
        .current_dir(&root)
        .args(["auditable", "build", "--release", "--locked", "--bin", "kube-ipvs", "--target-dir"])
        // Whatever the environment says: an older program may be there.
        .arg(target_directory())
        .env("CARGO_ENCODED_RUSTFLAGS", rust_flags(&root, &cargo_home()?))
        .stdout(std::io::stderr());
    platform.prepare(&mut command)?;
    if let Some(source) = Source::here() {
        command.env("KUBE_IPVS_REVISION", source.revision());
    }
    let status = command.status().context("starting cargo auditable")?;
    ensure!(status.success(), "building kube-ipvs for {target} failed ({status})");
    Ok(built(platform))
}

/// Where it is after that.
pub fn built(platform: Platform) -> PathBuf {
    target_directory().join(platform.target()).join("release/kube-ipvs")
}

fn target_directory() -> PathBuf {
    workspace::root().join("target")
}

/// The dependencies that a program was built from, as a CycloneDX document. The same program gives the same one.
pub fn sbom(program: &Path) -> anyhow::Result<Vec<u8>> {
    let mut command = Command::new(TO_CYCLONEDX.installed()?);
    let output = command.arg(program).stderr(Stdio::inherit()).output().context("starting auditable2cdx")?;
    ensure!(output.status.success(), "{} names no dependencies", program.display());
    let mut document: Value =
        serde_json::from_slice(&output.stdout).context("reading what auditable2cdx prints")?;
    // Made up, and when it was asked.
    for (object, field) in [("", "serialNumber"), ("/metadata", "timestamp")] {
        if let Some(Value::Object(object)) = document.pointer_mut(object) {
            object.remove(field);
        }
    }
    Ok(document.to_string().into_bytes())
}

/// Flags that keep paths of this machine out of the program, such as in panic messages, so that it is the
/// same wherever it is built.
fn rust_flags(root: &Path, cargo_home: &Path) -> String {
    [(root, "kube-ipvs"), (cargo_home, "cargo")]
        .map(|(path, name)| format!("--remap-path-prefix={}={name}", path.display()))
        .join("\x1f")
}

fn cargo_home() -> anyhow::Result<PathBuf> {
    let set = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    set.or_else(|| Some(std::env::home_dir()?.join(".cargo"))).context("neither CARGO_HOME nor HOME is set")
}
