//! Which files a release has, and that they are about each other.

use std::{collections::BTreeSet, fs, path::Path, process::Command};

use anyhow::{Context as _, Result, ensure};
use guest::{platform::Platform, programs::run};
use serde_json::Value;

use super::{VERSION, bytes};
use crate::files;

/// The files of docs/verify.md, with `VERSION` in place of the version.
const FILES: [&str; 18] = [
    "kube-ipvs-VERSION-1.aarch64.rpm",
    "kube-ipvs-VERSION-1.x86_64.rpm",
    "kube-ipvs-VERSION-amd64.cdx.json",
    "kube-ipvs-VERSION-any-cluster.yaml",
    "kube-ipvs-VERSION-arm64.cdx.json",
    "kube-ipvs-VERSION-cleanup.yaml",
    "kube-ipvs-VERSION-k3s.yaml",
    "kube-ipvs-VERSION-kubespray.yaml",
    "kube-ipvs-VERSION-linux-amd64.tar.gz",
    "kube-ipvs-VERSION-linux-arm64.tar.gz",
    "kube-ipvs-VERSION-preflight.yaml",
    "kube-ipvs-VERSION-rke2.yaml",
    "kube-ipvs-VERSION-talos.yaml",
    "kube-ipvs-VERSION.oci.tar",
    "kube-ipvs-VERSION.tgz",
    "kube-ipvs_VERSION-1_amd64.deb",
    "kube-ipvs_VERSION-1_arm64.deb",
    PROVENANCE,
];
const PROVENANCE: &str = "kube-ipvs-VERSION.provenance.json";

/// What is about all of them.
const CHECKSUMS: [&str; 3] = ["SHA256SUMS", "SHA256SUMS.cosign.bundle", "SHA256SUMS.minisig"];

/// Fails unless the directory has these files and no others, each is what `SHA256SUMS` says, and the provenance names
/// all but itself.
pub(super) fn is_whole(release: &Path) -> Result<()> {
    let all: BTreeSet<String> = FILES.map(named).into();
    let there: BTreeSet<String> = files::list(release)?.iter().map(|file| files::name(file)).collect();
    ensure!(there == &all | &CHECKSUMS.map(str::to_owned).into(), "the release has {there:?}");

    run(Command::new("sha256sum").args(["--check", "--quiet", "SHA256SUMS"]).current_dir(release))?;
    let sums = fs::read_to_string(release.join("SHA256SUMS")).context("reading the checksums")?;
    let summed = sums.lines().filter_map(|line| Some(line.split_once("  ")?.1.to_owned()));
    ensure!(summed.eq(all.iter().cloned()), "not all have a checksum: {sums}");

    let text = fs::read(release.join(named(PROVENANCE))).context("reading the provenance")?;
    let statement: Value = serde_json::from_slice(&text).context("the provenance")?;
    let subjects = statement.pointer("/subject").and_then(Value::as_array).context("no subject")?;
    let about: BTreeSet<_> =
        subjects.iter().filter_map(|subject| subject.pointer("/name")?.as_str()).collect();
    let built = all.iter().filter(|name| **name != named(PROVENANCE));
    ensure!(about.into_iter().eq(built), "the provenance is about others: {subjects:?}");
    Ok(())
}

/// Fails unless the archive and the package of each platform have the same program, which is for its processor.
pub(super) fn programs_are_of_their_platforms(release: &Path) -> Result<()> {
    // `e_machine` of elf(5), which is little-endian on both.
    for (platform, machine) in [(Platform::Amd64, 62_u16), (Platform::Arm64, 183)] {
        let architecture = platform.architecture();
        let name = format!("kube-ipvs-{VERSION}-linux-{architecture}");
        let archive = release.join(format!("{name}.tar.gz"));
        let mut unpack = Command::new("tar");
        unpack.arg("-xOzf").arg(archive).arg(format!("{name}/bin/kube-ipvs"));
        let in_archive = bytes(&mut unpack)?;
        let package = release.join(format!("kube-ipvs_{VERSION}-1_{architecture}.deb"));
        let mut unpack = Command::new("sh");
        unpack.args(["-c", "dpkg-deb --fsys-tarfile \"$0\" | tar -xO ./usr/bin/kube-ipvs"]).arg(package);
        ensure!(bytes(&mut unpack)? == in_archive, "{architecture}: the package has another program");
        let is_for = in_archive.get(18..20).and_then(|field| field.try_into().ok()).map(u16::from_le_bytes);
        ensure!(is_for == Some(machine), "{architecture}: the program is for processor {is_for:?}");
    }
    Ok(())
}

fn named(file: &str) -> String {
    file.replace("VERSION", VERSION)
}
