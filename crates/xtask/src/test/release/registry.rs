//! The image in a registry, pushed as an operator does.

use std::{
    collections::BTreeSet,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use guest::{
    files::sha256,
    go::CRANE,
    platform::Platform,
    programs::{printed, run},
};
use serde_json::Value;

use super::VERSION;

/// A registry in memory, which ends with this.
struct Registry(Child);

impl Drop for Registry {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Where it listens: a port that is free on a machine for tests.
const REGISTRY: &str = "127.0.0.1:5913";

/// Fails unless it has both documents about the image of each platform, and the index as it is in the archive.
///
/// Of these a registry makes its list of referrers; this one has no such list.
pub(super) fn has_what_is_said_of_images(release: &Path) -> Result<()> {
    let mut serve = Command::new(CRANE.program("crane")?);
    serve.args(["registry", "serve", "--address", REGISTRY]).stdout(Stdio::null()).stderr(Stdio::null());
    let _registry = Registry(serve.spawn().context("starting a registry")?);
    let mut attempts = 0;
    while get("", "*/*").is_err() {
        attempts += 1;
        ensure!(attempts < 50, "the registry does not answer");
        thread::sleep(Duration::from_millis(200));
    }
    let archive = release.join(format!("kube-ipvs-{VERSION}.oci.tar"));
    let mut push = Command::new("skopeo");
    push.args(["copy", "--quiet", "--all", "--preserve-digests", "--dest-tls-verify=false"]);
    push.arg(format!("oci-archive:{}", archive.display()));
    run(push.arg(format!("docker://{REGISTRY}/kube-ipvs:{VERSION}")))?;

    let index = get(&format!("kube-ipvs/manifests/{VERSION}"), "application/vnd.oci.image.index.v1+json")?;
    let archived = printed(Command::new("tar").arg("-xOf").arg(&archive).arg("index.json"))?;
    let digest = format!("sha256:{}", sha256(index.as_bytes())?);
    ensure!(archived.contains(&digest), "the image has another digest than in the archive: {digest}");

    let (mut images, mut said) = (BTreeSet::new(), BTreeSet::new());
    for manifest in manifests(&index)? {
        let digest = text(&manifest, "/digest");
        if text(&manifest, "/platform/os") == "linux" {
            images.insert(digest);
            continue;
        }
        let manifest =
            get(&format!("kube-ipvs/manifests/{digest}"), "application/vnd.oci.image.manifest.v1+json")?;
        let manifest: Value = serde_json::from_str(&manifest)?;
        said.insert((text(&manifest, "/subject/digest"), text(&manifest, "/artifactType")));
    }
    ensure!(images.len() == Platform::ALL.len(), "{index}");
    let kinds = ["application/vnd.cyclonedx+json", "application/vnd.in-toto+json"];
    let wanted = images.iter().flat_map(|image| kinds.map(|kind| (image.clone(), kind.to_owned())));
    ensure!(said == wanted.collect(), "said of the images is {said:?}");
    Ok(())
}

/// What the registry has at a path, as this media type.
fn get(path: &str, media_type: &str) -> Result<String> {
    let mut curl = Command::new("curl");
    curl.args(["-fsS", "-H", &format!("Accept: {media_type}"), &format!("http://{REGISTRY}/v2/{path}")]);
    printed(&mut curl)
}

fn text(value: &Value, pointer: &str) -> String {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// What an index of images refers to.
fn manifests(index: &str) -> Result<Vec<Value>> {
    let index: Value = serde_json::from_str(index)?;
    index.get("manifests").and_then(Value::as_array).cloned().context("an index without manifests")
}
