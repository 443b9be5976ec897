//! The image in a registry, pushed as an operator does.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use guest::archive::sha256;
use guest::go::crane;
use guest::platform::Platform;
use guest::programs::run;
use serde_json::Value;

use super::{VERSION, printed};

/// A registry in memory, which ends with this.
struct Registry(Child);

impl Drop for Registry {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Where it listens: a port that nobody else has on a machine for tests.
const REGISTRY: &str = "127.0.0.1:5913";

/// Fails unless it has both documents about the image of each platform.
pub(super) fn lists_referrers(release: &Path) -> Result<()> {
    let mut serve = Command::new(crane::program()?);
    let serve =
        serve.args(["registry", "serve", "--address", REGISTRY]).stdout(Stdio::null()).stderr(Stdio::null());
    let _registry = Registry(serve.spawn().context("starting a registry")?);
    let get =
        |path: &str| printed(Command::new("curl").args(["-fsS", &format!("http://{REGISTRY}/v2/{path}")]));
    let mut attempts = 0;
    while get("").is_err() {
        attempts += 1;
        ensure!(attempts < 50, "the registry does not answer");
        thread::sleep(Duration::from_millis(200));
    }
    let archive = release.join(format!("kube-ipvs-{VERSION}.oci.tar"));
    let mut push = Command::new("skopeo");
    push.args(["copy", "--quiet", "--all", "--preserve-digests", "--dest-tls-verify=false"]);
    push.arg(format!("oci-archive:{}", archive.display()));
    run(push.arg(format!("docker://{REGISTRY}/kube-ipvs:{VERSION}")))?;

    let mut accept = Command::new("curl");
    accept.args(["-fsS", "-H", "Accept: application/vnd.oci.image.index.v1+json"]);
    let index = printed(accept.arg(format!("http://{REGISTRY}/v2/kube-ipvs/manifests/{VERSION}")))?;
    let archived = printed(Command::new("tar").arg("-xOf").arg(&archive).arg("index.json"))?;
    let digest = format!("sha256:{}", sha256(index.as_bytes())?);
    ensure!(archived.contains(&digest), "the image has another digest than in the archive: {digest}");
    let images: Vec<String> = manifests(&index)?
        .into_iter()
        .filter(|manifest| manifest.pointer("/platform/os") == Some(&"linux".into()))
        .filter_map(|manifest| Some(manifest.get("digest")?.as_str()?.to_owned()))
        .collect();
    ensure!(images.len() == Platform::ALL.len(), "{index}");
    for digest in images {
        let referrers = get(&format!("kube-ipvs/referrers/{digest}"))?;
        for kind in ["application/vnd.cyclonedx+json", "application/vnd.in-toto+json"] {
            ensure!(referrers.contains(kind), "no {kind}: {referrers}");
        }
    }
    Ok(())
}

/// What an index of images refers to.
fn manifests(index: &str) -> Result<Vec<Value>> {
    let index: Value = serde_json::from_str(index)?;
    index.get("manifests").and_then(Value::as_array).cloned().context("an index without manifests")
}
