//! Which files a release has, that they are about each other, and what is in those that an operator downloads.

use std::{collections::BTreeSet, path::Path, process::Command};

use anyhow::{Context as _, Result, ensure};
use guest::{
    files,
    go::CLIENTS,
    platform::Platform,
    programs::{feed, printed, run},
};
use serde_json::Value;

use super::VERSION;

pub(super) fn archive_is_whole(release: &Path, place: &Path) -> Result<()> {
    let name = format!("kube-ipvs-{VERSION}-linux-{}", Platform::HERE.architecture());
    let archive = release.join(format!("{name}.tar.gz"));
    run(Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(place))?;
    let root = place.join(name);
    let said = printed(Command::new(root.join("bin/kube-ipvs")).arg("--version"))?;
    ensure!(said == format!("kube-ipvs {VERSION}\n"), "{said}");
    for file in [
        "bin/kubectl-ipvs",
        "share/man/man1/kube-ipvs.1.gz",
        "share/bash-completion/completions/kube-ipvs",
        "share/doc/kube-ipvs/copyright",
    ] {
        ensure!(root.join(file).is_file(), "{file} is missing");
    }
    Ok(())
}

/// Fails unless both packages of each platform have the same files, upgrades ask for none of them, and only root may
/// read the directory for the key.
pub(super) fn packages_are_alike(release: &Path) -> Result<()> {
    for (deb, rpm) in [("amd64", "x86_64"), ("arm64", "aarch64")] {
        let deb = release.join(format!("kube-ipvs_{VERSION}-1_{deb}.deb"));
        let rpm = release.join(format!("kube-ipvs-{VERSION}-1.{rpm}.rpm"));
        let of_deb = |arguments: &[&str]| printed(Command::new("dpkg-deb").args(arguments).arg(&deb));
        let of_rpm = |what: &str| printed(Command::new("rpm").args(["--query", what, "--package"]).arg(&rpm));

        let contents = of_deb(&["--contents"])?;
        let in_deb: BTreeSet<&str> = contents.lines().filter_map(file).collect();
        let list = of_rpm("--list")?;
        let in_rpm: BTreeSet<&str> = list.lines().collect();
        let missing: Vec<_> = in_deb.difference(&in_rpm).collect();
        ensure!(missing.is_empty(), "only the .deb has {missing:?}");
        for needed in [
            "/usr/bin/kube-ipvs",
            "/usr/lib/systemd/system/kube-ipvs.service",
            "/usr/share/man/man1/kube-ipvs.1.gz",
            "/usr/share/doc/kube-ipvs/third-party-notices",
        ] {
            ensure!(in_deb.contains(needed), "the packages lack {needed}");
        }
        let of_upgrades =
            printed(Command::new("dpkg-deb").arg("--info").arg(&deb))? + &of_rpm("--configfiles")?;
        ensure!(
            !of_upgrades.contains("conffiles") && !of_upgrades.contains("/etc/"),
            "an upgrade would ask: {of_upgrades}"
        );
        let verbose = printed(Command::new("rpm").args(["--query", "--list", "-v", "--package"]).arg(&rpm))?;
        for (mut lines, end) in
            [(contents.lines(), " ./etc/kube-ipvs/"), (verbose.lines(), " /etc/kube-ipvs")]
        {
            let directory = lines.find(|line| line.ends_with(end)).unwrap_or_default();
            ensure!(directory.starts_with("drwx------ "), "others can read the key: {directory:?}");
        }
    }
    Ok(())
}

/// The file in a line of `dpkg-deb --contents`; none for a directory.
fn file(line: &str) -> Option<&str> {
    let path = line.split_whitespace().nth(5)?.strip_prefix('.')?;
    (!path.ends_with('/')).then_some(path)
}

pub(super) fn unit_is_hardened(release: &Path, place: &Path) -> Result<()> {
    let deb = release.join(format!("kube-ipvs_{VERSION}-1_{}.deb", Platform::HERE.architecture()));
    let root = place.join("root");
    run(Command::new("dpkg-deb").arg("--extract").arg(deb).arg(&root))?;
    let unit = root.join("usr/lib/systemd/system/kube-ipvs.service");
    let verified =
        Command::new("systemd-analyze").arg("verify").arg(unit).output().context("systemd-analyze")?;
    // It complains in any case, because what the unit starts is not installed here.
    let said = String::from_utf8_lossy(&verified.stderr);
    ensure!(!said.contains(", ignoring"), "systemd does not understand the unit: {said}");
    let mut analyze = Command::new("systemd-analyze");
    analyze.args(["security", "--offline=true", "--threshold=30", "--no-pager"]);
    // 0 is a process without any right, 100 one with all: kubelet's has 96.
    run(analyze.arg("--root").arg(&root).arg("kube-ipvs.service"))
}

pub(super) fn helm_renders(release: &Path) -> Result<()> {
    let mut helm = Command::new(CLIENTS.program("helm")?);
    helm.args(["template", "kube-ipvs"]).arg(release.join(format!("kube-ipvs-{VERSION}.tgz")));
    helm.args(["--set=image.repository=registry.example/kube-ipvs", "--set=server=https://10.0.0.1:6443"]);
    let rendered = printed(&mut helm)?;
    ensure!(
        rendered.contains(&format!("image: \"registry.example/kube-ipvs:{VERSION}\""))
            || rendered.contains(&format!("image: registry.example/kube-ipvs:{VERSION}")),
        "{rendered}"
    );
    Ok(())
}

/// The files of docs/verify.md, with `VERSION` in place of the version.
const FILES: [&str; 21] = [
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
    KREW,
    "kubectl-ipvs-VERSION-linux-amd64.tar.gz",
    "kubectl-ipvs-VERSION-linux-arm64.tar.gz",
];
const PROVENANCE: &str = "kube-ipvs-VERSION.provenance.json";
const KREW: &str = "kubectl-ipvs-VERSION.krew.yaml";

/// What is about all of them.
const CHECKSUMS: [&str; 3] = ["SHA256SUMS", "SHA256SUMS.cosign.bundle", "SHA256SUMS.minisig"];

/// Fails unless the directory has these files and no others, each is what `SHA256SUMS` says, and the provenance names
/// all but itself and krew's manifest, which has the checksums.
pub(super) fn is_whole(release: &Path) -> Result<()> {
    let all: BTreeSet<String> = FILES.map(named).into();
    let there: BTreeSet<String> = files::list(release)?.iter().map(|file| files::name(file)).collect();
    ensure!(there == &all | &CHECKSUMS.map(str::to_owned).into(), "the release has {there:?}");

    run(Command::new("sha256sum").args(["--check", "--quiet", "SHA256SUMS"]).current_dir(release))?;
    let sums = files::read(&release.join("SHA256SUMS"))?;
    let summed = sums.lines().filter_map(|line| Some(line.split_once("  ")?.1.to_owned()));
    ensure!(summed.eq(all.iter().cloned()), "not all have a checksum: {sums}");

    let text = files::read(&release.join(named(PROVENANCE)))?;
    let statement: Value = serde_json::from_str(&text).context("the provenance")?;
    let subjects = statement.pointer("/subject").and_then(Value::as_array).context("no subject")?;
    let about: BTreeSet<_> =
        subjects.iter().filter_map(|subject| subject.pointer("/name")?.as_str()).collect();
    let built = all.iter().filter(|name| ![PROVENANCE, KREW].map(named).contains(name));
    ensure!(about.into_iter().eq(built), "the provenance is about others: {subjects:?}");
    Ok(())
}

/// Fails unless the archive and the package of each platform have the same program, which is for its processor, as the
/// plugin is in its own archive.
pub(super) fn programs_are_of_their_platforms(release: &Path) -> Result<()> {
    // `e_machine` of elf(5), which is little-endian on both.
    for (platform, machine) in [(Platform::Amd64, 62_u16), (Platform::Arm64, 183)] {
        let architecture = platform.architecture();
        let name = format!("kube-ipvs-{VERSION}-linux-{architecture}");
        let archive = release.join(format!("{name}.tar.gz"));
        let mut unpack = Command::new("tar");
        unpack.arg("-xOzf").arg(archive).arg(format!("{name}/bin/kube-ipvs"));
        let in_archive = feed(&mut unpack, &[])?;
        let package = release.join(format!("kube-ipvs_{VERSION}-1_{architecture}.deb"));
        let mut unpack = Command::new("sh");
        unpack.args(["-c", "dpkg-deb --fsys-tarfile \"$0\" | tar -xO ./usr/bin/kube-ipvs"]).arg(package);
        ensure!(feed(&mut unpack, &[])? == in_archive, "{architecture}: the package has another program");
        let plugin = release.join(format!("kubectl-ipvs-{VERSION}-linux-{architecture}.tar.gz"));
        let mut unpack = Command::new("tar");
        unpack.arg("-xOzf").arg(plugin).arg("kubectl-ipvs");
        for program in [in_archive, feed(&mut unpack, &[])?] {
            let is_for = program.get(18..20).and_then(|field| field.try_into().ok()).map(u16::from_le_bytes);
            ensure!(is_for == Some(machine), "{architecture}: a program is for processor {is_for:?}");
        }
    }
    Ok(())
}

fn named(file: &str) -> String {
    file.replace("VERSION", VERSION)
}
